"""Invariants of ``decide`` that hold whatever happens in whatever order."""

from __future__ import annotations

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.random_walk import Walk, histories

LIKELY = ["tick", "formed", "active", "active", "target", "gone", "left"] * 4 + ["warm", "complete"] * 12
FAILING = ["lost quota", "halted", "gone", "begun again", "notice", "expires", "stuck"]
FAILING += ["form_failed", "step_failed", "broken", "taken back", "taken back", "registered"]
KINDS = ["within", "within", "target", "waits", "waits", "gone"]
FATAL = ["killed", "agent", "exit", "failed", "done", "ended"]


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@example((1, 0, 2), 0.0, [("warm", 0, 0), ("complete", 0, 0), ("step_failed", 0, 0), ("ended", 0, 0)])
@example((2, 0, 1), 0.0, [("exit", 0, 0), ("notice", 0, 0)])
@example((2, 0, 2), 0.0, [("exit", 0, 0), ("notice", 0, 0)])
@example((2, 0, 1), 0.0, [("warm", 0, 0), ("warm", 1, 0), ("complete", 0, 0), ("taken back", 0, 0), ("expires", 0, 0)])
@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(1, 2)),
    wait=st.sampled_from([0.0, 600.0]),
    steps=st.one_of(histories(LIKELY), histories(LIKELY + FAILING + KINDS), histories(LIKELY + FAILING + FATAL)),
)
def test_the_laws_hold_over_any_history_and_every_job_ends(
    sizes: tuple[int, int, int], wait: float, steps: list[tuple[str, int, int]]
) -> None:
    minimum, more, nproc = sizes
    walk = Walk(minimum, minimum + more, nproc, wait)
    for what, which, amount in steps:
        walk.apply(what, which, amount)
    walk.let_it_end()
    assert walk.job.finish is not None
