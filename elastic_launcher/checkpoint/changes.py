"""Decides whether a job may resume from the checkpoint of a job that differs from it, and what it gives up then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from elastic_launcher.batch_schedule import BatchSchedule
from elastic_launcher.checkpoint.manifest import JobIdentity, Manifest, differ, differences

FLAG = "--accept-changes"
OTHERWISE = "make that the same again, or start a new training in another work directory"
OF_SCRIPT = ("global_batch_size", "seed", "dataset", "shuffle", "loader_seed", "drop_last")
"""What only the ranks know for sure; the launcher compares the rest before it starts them."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something that a user may accept: fields of the job's identity, and what does not hold any more then."""

    fields: tuple[str, ...]
    given_up: str


CHANGES = {
    "arguments": Change(("arguments",), "the script gets other arguments from here on"),
    "global-batch-size": Change(("global_batch_size",), "up to one batch of samples is seen twice in this epoch"),
    "seed": Change(("seed", "loader_seed"), "samples may be seen twice or not at all in this epoch"),
    "dataset": Change(
        ("dataset", "data", "shuffle", "drop_last"), "this epoch starts over, and its samples may be seen twice"
    ),
    "script": Change(("code",), "the steps so far were trained by another script"),
}
"""By the name that a user gives."""


def refusal(there: JobIdentity, here: JobIdentity, accepted: Sequence[str], among: Sequence[str] = ()) -> str:
    """Returns what differs and is not accepted, with the flag that would accept it; "" if nothing does.

    Args:
        there: Of the checkpoint.
        here: Of the job that wants to use it.
        accepted: Names of `CHANGES`.
        among: The fields that count; all if there are none.
    """
    past = {field for name in accepted for field in CHANGES[name].fields}
    fields = [field for field in among or JobIdentity.__slots__ if field not in past and differ(there, here, field)]
    if not fields:
        return ""
    said = "; ".join(differences(there, here, fields))
    names = [name for name, change in CHANGES.items() if set(change.fields) & set(fields)]
    if set(fields) - {field for name in names for field in CHANGES[name].fields}:
        return said
    losses = "; ".join(CHANGES[name].given_up for name in names)
    return f"{said} ({FLAG} {','.join([*accepted, *names])} goes on all the same, and gives up: {losses})"


@dataclass(frozen=True, slots=True)
class Resumed:
    """The checkpoint that a job resumes from: whose it is, what may differ by name, and where it is."""

    job: JobIdentity
    accepted: tuple[str, ...]
    path: str

    def refuse(self, fingerprint: Mapping[str, Any]) -> str:
        """Returns why a rank that trains what ``fingerprint`` says can't go on from it; "" if it can."""
        here = replace(self.job, **{name: fingerprint[name] for name in OF_SCRIPT if name in fingerprint})
        different = refusal(self.job, here, self.accepted, OF_SCRIPT)
        return f"this job can't go on from {self.path}: {different}; {OTHERWISE}" if different else ""


def step_in_epoch(manifest: Manifest, here: JobIdentity) -> int:
    """Returns which step of its epoch comes next, in a job that may have another batch or data set."""
    there = manifest.job
    if any(differ(there, here, field) for field in CHANGES["dataset"].fields):
        return 0
    if not differ(there, here, "global_batch_size"):
        return manifest.step_in_epoch
    samples = manifest.schedule.samples(manifest.step - manifest.step_in_epoch, manifest.step)
    return BatchSchedule.fixed(here.global_batch_size).whole_steps(0, samples)
