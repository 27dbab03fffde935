"""Whether a job that went through a schedule ended as if nothing had happened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from elastic_launcher.events import Event
from tests.chaos.lead import SCRIPT
from tests.chaos.schedule import Schedule
from tests.chaos.sharded import STOP
from tests.support.ledgers import (
    assert_each_sample_once,
    assert_plain_steps,
    assert_same_model,
    gains_of,
    read_ledgers,
    recorded,
    script_module,
    train_plain,
    without_lost,
)


def judge(folder: Path, told: list[Event], schedule: Schedule) -> int:
    """Judges what the ranks wrote; returns the number of steps.

    Args:
        folder: Of what they wrote.
        told: The job's events.
        schedule: What happened to it.

    Raises:
        AssertionError: If the final model is not the plain one, a sample was used twice or never, a micro-batch was too
            large, or ranks differed in a bit.
    """
    script = script_module(SCRIPT)
    events = [{"kind": event.kind, **event} for event in told]
    ledgers = _without_new_starts(without_lost(read_ledgers(folder), events), events)
    batch = recorded(events, schedule.batch) if schedule.adapts else schedule.batch
    steps = assert_each_sample_once(ledgers, script.SAMPLES, batch, schedule.micro)
    gains = gains_of(events) if schedule.adapts else None
    plain = train_plain(script.SAMPLES, batch, steps, gains=gains, path=SCRIPT)
    assert_same_model(folder, plain)
    if schedule.sharded:
        adopted = {event["first_step"] - 1 for event in events if event["kind"] == "generation_formed"}
        assert_plain_steps(ledgers, plain, adopted)
    _assert_equal_bits(_without_new_starts(without_lost(_evaluations(folder), events), events), script.SAMPLES)
    finished = [event["steps"] for event in events if event["kind"] == "job_finished"]
    ends = 1 + sum(act.kind == STOP for act in schedule.acts)
    assert finished[-1:] == [steps] and len(finished) == ends, f"{steps} steps counted, and the job says {finished}"
    return steps


def _without_new_starts(
    ledgers: list[list[dict[str, Any]]], events: list[dict[str, Any]]
) -> list[list[dict[str, Any]]]:
    """Leaves out the steps that were done again within a launch, from a checkpoint and by other nodes alone."""
    before, ever = set[int](), set[int]()
    for event in (event for event in events if event["kind"] == "generation_formed"):
        members = {member["member"] for member in event["members"]}
        if before and not before & members:
            step, old = event["first_step"], frozenset(ever)
            ledgers = [[row for row in rows if row["member"] not in old or row["step"] < step] for rows in ledgers]
        before, ever = members, ever | members
    return [rows for rows in ledgers if rows]


def _evaluations(folder: Path) -> list[list[dict[str, Any]]]:
    """Returns what each process noted at each evaluation: the last time, where the step was done again after it."""
    found: dict[tuple[int, str, int], dict[str, Any]] = {}
    for path in sorted(folder.glob("sums-*.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            found[row["member"], row["where"], row["step"]] = row
    return [[row] for row in found.values()]


def _assert_equal_bits(evaluations: list[list[dict[str, Any]]], samples: int) -> None:
    """Fails unless all ranks had the same state at each evaluation, and the same result of it over all samples."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for (row,) in evaluations:
        found.setdefault((row["where"], row["step"]), []).append(row)
    for (where, step), rows in found.items():
        parts = {row["part"] for row in rows}
        assert len({(row["part"], row["bits"]) for row in rows}) == len(parts), (
            f"ranks differ in their bits at step {step} ({where}): {rows}"
        )
        assert len({row["loss"] for row in rows}) == 1, f"ranks differ in their results at step {step}: {rows}"
        assert all(row["count"] == samples for row in rows), f"not all samples evaluated at step {step}: {rows}"
    assert any(where == "end" for where, _ in found), "no rank came to its end"
