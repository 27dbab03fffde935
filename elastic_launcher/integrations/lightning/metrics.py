"""Metrics of torchmetrics in a module: their states are sums, or largest values, over all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat, dim_zero_max, dim_zero_min, dim_zero_sum
from torchmetrics.wrappers import Running

KINDS: dict[Any, str] = {dim_zero_sum: "sum", dim_zero_max: "max", dim_zero_min: "min", dim_zero_cat: "cat"}

States = dict[str, dict[str, Any]]
"""By the metric's name in the module, and the state's."""


def metrics_of(module: nn.Module) -> dict[str, Metric]:
    """Returns the metrics in a module by name, each once."""
    return {name: one for name, one in module.named_modules() if isinstance(one, Metric)}


def kinds(metric: Metric) -> dict[str, str]:
    """Returns how each state of a metric is brought together: sum, max, min, cat, or "" where it can't be."""
    return {name: KINDS.get(how, "") for name, how in metric._reductions.items()}


def counts(metrics: dict[str, Metric]) -> dict[str, int]:
    """Returns how often each metric was updated since its last reset."""
    return {name: _updates(metric) for name, metric in metrics.items()}


def _updates(metric: Metric) -> int:
    """Returns how often a metric was updated since its last reset; a `Running` one counts for itself."""
    return int(metric._num_vals_seen if isinstance(metric, Running) else metric._update_count)


def copied(metrics: Iterable[tuple[str, Metric]]) -> States:
    """Returns copies of the states of metrics."""
    return {name: {state: _copy(getattr(metric, state)) for state in metric._reductions} for name, metric in metrics}


def set_states(metric: Metric, states: dict[str, Any]) -> None:
    """Gives a metric other states."""
    for state, value in states.items():
        setattr(metric, state, _copy(value))
    metric._computed = None
    metric._update_count = max(1, metric._update_count)


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else list(value)


def _refuse_running(name: str, metric: Metric) -> None:
    if isinstance(metric, Running):
        raise TypeError(
            f"the metric {name} ({type(metric).__name__}) covers the last updates, of which each rank makes others: "
            "use a metric of all updates of an epoch, such as MeanMetric; in a validation you may pass "
            "share_validation=False to ElasticStrategy"
        )


class TrainingMetrics:
    """The metrics that `training_step` updates.

    Args:
        module: The module that has them.

    Attributes:
        before: The states before the step that runs.
    """

    def __init__(self, module: nn.Module) -> None:
        self.metrics = metrics_of(module)
        self.before: States = {}
        self._known: dict[str, int] = {}
        self._reduced: dict[str, int] | None = None

    def tracked(self, kind: str) -> dict[str, torch.Tensor]:
        """Returns the states of one kind, for `job.track`."""
        return {
            f"{name}.{state}": getattr(metric, state)
            for name, metric in self.metrics.items()
            for state, how in kinds(metric).items()
            if how == kind and isinstance(getattr(metric, state), torch.Tensor)
        }

    def close(self) -> None:
        """Gives `job.track` nothing more: another `fit` has the same metrics."""
        self.metrics = {}

    def state_dict(self) -> dict[str, Any]:
        """Returns the states before the step that begins: a process that joins with it was not there then."""
        return {"before": self.before}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` has returned."""
        self.before = state["before"]

    def before_step(self) -> None:
        """Remembers the states between two steps."""
        sums = [(name, metric) for name, metric in self.metrics.items() if set(kinds(metric).values()) == {"sum"}]
        self.before = copied(sums)

    def note(self) -> None:
        """Remembers how often metrics were updated, before a micro-batch's `training_step`."""
        self._known, self._reduced = counts(self.metrics), None

    def note_backward(self) -> None:
        """Remembers it after a backward pass of manual optimization."""
        self._reduced = counts(self.metrics)

    def check(self) -> None:
        """Refuses metrics that were updated since `note` and can't come with a step's gradient.

        Raises:
            TypeError: For one with another state than sums and largest values.
            RuntimeError: For one that was updated after the last backward pass.
        """
        now = counts(self.metrics)
        for name, metric in self.metrics.items():
            if self._reduced is not None and now[name] != self._reduced[name]:
                raise RuntimeError(
                    f"training_step updates the metric {name} after its last manual_backward, with which metrics are "
                    "brought together over ranks: update it before"
                )
            if now[name] != self._known[name]:
                _refuse_running(name, metric)
            odd = [state for state, kind in kinds(metric).items() if kind not in ("sum", "max")]
            if odd and now[name] != self._known[name]:
                raise TypeError(
                    f"training_step updates the metric {name} ({type(metric).__name__}), whose state {odd[0]!r} is "
                    "neither a sum nor a largest value: each rank would have a part of it. Update it in "
                    "validation_step, or give it a fixed size (thresholds=100, say)"
                )

    def of_step(self, metric: Metric) -> torch.Tensor:
        """Returns the value of a metric over the step alone.

        Raises:
            TypeError: If it has states other than sums, or none of its own.
        """
        name = next(name for name, one in self.metrics.items() if one is metric)
        if set(kinds(metric).values()) != {"sum"}:
            raise TypeError(
                f"the metric {name} ({type(metric).__name__}) is logged with on_step=True, and its states are not all "
                "sums, or those of another metric: its value over one step is not known. Log it with on_step=False, "
                "on_epoch=True"
            )
        now, updates = copied([(name, metric)])[name], metric._update_count
        set_states(metric, {state: value - self.before[name][state] for state, value in now.items()})
        value: torch.Tensor = metric.compute()
        set_states(metric, now)
        metric._update_count = updates
        return value


class EvaluationMetrics:
    """The metrics that an evaluation updates, on this rank's batches.

    Args:
        module: The module that has them.
    """

    def __init__(self, module: nn.Module) -> None:
        self._metrics = metrics_of(module)
        self._before = copied(self._metrics.items())
        self._counts = counts(self._metrics)
        self._also: set[str] = set()  # metrics that another rank has updated
        self._forms: dict[str, torch.Tensor] = {}  # no rows, of the kind that there would be

    def forget(self) -> None:
        """Puts the states back that were there before."""
        self._forms |= self.updated()[1]
        for name, metric in self._updated().items():
            set_states(metric, self._before[name])

    def _updated(self) -> dict[str, Metric]:
        return {
            name: metric
            for name, metric in self._metrics.items()
            if _updates(metric) != self._counts[name] or name in self._also
        }

    def updated(self) -> tuple[list[str], dict[str, torch.Tensor]]:
        """Returns the metrics that this rank has updated, and of states that are rows none, of the kind they have."""
        names, forms = [], dict(self._forms)
        for name, metric in self._updated().items():
            names.append(name)
            for state, kind in kinds(metric).items():
                if kind == "cat" and isinstance(rows := getattr(metric, state), list) and rows:
                    forms[f"{name}.{state}"] = _rows(rows)[:0].cpu()
        return names, forms

    def update_also(self, updated: tuple[list[str], dict[str, torch.Tensor]]) -> None:
        """Counts metrics as updated that another rank has updated; takes what `updated` has returned there."""
        names, forms = updated
        self._also.update(names)
        self._forms |= forms

    def parts(self) -> dict[str, dict[str, torch.Tensor]]:
        """Returns what this rank has to bring together: sums, largest values, and rows, by name.

        Raises:
            TypeError: For a metric with states that can't be.
        """
        found: dict[str, dict[str, torch.Tensor]] = {"sum": {}, "max": {}, "cat": {}}
        for name, metric in self._updated().items():
            _refuse_running(name, metric)
            for state, kind in kinds(metric).items():
                value, key = getattr(metric, state), f"{name}.{state}"
                if not kind or (kind == "cat") != isinstance(value, list):
                    raise TypeError(
                        f"the metric {name} ({type(metric).__name__}) has a state {state!r} that can't be brought "
                        "together over ranks: pass share_validation=False to ElasticStrategy, so that each rank "
                        "evaluates all batches"
                    )
                if kind == "sum":
                    found["sum"][key] = value - self._before[name][state]
                elif kind == "cat":
                    new = value[len(self._before[name][state]) :]
                    found["cat"][key] = _rows(new) if new else self._forms[key]
                else:
                    found["max"][key] = value if kind == "max" else -value
        return found

    def take(self, whole: dict[str, dict[str, torch.Tensor]]) -> None:
        """Gives the metrics the states of all ranks."""
        for name, metric in self._updated().items():
            states: dict[str, Any] = {}
            for state, kind in kinds(metric).items():
                key, now, before = f"{name}.{state}", getattr(metric, state), self._before[name][state]
                if kind == "sum":
                    states[state] = before + whole["sum"][key].to(before)
                elif kind == "cat":
                    states[state] = [*before, whole["cat"][key]]
                else:
                    states[state] = (whole["max"][key] if kind == "max" else -whole["max"][key]).to(now)
            set_states(metric, states)


def _rows(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part if part.ndim else part[None] for part in parts])
