"""A member of which nothing is heard is given up only while others wait for it."""

from __future__ import annotations

import pytest

from elastic_launcher.coordinator.observations import MemberSilent
from elastic_launcher.coordinator.silence import Silence
from tests.unit.coordinator.driver import Job, training


def silence_of(job: Job, frozen: int, waits: float, seconds: int, together: bool = False) -> list[MemberSilent]:
    """Returns what is observed while one member says nothing, and the others that they wait."""
    silence = Silence(10.0, 0.0)
    for number in job.state.group:
        silence.hear(number, 0.0)
    found = []
    for tick in range(1, 2 * seconds + 1):
        now = tick / 2
        for number in job.state.group:
            if number != frozen and not together:
                silence.hear(number, now, min(waits, now))
        found += silence.look(job.state, now)
    return found


def test_one_that_others_wait_for_is_given_up() -> None:
    job = training(3)
    found = silence_of(job, 2, waits=60.0, seconds=11)
    assert {(one.member, one.given_up) for one in found} == {(2, True)}
    job.feed(found[0])
    assert job.killed == [2]
    assert "gave no sign of life for 10 s while others waited for it" in job.events("node_lost")[0]["message"]
    job.break_step((1, 3), 1, 10)
    assert job.form.members == (1, 3)


@pytest.mark.parametrize(("waits", "together"), [(0.0, False), (2.0, False), (60.0, True)])
def test_one_that_nobody_waits_for_is_only_spoken_of(waits: float, together: bool) -> None:
    """The others train on, or are as silent: who is busy with a compile answers to nobody either."""
    found = silence_of(training(3), 2, waits, seconds=20, together=together)
    assert found and not any(one.given_up for one in found)


def test_the_only_member_is_never_given_up() -> None:
    assert not any(one.given_up for one in silence_of(training(1), 1, 60.0, seconds=30))


def test_a_machine_that_slept_has_not_lost_anybody() -> None:
    job, silence = training(2), Silence(10.0, 0.0)
    silence.hear(1, 0.1, 6.0)
    silence.hear(2, 0.1)
    silence.look(job.state, 0.2)
    silence.hear(1, 3600.0, 3600.0)
    assert silence.look(job.state, 3600.0) == []
