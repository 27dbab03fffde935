"""An optimizer's state by parameter name, taken out and put in without `Optimizer.load_state_dict`.

That one casts the state to the parameter's type, copies all of it, and refuses groups that were added meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from elastic_launcher.torch.state.codec import decode, encode, match


def capture_optimizer(
    optimizer: Optimizer, path: str, names: Mapping[int, str], tensors: list[torch.Tensor]
) -> dict[str, Any]:
    """Describes an optimizer; its live tensors are appended to ``tensors``.

    ``path`` is what an error calls it; parameters' names are by identity.

    Raises:
        TypeError: If something can't be carried; the message names its path.
    """
    groups = []
    for number, group in enumerate(optimizer.param_groups):
        options = {key: value for key, value in group.items() if key != "params"}
        encoded, _ = encode(options, f"{path}.param_groups[{number}]", tensors)
        groups.append([[names[id(p)] for p in group["params"]], encoded])
    state: list[list[Any]] = []
    shared: dict[Any, Any] = {}
    for key, values in optimizer.state.items():
        if not isinstance(key, torch.Tensor):
            shared[key] = values
        elif id(key) in names:
            encoded, _ = encode(values, f"{path}.state[{names[id(key)]!r}]", tensors, key)
            state.append([names[id(key)], encoded])
    return {"groups": groups, "state": state, "shared": encode(shared, f"{path}.state", tensors)[0]}


def outline(optimizer: Optimizer, names: Mapping[int, str]) -> list[list[Any]]:
    """Returns what of an optimizer's state needs memory; may be called while another thread trains.

    It has of each tensor the parameter's name, its own name, its type and its shape. Single numbers, and tensors that
    are not directly in a parameter's state, are left out. Parameters' names are by identity.
    """
    return [
        [names[id(key)], name, str(value.dtype).removeprefix("torch."), list(value.shape)]
        for key, values in list(optimizer.state.items())
        if isinstance(values, dict) and id(key) in names
        for name, value in list(values.items())
        if isinstance(name, str) and isinstance(value, torch.Tensor) and value.dim()
    ]


def reserve(optimizer: Optimizer, wanted: list[list[Any]], parameters: Mapping[str, torch.Tensor]) -> None:
    """Gives an optimizer that has not stepped yet the memory of a described one's state, touched already.

    ``wanted`` is what `outline` returned on another rank; state of parameters that are not this rank's is left out.
    """
    for parameter_name, name, dtype, shape in wanted:
        parameter = parameters.get(parameter_name)
        if parameter is None or name in optimizer.state[parameter]:
            continue
        kind = getattr(torch, dtype)
        alike = list(parameter.shape) == shape  # optimizers make such state with the parameter's strides
        memory = (
            torch.empty_like(parameter, dtype=kind)
            if alike
            else torch.empty(shape, dtype=kind, device=parameter.device)
        )
        optimizer.state[parameter][name] = memory.detach().fill_(0)  # zeros() would not touch it yet


def own_tensors(
    optimizer: Optimizer, theirs: dict[str, Any], parameters: Mapping[str, torch.Tensor]
) -> dict[int, torch.Tensor]:
    """Finds this optimizer's tensors in the places where one that `capture_optimizer` described has tensors.

    They are by their numbers there.
    """
    found: dict[int, torch.Tensor] = {}
    for name, encoded in theirs["state"]:
        values = optimizer.state.get(parameters[name])
        if values:
            found.update(match(encoded, values))
    for group, (_, encoded) in zip(optimizer.param_groups, theirs["groups"], strict=False):
        found.update(match(encoded, group))
    return found


def restore_optimizer(
    optimizer: Optimizer, theirs: dict[str, Any], parameters: Mapping[str, torch.Tensor], tensors: list[torch.Tensor]
) -> None:
    """Gives an optimizer the groups and the state of one that `capture_optimizer` described, with these tensors.

    Its group dicts stay the same objects, since schedulers may hold on to them.
    """
    groups = optimizer.param_groups
    del groups[len(theirs["groups"]) :]
    while len(groups) < len(theirs["groups"]):
        groups.append({})
    for group, (names, encoded) in zip(groups, theirs["groups"], strict=True):
        group.clear()
        group.update(params=[parameters[name] for name in names], **decode(encoded, tensors))
    optimizer.state.clear()
    for name, encoded in theirs["state"]:
        optimizer.state[parameters[name]] = decode(encoded, tensors, parameters[name])
    optimizer.state.update(decode(theirs["shared"], tensors))


class _OwnInt(int):
    """A whole number that is an object of its own: Python has one object for each small ``int``."""


class SetOptions:
    """Finds the options of param groups that the script sets while a peer's state is on its way: they are of this step,
    and what the peer sends is of the one before.

    Numbers count as set where another object is there, also an equal one; tensors are always the peer's.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = list(optimizers)
        self._before = [[self._renew(group) for group in one.param_groups] for one in optimizers]

    @staticmethod
    def _renew(group: dict[str, Any]) -> dict[str, Any]:
        """Puts objects into a group that nobody else has; returns its options."""
        for key, value in group.items():
            if type(value) is float:
                group[key] = float.fromhex(value.hex())
            elif type(value) is int:
                group[key] = _OwnInt(value)
            elif type(value) is tuple:
                group[key] = (*value,)
        return {key: value for key, value in group.items() if key != "params"}

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keeps what was set through a block in which the peer's state is put in place."""
        found = [
            (optimizer, number, key, group[key])
            for optimizer, befores in zip(self._optimizers, self._before, strict=True)
            for number, (group, before) in enumerate(zip(optimizer.param_groups, befores, strict=False))
            for key in before.keys() & group.keys()
            if group[key] is not before[key] and not isinstance(group[key], torch.Tensor)
        ]
        yield
        for optimizer, number, key, value in found:
            if number < len(optimizer.param_groups):
                optimizer.param_groups[number][key] = value
