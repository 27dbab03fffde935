"""Reads from the environment how this process was started: by our launcher, torchrun or plain python."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch

from elastic_launcher import variables
from elastic_launcher.options import AUTO


@dataclass(frozen=True, slots=True)
class Launch:
    """The settings in the environment.

    Attributes:
        control: Path or URL of the coordinator's control document; None without our launcher.
        member: Number of this process within the job, or None.
        node: Number of the node that it runs on, or None.
        torchrun: Whether plain torchrun (or anything that sets its variables) started more than this process.
        local_rank: This process's number among those of its node.
        local_world_size: How many these are.
    """

    control: str | None
    member: int | None
    node: int | None
    torchrun: bool
    local_rank: int
    local_world_size: int = 1


def read_launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """Reads how this process was started.

    Raises:
        RuntimeError: If the variables of our launcher are incomplete.
    """
    control = environment.get(variables.CONTROL)
    local_rank = int(environment.get("LOCAL_RANK", "0"))
    local_world_size = int(environment.get("LOCAL_WORLD_SIZE", "1"))
    if control is not None:
        missing = [name for name in (variables.MEMBER, variables.NODE) if name not in environment]
        if missing:
            raise RuntimeError(
                f"{variables.CONTROL} is set but {' and '.join(missing)} not: start this script with `elastic-launcher "
                f"run`, or unset {variables.CONTROL}."
            )
        member, node = int(environment[variables.MEMBER]), int(environment[variables.NODE])
        return Launch(control, member, node, False, local_rank, local_world_size)
    return Launch(None, None, None, int(environment.get("WORLD_SIZE", "1")) > 1, local_rank, local_world_size)


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a whole number, 1 or more")
    return value


def _read_whole(variable: str, text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f"{variable} is {text!r}; it must be a whole number, 1 or more")
    return _whole(variable, int(text))


def _setting(name: str, argument: int | None, variable: str, environment: Mapping[str, str]) -> int:
    text = environment.get(variable)
    if text is None:
        if argument is None:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{name} is missing: give it to init(), or to `elastic-launcher run` as {option}")
        return _whole(name, argument)
    given = _read_whole(variable, text)
    if argument is not None and _whole(name, argument) != given:
        raise ValueError(_differ(name, argument, given, variable))
    return given


def _differ(name: str, argument: object, given: object, variable: str) -> str:
    return (
        f"{name} is {argument!r} in init() but {given} in {variable} (from the launcher); give it in one place, or the "
        "same in both"
    )


def read_batch(
    global_batch_size: int | None, max_batch_per_gpu: int | str | None, environment: Mapping[str, str] = os.environ
) -> tuple[int, int | None]:
    """Returns the global batch size and the largest micro-batch, from the arguments or the launcher's environment; None
    for the latter where the job is to find it.

    Raises:
        ValueError: If a number is missing, not a whole number of 1 or more, or given twice and different.
    """
    batch = _setting("global_batch_size", global_batch_size, variables.GLOBAL_BATCH_SIZE, environment)
    return batch, _largest(max_batch_per_gpu, environment)


def _largest(argument: int | str | None, environment: Mapping[str, str]) -> int | None:
    name, variable = "max_batch_per_gpu", variables.MAX_BATCH_PER_GPU
    if isinstance(argument, str) and argument != AUTO:
        raise ValueError(f"{name} is {argument!r}; it must be a whole number, or {AUTO!r}")
    given = environment.get(variable)
    if AUTO not in (argument, given):
        return _setting(name, cast("int | None", argument), variable, environment)
    if argument is not None and given is not None and argument != given:
        raise ValueError(_differ(name, argument, given, variable))
    return None


def read_autoscale(environment: Mapping[str, str] = os.environ) -> int | None:
    """Returns up to which global batch the launcher lets the job go; None where it does not.

    Raises:
        ValueError: If it is no whole number of 1 or more.
    """
    text = environment.get(variables.AUTOSCALE_BATCH_SIZE)
    return None if text is None else _read_whole(variables.AUTOSCALE_BATCH_SIZE, text)


def choose_device(local_rank: int, local_world_size: int) -> torch.device:
    """Returns this process's device: its GPU, or the CPU where there is none.

    Raises:
        RuntimeError: If the node has some, and too few for its ranks.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        return torch.device("cpu")
    ranks = max(local_world_size, local_rank + 1)  # what started them may not say how many they are
    if count < ranks:
        raise RuntimeError(
            f"this node has {ranks} ranks, and each sees {count} GPU{'s' * (count > 1)}: start at "
            f"most {count} (--nproc-per-node), or train on the CPU, with CUDA_VISIBLE_DEVICES= before the command"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device
