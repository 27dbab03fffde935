"""What a job's ledgers prove, and the plain reference that its model is compared with."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from elastic_launcher.sampling import indices
from tests.support.places import SCRIPTS
from tests.support.step_indices import step_indices

SCRIPT = SCRIPTS / "train.py"
SEED = 7
MOST_STEPS = 5000  # that a test with a batch schedule looks at


def script_module(path: Path = SCRIPT) -> ModuleType:
    """Returns a training script as a module, for its data and its model alone."""
    spec = importlib.util.spec_from_file_location("train_of_tests", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    argv, folders = sys.argv, sys.path
    sys.argv, sys.path = ["train.py", "{}"], [str(path.parent), *folders]
    try:
        spec.loader.exec_module(module)
    finally:
        sys.argv, sys.path = argv, folders
    return module


@dataclass
class Plain:
    """What plain torch makes of the same training: whole batches, one process.

    Attributes:
        model: After the last step.
        losses: Of each step.
        rates: Learning rate after each step.
        norms: Of the gradient of each step.
        weights: The norm of each parameter after each step.
    """

    model: nn.Module
    losses: list[float]
    rates: list[float]
    norms: list[float]
    weights: list[list[float]]


Entries = tuple[tuple[int, int], ...]
"""First step and global batch of each entry of a batch schedule."""


@lru_cache
def orders(samples: int, entries: Entries) -> list[list[int]]:
    """Returns the samples of the first steps by a batch schedule."""
    sizes, epoch, start, size, found = dict(entries), 0, 0, 0, list[list[int]]()
    for step in range(MOST_STEPS):
        size = sizes.get(step, size)
        stop = min(start + size, samples)
        found.append([int(i) for i in indices(samples, SEED, epoch, start, stop, True)])
        epoch, start = (epoch, stop) if stop < samples else (epoch + 1, 0)
    return found


def order(samples: int, batch: int | Entries, step: int) -> list[int]:
    """Returns the samples of a step of the whole training."""
    if not isinstance(batch, int):
        return orders(samples, batch)[step]
    per_epoch = math.ceil(samples / batch)
    epoch, step_in_epoch = divmod(step, per_epoch)
    return [int(i) for i in step_indices(samples, batch, SEED, epoch, step_in_epoch, True, False)]


def recorded(events: Sequence[dict[str, Any]], first: int) -> Entries:
    """Returns the batch schedule that events have recorded: each change replaces those at its step and after it."""
    entries: Entries = ((0, first),)
    for event in events:
        if event["kind"] == "batch_changed":
            kept = tuple(entry for entry in entries if entry[0] < event["step"])
            assert event["old"] == entries[-1][1]
            entries = (*kept, (event["step"], event["new"]))
    return entries


def gains_of(events: Sequence[dict[str, Any]]) -> dict[int, float]:
    """Returns the recorded gain of the first parameter group, by the step from which on it holds."""
    return {event["step"]: event["gains"][0] for event in events if event["kind"] == "batch_changed"}


def statistical_steps(samples: int, entries: Entries, gains: Mapping[int, float], epochs: int) -> int:
    """Returns how many steps of a batch schedule make so many statistical epochs.

    Args:
        samples: In the data set.
        entries: The schedule.
        gains: Of each entry but the first, over all parameters.
        epochs: How many.
    """
    done = 0.0
    for step, used in enumerate(orders(samples, entries)):
        if done >= epochs * samples:
            return step
        first, size = max(entry for entry in entries if entry[0] <= step)
        done += len(used) * (gains.get(first, 1.0) / (size / entries[0][1]))
    raise AssertionError(f"{epochs} statistical epochs take more than {MOST_STEPS} steps")


def factor(batch: int | Entries, gains: Mapping[int, float] | None, step: int) -> float:
    """Returns what a step's learning rate is multiplied by: the root of the gain, as for Adam, or of the scale."""
    if isinstance(batch, int):
        return 1.0
    first, size = max(entry for entry in batch if entry[0] <= step)
    if gains is not None:
        return gains[first] ** 0.5 if first else 1.0
    return (float(size / batch[0][1])) ** 0.5


def whole_batch(model: nn.Module, loss: Callable[[slice], torch.Tensor], count: int, step: int) -> float:
    """Runs one backward pass over a step's samples, and returns the loss."""
    mean = loss(slice(0, count))
    mean.backward()
    return float(mean.detach())


def train_plain(
    samples: int,
    batch: int | Entries,
    steps: int,
    *,
    gains: Mapping[int, float] | None = None,
    norm: bool = False,
    backward: Callable[..., float] = whole_batch,
    path: Path = SCRIPT,
) -> Plain:
    """Trains the script's model without anything of ours but the order of the samples.

    Args:
        samples: In the data set.
        batch: Samples of a step; by steps where it adapts.
        steps: How many.
        gains: Of the batch that holds from a step on, where it adapts; None where learning rates follow its size.
        norm: Whether the model has batch norm.
        backward: What leaves a step's gradients in the model; see `whole_batch`.
        path: The script.
    """
    torch.set_num_threads(1)  # of steps so small, threads would only wait for each other
    script = script_module(path)
    data = script.Numbered(samples)
    y = torch.tensor(data.y)
    model = script.build(norm)
    optimizer, scheduler = script.optimizer_of(model)
    plain = Plain(model, [], [], [], [])
    for step in range(steps):
        chosen = order(samples, batch, step)

        def loss(part: slice, chosen: list[int] = chosen) -> torch.Tensor:
            return functional.cross_entropy(model(data.x[chosen[part]]), y[chosen[part]])

        plain.losses.append(backward(model, loss, len(chosen), step))
        plain.norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        rate = optimizer.param_groups[0]["lr"]
        optimizer.param_groups[0]["lr"] = rate * factor(batch, gains, step)
        optimizer.step()
        optimizer.param_groups[0]["lr"] = rate
        scheduler.step()
        optimizer.zero_grad()
        plain.rates.append(scheduler.get_last_lr()[0])
        plain.weights.append([one.detach().norm().item() for one in model.parameters()])
    return plain


def read_ledgers(folder: Path) -> list[list[dict[str, Any]]]:
    """Returns the micro-batches of each process.

    Each is written down twice, before its backward pass and after; only the first is there, marked ``begun``, of one
    in which the process was killed. A last line that a kill has cut off is left out.
    """
    ledgers = []
    for path in sorted(folder.glob("ledger-*.jsonl")):
        rows = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        ledger = [row for row in rows if "begun" not in row] + [row for row in rows[-1:] if "begun" in row]
        if ledger:
            ledgers.append(ledger)
    return ledgers


def counted(ledgers: list[list[dict[str, Any]]]) -> dict[int, list[dict[str, Any]]]:
    """Returns the micro-batches that counted, by step, in rank order: of each step the last attempt."""
    attempts: dict[tuple[int, tuple[int, int]], list[list[dict[str, Any]]]] = {}
    done: dict[int, tuple[int, int]] = {}
    for rows in ledgers:
        attempt: list[dict[str, Any]] = []
        for row in rows:
            if row["rank"] is None:
                continue  # a rehearsal
            if attempt and (row["step"] != attempt[-1]["step"] or _restarts(row, attempt)):
                attempt = []
            attempt.append(row)
            group = (row["generation"], -row["world_size"])  # a generation that can't be formed is tried with fewer
            if row["sync"]:
                done[row["step"]] = max(done.get(row["step"], group), group)
            if row["sync"] or "begun" in row:
                attempts.setdefault((row["step"], group), []).append(attempt)
                attempt = []
    return {
        step: [row for part in _parts(attempts[step, group]) for row in part if row["samples"]]
        for step, group in done.items()
    }


def _parts(attempts: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Returns each rank's part of an attempt, in rank order: of one that was killed, if no other took its rank."""
    found: dict[int, list[dict[str, Any]]] = {}
    for part in sorted(attempts, key=lambda part: bool(part[-1]["sync"])):
        found[part[0]["rank"]] = part
    return [found[rank] for rank in sorted(found)]


def without_lost(ledgers: list[list[dict[str, Any]]], events: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Leaves out the steps that a later run of the same job did again, from the checkpoint that it went on from."""
    for number, event in enumerate(events):
        if event["kind"] == "job_started":
            started = next((e for e in events[number:] if e["kind"] == "node_started"), None)
            first = started["members"][0] if started else math.inf
            step = event.get("resumed_step", 0)
            ledgers = [[row for row in rows if row["member"] >= first or row["step"] < step] for rows in ledgers]
    return [rows for rows in ledgers if rows]


def _restarts(row: dict[str, Any], attempt: list[dict[str, Any]]) -> bool:
    return any(row[name] != attempt[0][name] for name in ("generation", "world_size", "rank")) or (
        row["indices"] == attempt[0]["indices"]
    )


def assert_no_step_done_again(ledgers: list[list[dict[str, Any]]]) -> None:
    """Fails if a completed step was done again although a process that held it went on.

    A row that ends a step (``sync``) is written after the optimizer's step: its process holds that step from then on.
    Steps may be done again by others when all that held them have ended: the most advanced one died, or everything was
    killed and a later run went on from a checkpoint.
    """
    held: dict[tuple[int, int], int] = {}
    completed: dict[int, dict[tuple[int, int], tuple[int, int]]] = {}
    latest: dict[tuple[int, int], tuple[int, int]] = {}
    for row in (row for rows in ledgers for row in rows if row["rank"] is not None):
        process, group, step = (row["member"], row["pid"]), (row["generation"], -row["world_size"]), row["step"]
        member = f"member {row['member']} (process {row['pid']})"
        assert step > held.get(process, -1), f"{member} had completed step {held[process]} and began step {step}"
        latest[process] = max(latest.get(process, group), group)
        if row["sync"]:
            held[process] = step
            completed.setdefault(step, {})[process] = group
    for step, groups in completed.items():
        for process, group in groups.items():
            again = [other for other in groups.values() if group < other <= latest[process]]
            assert not again, f"step {step} was done again beside member {process[0]}, which held it: {groups}"


def assert_each_sample_once(ledgers: list[list[dict[str, Any]]], samples: int, batch: int | Entries, micro: int) -> int:
    """Fails unless every step used its samples once, in order, in parts that fit; returns the number of steps.

    No completed step was done again (`assert_no_step_done_again`).
    """
    assert_no_step_done_again(ledgers)
    steps = counted(ledgers)
    assert sorted(steps) == list(range(len(steps))), "a step is missing"
    for step, rows in steps.items():
        used = [index for row in rows for index in row["indices"]]
        assert used == order(samples, batch, step), f"step {step}: {used}"
        assert max(len(row["indices"]) for row in rows) <= micro
    return len(steps)


def assert_plain_steps(ledgers: list[list[dict[str, Any]]], plain: Plain, adopted: Container[int]) -> None:
    """Fails unless each rank had plain torch's loss, norm of the gradient and weights in each step that it completed.

    Args:
        ledgers: Of all ranks.
        plain: What plain torch has made of the same steps.
        adopted: Steps that a rank may have taken from another one; its gradient is then 0.
    """
    computed = set()
    for row in (row for rows in ledgers for row in rows if row["sync"]):
        step = row["step"]
        found, wanted = [row["loss"], *row["weights"]], [plain.losses[step], *plain.weights[step]]
        if row["norm"] or step not in adopted:
            found, wanted = [*found, row["norm"]], [*wanted, plain.norms[step]]
            computed.add(step)
        assert found == pytest.approx(wanted, rel=1e-9, abs=1e-9), f"step {step} of member {row['member']}"
    assert computed == set(range(len(plain.losses))), "nobody has computed some steps"


def assert_same_model(folder: Path, plain: Plain, tolerance: float = 1e-9) -> None:
    """Fails unless the job's final model is the plain one."""
    found = torch.load(folder / "model.pt", weights_only=True, map_location="cpu")["model"]
    for name, parameter in plain.model.state_dict().items():
        assert torch.allclose(found[name], parameter, rtol=tolerance, atol=tolerance), name
