"""Everything of a training that a joiner takes over: as live tensors of the sender, and as the receiver's own memory.

Optimizer state goes by parameter name and straight into place (`Optimizer.load_state_dict` would cast and copy it).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from elastic_launcher.torch.codec import decode, encode_into

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class StateMismatch(ValueError):
    """Two ranks built different models or optimizers; the message names what differs."""


@dataclass(frozen=True)
class Captured:
    """State at one moment.

    Attributes:
        header: JSON: what there is, and all that is no tensor.
        tensors: The tensors, in the header's order: the live ones, not copies.
    """

    header: dict[str, Any]
    tensors: list[torch.Tensor]


def _describe(tensor: torch.Tensor) -> list[Any]:
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), tensor.device.type]


def _model_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns the tensors of a model that are state, tied ones once."""
    found: dict[str, torch.Tensor] = dict(model.named_parameters())
    seen = {id(p) for p in found.values()}
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) not in seen and name not in module._non_persistent_buffers_set:
                seen.add(id(buffer))
                found[f"{path}.{name}" if path else name] = buffer
    return found


@dataclass
class TrainingState:
    """What a job knows of the training.

    Attributes:
        models: Prepared models.
        optimizers: Prepared optimizers.
        schedulers: Prepared schedulers.
        scalers: Prepared gradient scalers.
        registered: Other objects with ``state_dict``, by name.
        user: The script's own JSON values.
    """

    models: list[nn.Module] = field(default_factory=list)
    optimizers: list[Optimizer] = field(default_factory=list)
    schedulers: list[Any] = field(default_factory=list)
    scalers: list[Any] = field(default_factory=list)
    registered: dict[str, Any] = field(default_factory=dict)
    user: dict[str, Any] = field(default_factory=dict)

    def register(self, name: str, obj: Any) -> None:
        """Adds an object whose state travels.

        Raises:
            TypeError: If it has no ``state_dict`` and ``load_state_dict``, or holds what can't be carried.
            ValueError: If the name is taken.
        """
        missing = [method for method in ("state_dict", "load_state_dict") if not callable(getattr(obj, method, None))]
        if missing:
            raise TypeError(f"{name!r} ({type(obj).__name__}) has no {' and no '.join(missing)}")
        if name in self.registered:
            raise ValueError(f"{name!r} is registered already")
        encode_into(obj.state_dict(), name, [])
        self.registered[name] = obj

    def _parameter_names(self) -> dict[int, str]:
        """Names every parameter: by its model, or by its place in an optimizer."""
        names: dict[int, str] = {}
        for number, model in enumerate(self.models):
            for name, parameter in model.named_parameters():
                names.setdefault(id(parameter), f"model {number}: {name}")
        for number, optimizer in enumerate(self.optimizers):
            for group_number, group in enumerate(optimizer.param_groups):
                for place, parameter in enumerate(group["params"]):
                    names.setdefault(id(parameter), f"optimizer {number}: group {group_number}, parameter {place}")
        return names

    def capture(self) -> Captured:
        """Returns the state as it is now; nothing is copied, so the tensors must not change while they are read.

        Raises:
            TypeError: If something can't be carried; the message names its path.
        """
        tensors: list[torch.Tensor] = []
        models = []
        for model in self.models:
            rows = []
            for name, tensor in _model_tensors(model).items():
                rows.append([name, tensor.requires_grad])
                tensors.append(tensor.detach())
            models.append(rows)
        names = self._parameter_names()
        header: dict[str, Any] = {"models": models, "optimizers": []}
        for number, optimizer in enumerate(self.optimizers):
            groups = []
            for group in optimizer.param_groups:
                options = {key: value for key, value in group.items() if key != "params"}
                encoded = encode_into(options, f"optimizer {number} param_groups", tensors)
                groups.append([[names[id(p)] for p in group["params"]], encoded])
            state = [
                [names[id(p)], encode_into(optimizer.state[p], f"optimizer {number} state[{names[id(p)]}]", tensors)]
                for group in optimizer.param_groups
                for p in group["params"]
                if p in optimizer.state
            ]
            header["optimizers"].append({"groups": groups, "state": state})
        for kind, things in (("schedulers", self.schedulers), ("scalers", self.scalers)):
            header[kind] = [
                encode_into(t.state_dict(), f"{kind.removesuffix('s')} {n}", tensors) for n, t in enumerate(things)
            ]
        header["registered"] = [
            [name, encode_into(o.state_dict(), name, tensors)] for name, o in self.registered.items()
        ]
        header["user"] = encode_into(self.user, "job.state", tensors)
        header["tensors"] = [_describe(tensor) for tensor in tensors]
        return Captured(header, tensors)

    def targets(self, header: dict[str, Any]) -> list[torch.Tensor]:
        """Returns the memory into which another rank's tensors go: this rank's own where it has some.

        Args:
            header: Of the other rank's `capture`.

        Raises:
            StateMismatch: If the models or optimizers are not the same.
        """
        self._compare(header)
        wanted = header["tensors"]
        found: list[torch.Tensor] = []
        for model in self.models:
            for name, tensor in _model_tensors(model).items():
                if _describe(tensor)[:2] != wanted[len(found)][:2]:
                    raise StateMismatch(
                        f"{name} is {_describe(tensor)[:2]} on this rank and {wanted[len(found)][:2]} on another"
                    )
                found.append(tensor.detach())
        have = self._optimizer_tensors(header)
        device = self._device()
        for number in range(len(found), len(wanted)):
            kind, shape, where = wanted[number]
            mine = have.get(number)
            if mine is None or _describe(mine)[:2] != [kind, shape]:
                mine = torch.empty(shape, dtype=getattr(torch, kind), device=device if where == "cuda" else "cpu")
            found.append(mine)
        return found

    def _device(self) -> torch.device:
        return next((p.device for model in self.models for p in model.parameters()), torch.device("cpu"))

    def _compare(self, header: dict[str, Any]) -> None:
        """Refuses a header of other models, optimizers, schedulers or registered objects."""
        for kind in ("models", "optimizers", "schedulers", "scalers"):
            mine, theirs = len(getattr(self, kind)), len(header[kind])
            if mine != theirs:
                raise StateMismatch(f"this rank prepared {mine} {kind}, another one {theirs}")
        names = [name for name, _ in header["registered"]]
        if sorted(names) != sorted(self.registered):
            raise StateMismatch(f"this rank registered {sorted(self.registered)}, another one {sorted(names)}")
        for number, model in enumerate(self.models):
            mine_names = list(_model_tensors(model))
            their_names = [name for name, _ in header["models"][number]]
            if mine_names != their_names:
                odd = sorted(set(mine_names) ^ set(their_names)) or ["their order"]
                raise StateMismatch(f"model {number} differs between ranks in {', '.join(odd[:5])}")

    def _optimizer_tensors(self, header: dict[str, Any]) -> dict[int, torch.Tensor]:
        """Finds this rank's optimizer state tensors by their numbers in another rank's header."""
        parameters = self._parameters_by_name()
        found: dict[int, torch.Tensor] = {}
        for optimizer, theirs in zip(self.optimizers, header["optimizers"], strict=True):
            for name, encoded in theirs["state"]:
                parameter = parameters.get(name)
                mine = optimizer.state.get(parameter) if parameter is not None else None
                if not mine or encoded[0] != "dict":
                    continue
                for key, value in encoded[1]:
                    own = mine.get(key)
                    if isinstance(value, list) and value[0] == "tensor" and isinstance(own, torch.Tensor):
                        found[value[1]] = own
        return found

    def _parameters_by_name(self) -> dict[str, torch.Tensor]:
        parameters = [p for model in self.models for p in model.parameters()]
        parameters += [p for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]]
        names = self._parameter_names()
        return {names[id(p)]: p for p in parameters}

    def finish(self, header: dict[str, Any], tensors: list[torch.Tensor]) -> None:
        """Puts received state in place; what is large is there already.

        Args:
            header: Of the sender's `capture`.
            tensors: What `targets` returned, filled.
        """
        for model, rows in zip(self.models, header["models"], strict=True):
            for tensor, (_, requires_grad) in zip(_model_tensors(model).values(), rows, strict=True):
                if tensor.is_leaf and (tensor.is_floating_point() or tensor.is_complex()):
                    tensor.requires_grad_(requires_grad)
        parameters = self._parameters_by_name()
        for number, (optimizer, theirs) in enumerate(zip(self.optimizers, header["optimizers"], strict=True)):
            groups = []
            for names, options in theirs["groups"]:
                unknown = [name for name in names if name not in parameters]
                if unknown:
                    raise StateMismatch(f"optimizer {number} of another rank has {unknown[0]}, which this rank lacks")
                groups.append({"params": [parameters[name] for name in names], **decode(options, tensors)})
            # the same dicts stay, where there are some: schedulers hold on to the groups
            for group_number, group in enumerate(groups):
                if group_number < len(optimizer.param_groups):
                    optimizer.param_groups[group_number].clear()
                    optimizer.param_groups[group_number].update(group)
                else:
                    optimizer.param_groups.append(group)
            del optimizer.param_groups[len(groups) :]
            optimizer.state.clear()
            for name, encoded in theirs["state"]:
                optimizer.state[parameters[name]] = decode(encoded, tensors)
        for scheduler, encoded in zip(self.schedulers, header["schedulers"], strict=True):
            scheduler.load_state_dict(decode(encoded, tensors))
        for scaler, encoded in zip(self.scalers, header["scalers"], strict=True):
            scaler.load_state_dict(decode(encoded, tensors))
        for name, encoded in header["registered"]:
            self.registered[name].load_state_dict(decode(encoded, tensors))
        self.user.clear()
        self.user.update(decode(header["user"], tensors))

    def checksums(self) -> tuple[list[str], torch.Tensor]:
        """Returns the names of all parameters and an int64 sum over each one's bit patterns."""
        names: list[str] = []
        sums: list[torch.Tensor] = []
        for number, model in enumerate(self.models):
            for name, parameter in model.named_parameters():
                names.append(f"model {number}: {name}")
                sums.append(_bit_sum(parameter.detach()))
        return names, torch.stack(sums).cpu() if sums else torch.zeros(0, dtype=torch.int64)


def _bit_sum(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.view(_INTEGERS[flat.element_size()]).sum(dtype=torch.int64)
