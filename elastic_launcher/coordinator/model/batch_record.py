"""Which changes of the global batch a job's events have recorded, and which have still to be.

Invariant: read in order, each recorded change replacing those at its step and after it, the events give the batch
schedule by which the job has trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from elastic_launcher.batch_schedule import BatchSchedule
from elastic_launcher.control.messages import BatchChanged
from elastic_launcher.events import Event


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """The recorded changes.

    Attributes:
        changes: Step and global batch of each, by rising steps.
        restarted: The step from which the job has restarted since the last one; None if it has not. Changes after that
            step did not happen in what it trains now.
    """

    changes: tuple[tuple[int, int], ...] = ()
    restarted: int | None = None

    @staticmethod
    def of(events: Iterable[Event]) -> BatchRecord:
        """Returns the record in a job's events."""
        record = BatchRecord()
        for event in events:
            if event.kind == "job_started":
                record = record.at_restart(event.get("resumed_step") or 0)
            elif event.kind in ("quota_wait", "nodes_wait") and event.get("step") is not None:
                record = record.at_restart(event["step"])
            elif event.kind == "generation_formed" and event.get("first_step") is not None:
                record = record._from(event["first_step"])
            elif event.kind == "batch_changed":
                record = record._with(event["step"], event["new"])
        return record

    def at_restart(self, step: int) -> BatchRecord:
        """Returns the record of a job that restarts from a step."""
        return replace(self, restarted=step)

    def _from(self, step: int) -> BatchRecord:
        """Returns the record of a job whose next step is this one: where changes came later, it has restarted."""
        undone = self.changes and step <= self.changes[-1][0]
        return self.at_restart(step) if undone and (self.restarted is None or step < self.restarted) else self

    def take(self, report: BatchChanged) -> tuple[BatchRecord, list[Mapping[str, Any]]]:
        """Returns the record after a report, and the fields of the events that are due."""
        record, events = self, list[Mapping[str, Any]]()
        schedule, step = BatchSchedule(report.entries), self.restarted
        if step is not None and record.changes and record._differs(step, schedule):
            before, size = record.changes[-1][1], schedule.batch_size(step)
            known = _rates(report, schedule.first_step(step))
            events.append(
                {"step": step, "old": before, "new": size, **known, "reason": f"the job restarted from step {step}"}
            )
            record = record._with(step, size)
        record = replace(record, restarted=None)
        for (_, old), (step, new) in pairwise(report.entries):
            if (step, new) not in record.changes:
                events.append({"step": step, "old": old, "new": new, **_rates(report, step)})
                record = record._with(step, new)
        if events and (events[-1]["step"], events[-1]["new"]) == report.entries[-1] and len(report.entries) > 1:
            why = {"noise_scale": report.noise_scale, "reason": report.reason or None}
            events[-1] = {**events[-1], **{name: value for name, value in why.items() if value is not None}}
        return record, events

    def _differs(self, step: int, schedule: BatchSchedule) -> bool:
        """Whether this says something else of a step than a schedule whose changes up to there it has."""
        last, recorded = self.changes[-1]
        has_all = all(entry in self.changes for entry in schedule.entries[1:] if entry[0] <= step)
        return last > step or (has_all and recorded != schedule.batch_size(step))

    def _with(self, step: int, size: int) -> BatchRecord:
        kept = tuple(change for change in self.changes if change[0] < step)
        return BatchRecord((*kept, (step, size)))


def _rates(report: BatchChanged, step: int) -> dict[str, Any]:
    """Returns what learning rates follow from a step on: the gains, and by which rule."""
    gains, rule = report.gains.get(step), report.learning_rate_rule
    known = {} if gains is None else {"gain": gains[0], "gains": list(gains[1:])}
    return {**known, **({"learning_rate_rule": rule} if rule else {})}
