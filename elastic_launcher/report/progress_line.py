"""The progress line of a training for people and programs, and when a log shows it.

Invariant: each change of the membership or of the hint's numbers is shown once, with numbers of the new membership if
the script logs any; and while the training runs no `EVERY_SECONDS` pass without a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from elastic_launcher.report.state import JobState

EVERY_SECONDS = 30.0
"""Between two lines while nothing changes: a log stays readable, and nobody thinks that the training hangs."""

ADAPTIVE = ("batch", "lr_factor", "noise_scale", "efficiency")
"""The values of an adaptive batch that a line shows."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the last line showed.

    Attributes:
        at: When, in monotonic seconds; before the first line, when the training was last seen not to go on.
        generation: The membership that its numbers are of.
        quota: The hint's numbers.
    """

    at: float
    generation: int = 0
    quota: Mapping[str, int] = field(default_factory=dict)


def tell(told: Told, state: JobState, now: float) -> tuple[Told, str]:
    """Returns what is shown after a look at a job, and the line that is due now; empty while none is.

    ``told`` is what was shown before, ``now`` in monotonic seconds.
    """
    if state.outcome == "waiting" and state.lacks == "nodes":
        return (replace(told, at=now), progress_line(state)) if now - told.at >= EVERY_SECONDS else (told, "")
    if state.outcome != "running" or not state.world_size:
        return replace(told, at=now), ""
    changed = (state.generation, state.quota) != (told.generation, told.quota)
    with_numbers = state.timed_generation == state.generation
    if (changed and with_numbers) or now - told.at >= EVERY_SECONDS:
        return Told(now, state.timed_generation, state.quota), progress_line(state)
    return told, ""


def progress_line(state: JobState) -> str:
    """Returns ``progress`` and what is known, as ``key=value`` without spaces in it."""
    total = state.total_steps or 0
    placed = state.step or total or state.timed_generation  # a stock script reports neither epoch nor step
    fields = {
        "percent": f"{min(1000, 1000 * state.step // total) / 10}" if total else "",  # 100.0 only of what is over
        "remaining": "" if state.seconds_left is None else _span(state.seconds_left),
        **(_epochs(state) if placed else {}),
        "step": f"{state.step}" + (f"/{total}" if total else "") if placed else "",
        "waiting_for": state.lacks,
        "generation": "" if state.lacks else f"{state.generation}",
        "world_size": "" if state.lacks else f"{state.world_size}",
        **{name: f"{value}" for name, value in state.quota.items()},
        "admitted": "" if state.admitted is None else f"{state.admitted}",
        "pending_nodes": f"{len(state.pending)}" if state.pending else "",
        "loss": _number(state.loss),
        "samples_per_second": "" if state.lacks else _number(state.samples_per_second),
        **{name: _number(state.adaptive.get(name)) for name in ADAPTIVE},
        "slow_ranks": _ranks(state, state.stragglers),
        "silent_ranks": _ranks(state, state.silent),
    }
    return " ".join(["progress", *(f"{key}={value}" for key, value in fields.items() if value)])


def _epochs(state: JobState) -> dict[str, str]:
    """Returns the epoch; where the batch adapts, the pass over the data, and the statistical epochs, which end it."""
    total = f"/{state.epochs}" if state.epochs else ""
    if state.statistical_epoch is None:
        return {"epoch": f"{state.epoch + 1}{total}"}
    return {"epoch": f"{state.epoch + 1}", "statistical_epoch": f"{state.statistical_epoch:.2f}{total}"}


def _ranks(state: JobState, among: Iterable[int]) -> str:
    """Returns the ranks of members, in their order, with commas between."""
    ranks = {member["member"]: rank for rank, member in enumerate(state.members)}
    return ",".join(str(ranks[member]) for member in sorted(among) if member in ranks)


def _number(value: float | str | None) -> str:
    """Returns a number with four digits or all digits before its point; a text unchanged; and nothing for None."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def _span(seconds: float) -> str:
    """Returns a time span in hours, minutes and seconds, of which the larger ones may be missing: ``2h5m20s``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{rest}s"
