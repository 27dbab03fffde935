"""What the coordinator takes of a call of the control API, and answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_launcher.config import JobConfig
from elastic_launcher.control.requests import Heartbeat
from elastic_launcher.coordinator.api.handlers import JobHandlers
from elastic_launcher.coordinator.api.rejoin import Rejoin
from elastic_launcher.coordinator.api.worker_events import WorkerEvents
from elastic_launcher.coordinator.health.monitor import Watch
from elastic_launcher.coordinator.model.observations import MemberSilent, NodeSilent
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.workdir import Layout
from tests.support.played_job import Job, training

LONGEST = 60.0


class Watched:
    """A job, and who looks after its members."""

    checkpoint = None

    def __init__(self, job: Job) -> None:
        self.job = job
        self.watch = Watch(10.0, 60.0, job.now, LONGEST)

    @property
    def state(self) -> State:
        return self.job.state


@pytest.fixture
def watched() -> Watched:
    """Returns a job that trains on node 1 and has asked for node 2."""
    job = training(1, replaces_noticed=True)
    job.target(2)
    return Watched(job)


def desk_of(watched: Watched, folder: Path) -> JobHandlers:
    job, config = watched.job, JobConfig(script="train.py", min_nodes=1, max_nodes=4)
    lives = WorkerEvents(job.feed, lambda: job.now)
    return JobHandlers(config, Layout(folder), watched, job.feed, lives, "localhost:1", 1, lambda: job.now)


def test_an_agent_that_freezes_after_its_registration_is_given_up_as_a_silent_one(
    watched: Watched, tmp_path: Path
) -> None:
    job, began = watched.job, watched.job.now
    assert desk_of(watched, tmp_path).register(2, "a") == 2
    looks = (watched.watch.look(watched.state, began + second / 2) for second in range(1, 130))
    found = [one for look in looks for one in look if isinstance(one, NodeSilent)]
    assert {one.node for one in found} == {2} and found[0].now - began == LONGEST + 0.5
    job.feed(found[0])
    assert job.killed == [2]


def test_a_pod_of_a_node_that_trains_in_another_is_refused(watched: Watched, tmp_path: Path) -> None:
    desk = desk_of(watched, tmp_path)
    desk.register(2, "a")
    watched.job.warm(2)
    watched.job.tick(5)
    watched.job.complete(20)
    with pytest.raises(LookupError, match="node 2 trains in another pod: pod b is not wanted any more"):
        desk.register(2, "b")


def test_the_cpu_figures_of_a_heartbeat_that_a_takeover_held_do_not_count_as_new(
    watched: Watched, tmp_path: Path
) -> None:
    job, began, handlers = watched.job, watched.job.now, desk_of(watched, tmp_path)
    held: list[Callable[[], object]] = []
    handlers.hear(1)
    Rejoin(handlers, held.append, lambda member: False).heartbeat(1, Heartbeat(pid=7, notices=1, cpu={1: 10.0}))
    job.now = began + 40.0
    for take in held:
        take()
    job.now = began + 42.0
    handlers.heartbeat(1, Heartbeat(pid=7, cpu={1: 10.5}))  # 0.5 s of CPU in 42 s: it does not compute
    looks = (watched.watch.look(watched.state, began + second / 2) for second in range(1, 130))
    found = [one for look in looks for one in look if isinstance(one, MemberSilent) and one.given_up]
    assert found[0].now - began == LONGEST + 0.5
    assert [event["node"] for event in job.events("notice")] == [1]
