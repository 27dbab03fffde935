"""What `training_step` logs, brought together over the micro-batches of a step, so that Lightning sees one batch."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from torchmetrics import Metric

from elastic_launcher.integrations.lightning.metrics import TrainingMetrics
from elastic_launcher.torch import Job

NAMES = 256  # values that training_step may log
HASHES = 251  # few enough that sums of them are exact in 32 bits
KEPT = ("value", "cumulated_batch_size", "has_reset", "_forward_cache", "_update_count", "_computed")
ROWS = VALUE, WEIGHT, CALLS, HASH, BY_SAMPLES, SAMPLES = range(6)  # of what is summed


@dataclass(frozen=True)
class Call:
    """A call of `log`: hook and name, the options, and how its values are brought together (mean, sum, max, min)."""

    arguments: tuple[str, str]
    named: dict[str, Any]
    kind: str


class StepLogs:
    """The sums and largest values of what was logged in a step, on all ranks.

    There are two banks, used in turn: a rank that has to take a step over from a peer finds the step's values there,
    although that peer has begun the next step.

    Args:
        job: The job.
        tracked: Whether they come with the gradient. Otherwise they are reduced at the end of the step: manual
            optimization logs after its last backward pass.
    """

    def __init__(self, job: Job, tracked: bool) -> None:
        dtype = torch.get_default_dtype()
        dtype = dtype if dtype in (torch.float32, torch.float64) else torch.float32
        self._job = job
        self._tracked = tracked
        self._closed = False
        self._sums = torch.zeros(2, len(ROWS), NAMES, dtype=dtype, device=job.device)
        self._largest = torch.full((2, NAMES), float("-inf"), dtype=dtype, device=job.device)
        self._names: list[str] = []
        self._some_largest = False
        self._bank = 0
        self._calls: dict[str, Call] = {}
        if tracked:
            job.track(lambda: {} if self._closed else {"sums": self._sums}, op="sum")
            job.track(lambda: {"largest": self._largest} if self._some_largest and not self._closed else {}, op="max")

    def state_dict(self) -> dict[str, Any]:
        """Returns the names, in the order of their places."""
        return {"names": list(self._names), "largest": self._some_largest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes names that `state_dict` has returned; what this rank has logged in its first step comes after them."""
        self._names = list(dict.fromkeys([*state["names"], *self._calls]))
        self._some_largest = state["largest"]

    def close(self) -> None:
        """Adds nothing more to the gradients of steps: another `fit` has logs of its own."""
        self._closed = True

    def before_step(self) -> None:
        """Begins with nothing, between two steps."""
        self._clear(self._job.step % 2)
        self._calls = {}

    def begin_micro_batch(self) -> None:
        """Begins a micro-batch of a step."""
        micro = self._job.micro
        assert micro is not None
        self._bank = self._job.step % 2
        if micro.first:
            self._calls = {}
            if not self._tracked:
                self._clear(self._bank)

    def _clear(self, bank: int) -> None:
        self._sums[bank].zero_()
        self._largest[bank].fill_(float("-inf"))

    def add(self, key: str, call: Call, value: torch.Tensor, weight: float | None) -> None:
        """Adds a value of a micro-batch."""
        self._calls[key] = call
        if key not in self._names:
            self._names.append(key)
            if len(self._names) > NAMES:
                raise RuntimeError(f"training_step logs more than {NAMES} values ({key!r}); log fewer of them")
        if not self._tracked and not self._job.samples:
            return
        place = self._names.index(key)
        value = value.detach().to(self._sums)
        samples = float(self._job.samples)
        weight = samples if weight is None else float(weight)
        sums = self._sums[self._bank, :, place]
        sums[WEIGHT] += weight
        sums[CALLS] += 1
        sums[HASH] += _hash(key)
        if call.kind in ("max", "min"):
            self._some_largest = True
            largest = self._largest[self._bank, place]
            torch.maximum(largest, value if call.kind == "max" else -value, out=largest)
        else:
            sums[VALUE] += value * weight if call.kind == "mean" else value
            sums[BY_SAMPLES] += value * samples
            sums[SAMPLES] += samples

    def take(self) -> list[tuple[Call, torch.Tensor, float]]:
        """Returns what the step has logged: each call, its value over the global batch, and the value's weight.

        Raises:
            RuntimeError: If ranks have logged different values.
        """
        calls, self._calls = self._calls, {}
        if not calls and not self._tracked:
            return []
        sums, largest = self._sums[self._bank], self._largest[self._bank]
        if not self._tracked:
            sums = self._job.reduce(sums, op="sum").to(sums)
            if self._some_largest:
                largest = self._job.reduce(largest, op="max").to(largest)
        sums, largest = sums.to("cpu", copy=True), largest.to("cpu", copy=True)
        places = {self._names.index(key): key for key in calls}
        for place in sums[CALLS].nonzero().flatten().tolist():
            key = places.get(place)
            if key is None or sums[HASH, place] != sums[CALLS, place] * _hash(key):
                mine = ", ".join(repr(call.arguments[1]) for call in calls.values()) or "nothing"
                raise RuntimeError(
                    f"training_step logs {mine} on this rank, and something else on others: what it logs must not "
                    "depend on the rank or on the data of a micro-batch; decide by self.global_step"
                )
        found = []
        for place, key in places.items():
            call, (value, weight, times, _, by_samples, samples) = calls[key], sums[:, place]
            if not times:
                continue  # all micro-batches that have logged it were left out
            if call.kind in ("max", "min"):
                value = largest[place] if call.kind == "max" else -largest[place]
            elif call.kind == "mean" and weight == times * self._job.global_batch_size:
                value, weight = by_samples / samples, weight / times  # batch_size= was meant for the whole step
            elif call.kind == "mean":
                value = value / weight
            found.append((call, value, float(weight)))
        return found


def _hash(key: str) -> int:
    return 1 + zlib.crc32(key.encode()) % HASHES


class ComparedResults(_ResultCollection):
    """Lightning's collection of what a loop logs. What is logged at an epoch's end must be equal on all ranks.

    Args:
        training: Whether the loop trains.
        alike: Returns a value that is the same on all ranks, given where it is logged, its name, and this rank's value.
    """

    def __init__(self, training: bool, alike: Callable[[str, str, torch.Tensor], torch.Tensor]) -> None:
        super().__init__(training=training)
        self._alike = alike

    def log(self, fx: str, name: str, value: Any, **named: Any) -> None:
        """Takes a value that the module logs."""
        if fx.endswith("epoch_end") and isinstance(value, torch.Tensor) and not named.get("rank_zero_only"):
            value = self._alike(fx, name, value)
        super().log(fx, name, value, **named)


class StepResults(ComparedResults):
    """Lightning's collection of what the training loop logs; while a micro-batch runs, `StepLogs` takes it.

    Args:
        alike: As in `ComparedResults`.

    Attributes:
        logs: Where to; None where Lightning takes what is logged at once.
        samples: How many samples the step has over all ranks.
    """

    def __init__(self, alike: Callable[[str, str, torch.Tensor], torch.Tensor]) -> None:
        super().__init__(True, alike)
        self.logs: StepLogs | None = None
        self.samples = 1
        self._recipes: dict[str, Call] = {}
        self._metrics: dict[str, tuple[Call, Metric]] = {}  # that were logged in this step

    def log(self, fx: str, name: str, value: Any, **named: Any) -> None:
        """Takes a value that the module logs."""
        if self.logs is None or not isinstance(value, (torch.Tensor, Metric)):
            self._log(Call((fx, name), named, ""), value)
            return
        if named.get("rank_zero_only"):
            raise ValueError(
                f"self.log({name!r}, rank_zero_only=True) in {fx}: each rank has a part of the global batch there; "
                "leave rank_zero_only out, and the value of the whole batch is logged, once"
            )
        if isinstance(value, Metric):
            self._metrics[f"{fx}.{name}"] = Call((fx, name), named, ""), value
            return
        kind = _kind(named.get("reduce_fx", torch.mean))
        self.logs.add(f"{fx}.{name}", Call((fx, name), named, kind), value, named.get("batch_size"))

    def end_step(self, logs: StepLogs, metrics: TrainingMetrics) -> None:
        """Logs what came of a whole step, as if one batch had been logged."""
        self.logs = None
        for call, value, weight in logs.take():
            named = {**call.named, "batch_size": weight, "sync_dist": False}
            self._log(Call(call.arguments, named, call.kind), value)
        logged, self._metrics = self._metrics, {}
        for call, metric in logged.values():
            if call.named.get("on_step"):
                metric._forward_cache = metrics.of_step(metric)  # type: ignore[assignment]
            self._log(call, metric)

    def _log(self, call: Call, value: Any) -> None:
        fx, name = call.arguments
        named = call.named
        if self.batch is not None and named.get("batch_size") is None:  # Lightning knows only a micro-batch of the step
            named = {**named, "batch_size": self.samples}
        super().log(fx, name, value, **named)
        if isinstance(value, torch.Tensor):
            self._recipes[".".join(call.arguments)] = call

    def kept(self) -> dict[str, Any]:
        """Returns the values of this epoch so far."""
        return {
            key: {
                "call": call.arguments,
                "named": {
                    **{name: given for name, given in call.named.items() if not callable(given)},
                    "reduce_fx": _kind(call.named.get("reduce_fx", torch.mean)),
                },
                "values": {name: getattr(self[key], name) for name in KEPT if hasattr(self[key], name)},
            }
            for key, call in self._recipes.items()
        }

    def take(self, kept: dict[str, Any], reduce: Callable[..., Any]) -> None:
        """Takes values that `kept` has returned."""
        self.clear()
        self._recipes = {}
        for key, one in kept.items():
            call = Call(one["call"], {**one["named"], "sync_dist_fn": reduce}, "")
            _ResultCollection.log(self, *call.arguments, one["values"]["value"], **call.named)  # compares nothing
            vars(self[key]).update(one["values"])
            self._recipes[key] = call


def _kind(reduce_fx: str | Callable[..., Any]) -> str:
    name = reduce_fx if isinstance(reduce_fx, str) else reduce_fx.__name__
    return {"avg": "mean"}.get(name.lower(), name.lower())
