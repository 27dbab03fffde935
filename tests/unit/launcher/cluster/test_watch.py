"""When it is said why nodes wait, and when a launcher leaves a job alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_launcher.coordinator.model.observations import StopAsked
from elastic_launcher.engines.kubernetes.leadership.leadership import LeadershipLost, ServiceDeleted
from elastic_launcher.engines.kubernetes.leadership.owner_state import Order, Verdict
from elastic_launcher.engines.kubernetes.nodes.pod_status import Cause, Leaving, Running, Standing, Waiting
from elastic_launcher.kube.api import ApiError
from elastic_launcher.kube.collection import Snapshot
from elastic_launcher.launcher.cluster import watch as cluster_watch
from elastic_launcher.launcher.cluster.watch import PENDING_SECONDS, ClusterWatch, PendingLine
from elastic_launcher.workdir import Layout

RUNS = Running("digits-x-1-abcde", "node-1")
WAITS = Waiting(Cause.ROOM, "0/2 nodes are available")


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_reason_that_lasts_is_told_once_and_one_that_passes_never() -> None:
    clock = Clock()
    line = PendingLine(clock)

    def after(seconds: float, *standings: Standing) -> str:
        clock.now += seconds
        return line.take(dict(enumerate(standings, start=1)), True)

    assert after(0, RUNS, Waiting(Cause.STARTING, "its container is being started")) == ""
    assert after(PENDING_SECONDS - 1, RUNS, WAITS) == ""
    assert after(PENDING_SECONDS - 1, RUNS, WAITS) == ""
    assert after(1, RUNS, WAITS).startswith("1 of 2 nodes pending: 0/2 nodes are available. Training goes on with 1")
    assert after(100, RUNS, WAITS) == ""
    assert after(1, RUNS, RUNS) == ""
    assert after(1, RUNS, WAITS) == ""
    assert after(PENDING_SECONDS, RUNS, WAITS).startswith("1 of 2 nodes pending")


class Job:
    """A coordinator, whose watch may find that it stops."""

    def __init__(self, stops: bool) -> None:
        self.left: list[str] = []
        self.notes: list[Any] = []
        self.judged = asyncio.Event()
        self.told = asyncio.Event()
        self._stops = stops

    @property
    def state(self) -> SimpleNamespace:
        asyncio.get_running_loop().call_soon(self.judged.set)
        return SimpleNamespace(nodes={}, generation=0, finished=False, stopping="deleted" if self._stops else None)

    def leave(self, why: str, close: Callable[[], None]) -> None:
        self.left.append(why)
        self.told.set()

    def note(self, kind: str, **fields: Any) -> None:
        self.notes.append((kind, fields))
        self.told.set()

    def observe(self, make: Callable[[float], Any]) -> None:
        """Keeps it for later: it is not known yet where the job stands."""


def claim(pod: dict[str, Any]) -> Any:
    """Returns what a launcher in that pod has in the cluster, as far as a watch looks."""
    context = SimpleNamespace(namespace="ml", names=None, owner=None, pod=pod, lacking=[])
    return SimpleNamespace(context=context, record=SimpleNamespace(status={}))


async def watched(job: Any, engine: Any, folder: Path, until: asyncio.Event) -> None:
    """Watches a job until that happens."""
    login: Any = None
    watch = asyncio.create_task(ClusterWatch(login, claim({}), engine, Layout(folder)).run(job))
    await asyncio.wait_for(until.wait(), 30.0)
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)


def test_a_signal_says_how_long_its_pod_has_until_it_is_killed(tmp_path: Path) -> None:
    metadata = {"name": "train-1", "namespace": "ml", "uid": "1"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"terminationGracePeriodSeconds": 45}}
    seen: list[Any] = []
    job: Any = SimpleNamespace(observe=lambda make: seen.append(make(7.0)))
    nobody: Any = None
    watch = ClusterWatch(nobody, claim(pod), nobody, Layout(tmp_path))

    async def steps() -> None:
        for _ in range(3):  # whoever is impatient may signal it again
            await watch.signalled(job)

    asyncio.run(steps())
    why = "stopped: SIGTERM, and it can't be read whether the step is stopped or moved"
    assert seen == [StopAsked(7.0, why, 45.0)] * 3


class Lost:
    """A leadership whose Service is gone, and whoever else asks the cluster, for ever."""

    def __init__(self, *arguments: Any) -> None:
        pass

    async def __aenter__(self) -> Lost:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def run(self, api: Any, tell: Callable[[Any], None]) -> None:
        await asyncio.Event().wait()

    async def publish(self, status: dict[str, Any]) -> None:
        raise ApiError(404, "NotFound", "there is no Service train-1")

    async def follow(self) -> AsyncIterator[Any]:
        raise ServiceDeleted("Service train-1 was deleted")
        yield

    async def restore(self, owner: Any, ports: Any) -> None:
        raise AssertionError("it is not to be made again")


class Ends(Lost):
    """An owner that ends."""

    grace = 30.0

    async def run(self, api: Any, tell: Callable[[Any], None]) -> None:
        tell(Verdict(Order.STOP, "Job train is being deleted"))


def put_in_place(monkeypatch: pytest.MonkeyPatch, leadership: type[Lost], owner: type[Lost] = Lost) -> None:
    """Has watches meet such a leadership and such an owner, in a cluster that grants nothing and takes no time."""

    async def lacks_all(api: Any, asked: list[Any]) -> list[Any]:
        return asked

    for name, stand_in in (("Api", Lost), ("Leadership", leadership), ("OwnerWatch", owner)):
        monkeypatch.setattr(cluster_watch, name, stand_in)
    monkeypatch.setattr(cluster_watch, "lacks", lacks_all)
    monkeypatch.setattr(cluster_watch, "OWNER_SECONDS", 0.0)


ENGINE: Any = SimpleNamespace(standings=dict, leave=lambda: None)


@pytest.mark.parametrize(("stops", "owner"), [(True, Lost), (False, Ends)])
def test_a_job_that_is_being_stopped_needs_no_service_any_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stops: bool, owner: type[Lost]
) -> None:
    put_in_place(monkeypatch, Lost, owner)
    job: Any = Job(stops)
    asyncio.run(watched(job, ENGINE, tmp_path, job.judged))
    assert (job.left, job.notes) == ([], [])


class Restored(Lost):
    """A leadership whose Service can be made again, at the second try."""

    record = SimpleNamespace(address="10.96.0.7")

    def __init__(self, *arguments: Any) -> None:
        self.tries = 0

    async def restore(self, owner: Any, ports: Any) -> None:
        self.tries += 1
        if self.tries == 1:
            raise ApiError(503, "ServiceUnavailable", "starting")

    async def follow(self) -> AsyncIterator[Any]:
        if self.tries < 2:
            raise ServiceDeleted("Service train-1 was deleted")
        await asyncio.Event().wait()
        yield


def test_a_service_that_is_all_that_was_deleted_is_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_in_place(monkeypatch, Restored)
    job: Any = Job(stops=False)
    asyncio.run(watched(job, ENGINE, tmp_path, job.told))
    said = "Service train-1 was deleted: it was made again at the same address, 10.96.0.7"
    assert (job.left, job.notes) == ([], [("warning", {"message": said})])


class Taken(Lost):
    """A leadership whose Service's address is somebody else's by now."""

    async def restore(self, owner: Any, ports: Any) -> None:
        raise ApiError(422, "Invalid", "provided IP is already allocated")


class Deputy(Lost):
    """A leadership that another coordinator has taken, which only whoever writes there is told."""

    async def follow(self) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield

    async def publish(self, status: dict[str, Any]) -> None:
        raise LeadershipLost("another coordinator governs the job: term 3, and this one's is 2")


@pytest.mark.parametrize(
    ("leadership", "why"),
    [
        (Taken, "Service train-1 was deleted, and can't be made again (provided IP is already allocated)"),
        (Deputy, "another coordinator governs the job: term 3, and this one's is 2"),
    ],
)
def test_a_job_that_this_launcher_governs_no_more_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, leadership: type[Lost], why: str
) -> None:
    put_in_place(monkeypatch, leadership)
    job: Any = Job(stops=False)
    asyncio.run(watched(job, ENGINE, tmp_path, job.told))
    assert job.left == [f"{why}: this launcher leaves the job as it is"]


class Watching(Job):
    """A coordinator of one node, that is told what happens to it."""

    def __init__(self) -> None:
        super().__init__(stops=False)
        self.noticed = asyncio.Event()

    @property
    def state(self) -> SimpleNamespace:
        return SimpleNamespace(nodes={1: None}, generation=1)

    def observe(self, make: Callable[[float], Any]) -> None:
        if "Karpenter" in getattr(make(0.0), "source", ""):
            self.noticed.set()


class Kept(Lost):
    """A leadership that nothing happens to."""

    async def publish(self, status: dict[str, Any]) -> None:
        pass

    async def follow(self) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield


def test_machines_are_followed_as_soon_as_that_is_granted_whatever_was_answered_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers: list[Any] = [ApiError(0, "Unreachable", "connection reset"), ["nodes"], []]

    async def lacks(api: Any, asked: list[Any]) -> list[Any]:
        answer = answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return list(answer)

    async def changes(api: Any, collection: Any) -> AsyncIterator[Any]:
        yield Snapshot([{"metadata": {"name": "node-1"}, "spec": {"taints": [{"key": "karpenter.sh/disrupted"}]}}])
        await asyncio.Event().wait()

    for name in ("Api", "Leadership", "OwnerWatch"):
        monkeypatch.setattr(cluster_watch, name, Kept)
    monkeypatch.setattr(cluster_watch, "lacks", lacks)
    monkeypatch.setattr(cluster_watch, "changes", changes)
    monkeypatch.setattr(cluster_watch, "ASK_AGAIN_SECONDS", 0.01)
    engine: Any = SimpleNamespace(standings=lambda: {1: RUNS}, leave=lambda: None)
    job: Any = Watching()

    asyncio.run(watched(job, engine, tmp_path, job.noticed))
    assert answers == []


def test_where_a_node_runs_is_said_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_in_place(monkeypatch, Kept)
    monkeypatch.setattr(cluster_watch, "LOOK_SECONDS", 0.0)
    looks = [{1: RUNS}, {1: Leaving("its pod is being deleted", 30)}, {1: RUNS}]
    seen = asyncio.Event()

    def standings() -> dict[int, Standing]:
        if not looks:
            seen.set()
        return dict(looks.pop(0)) if looks else {}

    engine: Any = SimpleNamespace(standings=standings, leave=lambda: None)
    job: Any = Watching()
    asyncio.run(watched(job, engine, tmp_path, seen))
    placed = {"node": 1, "pod": "digits-x-1-abcde", "machine": "node-1"}
    assert [fields for kind, fields in job.notes if kind == "node_placed"] == [placed]
