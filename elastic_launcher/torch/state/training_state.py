"""The state of a training that a joiner receives: live tensors of the sender, memory of the receiver."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from elastic_launcher.torch.shard.model import drop_gathered, named_parameters
from elastic_launcher.torch.shard.tensors import is_sharded, local
from elastic_launcher.torch.state.buffers import buffer_slots
from elastic_launcher.torch.state.codec import decode, encode, match, part_numbers
from elastic_launcher.torch.state.optimizer_state import (
    capture_optimizer,
    outline,
    own_tensors,
    reserve,
    restore_optimizer,
)
from elastic_launcher.torch.state.tensors import Copies, TensorForm, bit_sum, describe, digest, is_plain, sum_of_bits

SENDER = "the rank that sends its state"
COPY_BYTES = 64 * 1024  # a registered module's tensors up to here are copied when captured
DIGEST_BYTES = 64 * 1024  # a smaller tensor is sent in less time than its digest takes


class StateMismatch(RuntimeError):
    """Two ranks built different models, optimizers or registered objects; the message names what differs."""


@dataclass(frozen=True)
class Captured:
    """State at one moment.

    Attributes:
        header: JSON: what there is, and all that is no tensor.
        tensors: The tensors, in the header's order. Parameters and optimizer state are the live ones.
    """

    header: dict[str, Any]
    tensors: list[torch.Tensor]
    _computing: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)
    _digests: list[torch.Tensor] = field(default_factory=list, compare=False, repr=False)

    def digests(self) -> torch.Tensor:
        """Returns a digest of each of the large `frozen_parameters`, int64; computed once for all threads that ask."""
        with self._computing:
            if not self._digests:
                wanted = forms(self.header)
                numbers = frozen_parameters(self.header, DIGEST_BYTES)
                found = [int(digest(wanted[n].arranged(self.tensors[n]))) for n in numbers]
                self._digests.append(torch.tensor(found, dtype=torch.int64))
            return self._digests[0]


def frozen_parameters(header: dict[str, Any], least: int = 0) -> list[int]:
    """Returns the numbers of the parameters without gradient that have at least so many bytes."""
    described = zip(header["parameters"], forms(header), strict=False)
    return [number for number, ((_, trained), form) in enumerate(described) if not trained and form.size >= least]


def forms(header: dict[str, Any]) -> list[TensorForm]:
    """Returns what the tensors of a header look like."""
    return [
        TensorForm(dtype, tuple(shape), device, None if order is None else tuple(order))
        for dtype, shape, device, order in header["tensors"]
    ]


class Carried(Protocol):
    """What the library itself keeps of a training, beside the script's objects."""

    def state_dict(self) -> dict[str, Any]:
        """Returns it."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes it from another rank or a checkpoint; nothing with {}."""


@dataclass
class TrainingState:
    """The job's own state of the training: what was prepared, registered objects by name, the script's JSON values."""

    models: list[nn.Module] = field(default_factory=list)
    optimizers: list[Optimizer] = field(default_factory=list)
    schedulers: list[Any] = field(default_factory=list)
    scalers: list[Any] = field(default_factory=list)
    registered: dict[str, Any] = field(default_factory=dict)
    user: dict[str, Any] = field(default_factory=dict)
    noise: Carried | None = None  # the gradient noise, where it is measured
    tracked: Carried | None = None  # tensors that forward passes change, where the script has such
    arithmetic: dict[str, int] = field(default_factory=dict)  # the numbers by which a deterministic job computes

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
        encode(obj.state_dict(), name)
        self.registered[name] = obj

    def capture(
        self, buffers: Mapping[str, torch.Tensor] | None = None, tracked: Mapping[str, torch.Tensor] | None = None
    ) -> Captured:
        """Returns the state as it is now.

        Parameters, optimizer state and a registered module's large tensors are not copied: they must not change while
        they are read. Buffers and what else is registered are copied: a forward pass or the script may change them.

        Args:
            buffers: Values of buffers in the place of the present ones, by name.
            tracked: Values of all tracked tensors in the place of the present ones, by name.

        Raises:
            TypeError: If something can't be carried; the message names its path.
        """
        parameters, now = self._parameters(), self._buffers()
        names = {id(parameter): name for name, parameter in parameters.items()}
        tensors = [_plain(local(p)) for p in parameters.values()]
        tensors += [(buffers or {}).get(name, _plain(buffer)).clone() for name, buffer in now.items()]
        header: dict[str, Any] = {
            "parameters": [[name, parameter.requires_grad] for name, parameter in parameters.items()],
            "buffers": list(now),
            "compared": self._compared(),
            "optimizers": [
                capture_optimizer(o, f"optimizer[{n}]", names, tensors) for n, o in enumerate(self.optimizers)
            ],
            "schedulers": [
                encode(_without_functions(s.state_dict()), f"scheduler[{n}]", tensors)[0]
                for n, s in enumerate(self.schedulers)
            ],
            "scalers": [encode(s.state_dict(), f"scaler[{n}]", tensors)[0] for n, s in enumerate(self.scalers)],
        }
        if self.arithmetic:
            header["arithmetic"] = self.arithmetic
        if self.noise is not None:
            header["noise"] = encode(self.noise.state_dict(), "the gradient noise", tensors)[0]
        if self.tracked is not None:
            values = self.tracked.state_dict() if tracked is None else dict(tracked)
            header["tracked"] = encode(values, "job.track", tensors)[0]
        copies = Copies(tensors)  # which nobody changes until they are read
        header["registered"] = []
        for name, one in self.registered.items():
            first, most = len(tensors), COPY_BYTES if isinstance(one, nn.Module) else math.inf
            header["registered"].append([name, encode(one.state_dict(), name, tensors)[0]])
            tensors[first:] = [copies.of(t) if t.nbytes <= most else t for t in tensors[first:]]
        first = len(tensors)
        header["user"] = encode(self.user, "job.state", tensors)[0]
        tensors[first:] = [copies.of(t) for t in tensors[first:]]
        header["tensors"] = [[f.dtype, f.shape, f.device, f.order] for f in map(TensorForm.of, tensors)]
        return Captured(header, tensors)

    def outline(self) -> list[Any]:
        """Returns what memory the optimizers' state needs (JSON); may be called while another thread trains."""
        names = {id(parameter): name for name, parameter in self._parameters().items()}
        return [outline(optimizer, names) for optimizer in self.optimizers]

    def reserve(self, wanted: list[Any]) -> None:
        """Makes the memory ready that another rank's `outline` asks for; `finish` later drops what is too much."""
        parameters = self._parameters()
        for optimizer, theirs in zip(self.optimizers, wanted, strict=False):
            reserve(optimizer, theirs, parameters)

    def aliases(self) -> dict[str, str]:
        """Returns the other names of parameters that a model holds more than once (tied weights), with their first."""
        first: dict[int, str] = {}
        named = [
            (name, parameter)
            for number, model in enumerate(self.models)
            for name, parameter in named_parameters(model, self._prefix(number), remove_duplicate=False)
        ]
        return {name: first[id(p)] for name, p in named if first.setdefault(id(p), name) != name}

    def targets(self, header: dict[str, Any], keep_own: bool = False, sender: str = SENDER) -> list[torch.Tensor]:
        """Returns the memory into which the tensors of another rank's `capture` go: this rank's own where it has some.

        Writing there is not noticed by a forward and backward pass under way, which does not count.

        Args:
            header: Of the other rank's `capture`.
            keep_own: Whether registered objects stay as they are.
            sender: What to call it in an error.

        Raises:
            StateMismatch: If the two ranks did not build the same.
        """
        self._compare(header, sender)
        parameters, buffers = self._parameters(), self._buffers()
        model = [*map(local, parameters.values()), *buffers.values()]
        own = dict(enumerate(model))
        for optimizer, theirs in zip(self.optimizers, header["optimizers"], strict=True):
            own.update(own_tensors(optimizer, theirs, parameters))
        for name, encoded in header["registered"]:
            if isinstance(self.registered[name], nn.Module) and not self._stays(name, keep_own):
                own.update(match(encoded, self.registered[name].state_dict()))  # which is its own memory
        gpu = next((tensor.device for tensor in model if tensor.device.type != "cpu"), torch.device("cpu"))
        wanted = forms(header)
        found = []
        for number, form in enumerate(wanted):
            mine = own.get(number)
            fits = mine is not None and (mine.dtype, mine.shape) == (getattr(torch, form.dtype), form.shape)
            if number >= len(model) and mine is not None and mine.device.type != form.device:
                fits = False
            if len(parameters) <= number < len(model):
                fits = False  # a forward pass under way writes into buffers: they are put in place by `finish`
            found.append(mine.data if mine is not None and fits else form.empty(gpu))
        return found

    def finish(self, header: dict[str, Any], tensors: list[torch.Tensor], keep_own: bool = False) -> None:
        """Puts state that fills `targets` in place; parameters and optimizer state are there already.

        With ``keep_own``, registered objects (but those that an optimizer holds) and the script's own values stay as
        they are.

        Raises:
            StateMismatch: If an object does not take the state of its like on another rank.
        """
        drop_gathered(self.models)
        parameters = self._parameters()
        for buffer, received in zip(self._buffers().values(), tensors[len(parameters) :], strict=False):
            write_values(buffer.data, received)
        for name, requires_grad in header["parameters"]:
            if parameters[name].requires_grad != requires_grad:
                parameters[name].requires_grad_(requires_grad)
        for optimizer, theirs in zip(self.optimizers, header["optimizers"], strict=True):
            restore_optimizer(optimizer, theirs, parameters, tensors)
        for number, (scheduler, encoded) in enumerate(zip(self.schedulers, header["schedulers"], strict=True)):
            _load(f"scheduler[{number}]", scheduler.load_state_dict, decode(encoded, tensors))
        for number, (scaler, encoded) in enumerate(zip(self.scalers, header["scalers"], strict=True)):
            _load(f"scaler[{number}]", scaler.load_state_dict, decode(encoded, tensors))
        if self.noise is not None:  # a checkpoint may be of a job that did not measure it
            _load("the gradient noise", self.noise.load_state_dict, decode(header.get("noise", ["dict", []]), tensors))
        if self.tracked is not None:
            _load("job.track", self.tracked.load_state_dict, decode(header.get("tracked", ["dict", []]), tensors))
        for name, encoded in header["registered"]:
            if not self._stays(name, keep_own):
                _load(name, self.registered[name].load_state_dict, decode(encoded, tensors))
        if keep_own:
            return
        self.user.clear()
        self.user.update(decode(header["user"], tensors))

    def _stays(self, name: str, keep_own: bool) -> bool:
        """Whether a registered object stays as it is: not what an optimizer holds, since that acts with it."""
        held = (value for optimizer in self.optimizers for value in vars(optimizer).values())
        return keep_own and all(self.registered[name] is not value for value in held)

    def kept(self, header: dict[str, Any]) -> set[int]:
        """Returns the numbers of the parameters that stay where registered objects do: what no optimizer changes.

        A script that averages weights in a frozen model does so with its own: a peer's may be a step ahead.
        """
        stepped = self.acted_on()
        parameters = list(self._parameters().values())
        frozen = [number for number in frozen_parameters(header) if not parameters[number].requires_grad]
        return {number for number in frozen if id(parameters[number]) not in stepped}

    def acted_on(self) -> dict[int, torch.Tensor]:
        """Returns, by identity, the parameters that optimizers change: those of their groups, and of models that they
        hold.
        """
        held = [value for one in self.optimizers for value in vars(one).values() if isinstance(value, nn.Module)]
        stepped = [p for one in self.optimizers for group in one.param_groups for p in group["params"]]
        return {id(p): p for p in (*stepped, *(p for model in held for p in model.parameters()))}

    def divided(self, header: dict[str, Any], sender: str = SENDER) -> dict[int, torch.Tensor]:
        """Returns the parameters to which a header's tensors may belong in parts, by these tensors' numbers.

        ``sender`` is what an error calls the one that made the header.

        Raises:
            StateMismatch: If it has other parameters.
        """
        parameters = self._parameters()
        _compare_names("parameter", list(parameters), [name for name, _ in header["parameters"]], sender)
        found = {number: parameters[name] for number, (name, _) in enumerate(header["parameters"])}
        for optimizer in header["optimizers"]:
            for name, encoded in optimizer["state"]:
                found.update((number, parameters[name]) for number in part_numbers(encoded))
        return found

    def parts(self, header: dict[str, Any]) -> dict[int, int]:
        """Returns the numbers of the tensors of which this rank has a part, with the rows of the whole."""
        return {number: len(one) for number, one in self.divided(header).items() if is_sharded(one)}

    def checksums(self) -> tuple[list[str], torch.Tensor]:
        """Returns the names of all parameters and an int64 sum over each one's bit patterns, on the device."""
        parameters = {name: p for name, p in self._parameters().items() if not is_sharded(p)}
        sums = [sum_of_bits(parameter) for parameter in parameters.values()]
        return list(parameters), torch.stack(sums) if sums else torch.zeros(0, dtype=torch.int64)

    def frozen_names(self) -> list[str]:
        """Returns the names of the parameters without gradient."""
        return [name for name, parameter in self._parameters().items() if not parameter.requires_grad]

    def name_of(self, parameter: torch.Tensor) -> str:
        """Returns what messages call a parameter."""
        found = (name for name, one in self._all_parameters() if one is parameter)
        return next(found, describe(parameter))

    def _parameters(self) -> dict[str, torch.Tensor]:
        """Returns every parameter once: by its name in a model, or else by its place in an optimizer."""
        found: dict[str, torch.Tensor] = {}
        seen: set[int] = set()
        for name, parameter in self._all_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                found[name] = parameter
        return found

    def _all_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for number, model in enumerate(self.models):
            yield from named_parameters(model, self._prefix(number))
        for number, optimizer in enumerate(self.optimizers):
            for group_number, group in enumerate(optimizer.param_groups):
                for place, parameter in enumerate(group["params"]):
                    yield f"optimizer{number}.group{group_number}.param{place}", parameter

    def _buffers(self) -> dict[str, torch.Tensor]:
        """Returns every buffer once that belongs to a model's ``state_dict`` and travels."""
        return {place.name: buffer for place, buffer in buffer_slots(self.models) if is_plain(buffer)}

    def _compared(self) -> dict[str, int]:
        """Returns a checksum of each sparse, quantized or nested buffer, which does not travel."""
        return {place.name: bit_sum(buffer) for place, buffer in buffer_slots(self.models) if not is_plain(buffer)}

    def _prefix(self, number: int) -> str:
        return f"model{number}" if len(self.models) > 1 else ""

    def _compare(self, header: dict[str, Any], sender: str) -> None:
        """Refuses a header of other models, optimizers, schedulers, scalers or registered objects, and of another
        arithmetic.
        """
        there = header.get("arithmetic", {})
        if self.arithmetic and there != self.arithmetic:
            raise StateMismatch(
                f"this job computes with deterministic= ({_numbers(self.arithmetic)}), and {sender} with "
                f"{_numbers(there) or 'ranks as they were'}: the bits would be those of neither. Give init() the same, "
                "or start a new training in another work directory"
            )
        for kind in ("optimizers", "schedulers", "scalers"):
            mine, theirs = len(getattr(self, kind)), len(header[kind])
            if mine != theirs:
                raise StateMismatch(f"this rank prepared {mine} {kind}, {sender} {theirs}")
        _compare_names("registered object", list(self.registered), [name for name, _ in header["registered"]], sender)
        parameters, buffers = self._parameters(), self._buffers()
        _compare_names("parameter", list(parameters), [name for name, _ in header["parameters"]], sender)
        _compare_names("buffer", list(buffers), header["buffers"], sender)
        theirs_by_name = header.get("compared", {})
        for name, value in self._compared().items():
            if theirs_by_name.get(name, value) != value:
                raise StateMismatch(
                    f"the buffer {name}, sparse, quantized or nested, is another one on {sender}; it does not travel: "
                    "make the same one on every rank"
                )
        known = dict(
            zip([*(name for name, _ in header["parameters"]), *header["buffers"]], forms(header), strict=False)
        )
        for name, tensor in (*parameters.items(), *buffers.items()):
            form = TensorForm.of(local(tensor))
            if str(form) != str(known[name]):
                raise StateMismatch(
                    f"{name} is {form} on this rank and {known[name]} on {sender}; all ranks must build the same model"
                )


def _compare_names(what: str, mine: list[str], theirs: list[str], sender: str) -> None:
    if mine == theirs:
        return
    here, there = [n for n in mine if n not in set(theirs)], [n for n in theirs if n not in set(mine)]
    if here or there:
        where = "on this rank" if here else f"on {sender}"
        raise StateMismatch(f"{what} {(here or there)[0]} is only {where}; all ranks must build the same")
    odd = next(name for name, other in zip(mine, theirs, strict=True) if name != other)
    raise StateMismatch(f"{what} {odd} has another place on {sender}; build them in one order")


def _numbers(named: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in named.items())


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor's values, apart from autograd."""
    return tensor.data.resolve_conj().resolve_neg()


def _without_functions(state: Any) -> Any:
    """Leaves out a scheduler's functions, which the receiver's own script made too."""
    if isinstance(state, dict):
        return {key: _without_functions(value) for key, value in state.items() if not callable(value)}
    return [_without_functions(value) for value in state] if type(state) is list else state


def _load(name: str, load: Callable[[Any], Any], state: Any) -> None:
    try:
        load(state)
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        raise StateMismatch(f"{name} does not take the state of its like on another rank: {error}") from error


def write_values(target: torch.Tensor, values: torch.Tensor) -> None:
    """Copies values into a tensor of any layout, also one whose elements share memory (an expanded one)."""
    for dimension, stride in enumerate(target.stride()):
        if stride == 0 and target.shape[dimension] > 1:
            target, values = target.narrow(dimension, 0, 1), values.narrow(dimension, 0, 1)
    target.copy_(values)
