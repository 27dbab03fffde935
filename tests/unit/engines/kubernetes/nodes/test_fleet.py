"""What a fleet makes of answers that cross each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from elastic_launcher.coordinator.model.deadlines import EXIT_SECONDS
from elastic_launcher.engines import NodeSpec
from elastic_launcher.engines.kubernetes.engine import CLOSE_SECONDS
from elastic_launcher.engines.kubernetes.nodes.pod_status import Cause, Running, Waiting
from elastic_launcher.engines.kubernetes.objects.job import node_job
from elastic_launcher.kube.api import ApiError
from elastic_launcher.kube.follow import GONE
from tests.support.fleets import AWAY, QUOTA, Full, Refusing, following
from tests.support.pod_templates import plan, template


class Crossing:
    """An API that takes a Job only after Jobs were listed once more, as one that comes back after an absence may."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.asked = asyncio.Event()
        self.listed = asyncio.Event()
        self.looked = asyncio.Event()
        self.watches = 0

    async def request(self, method: str, path: str, *args: Any, **more: Any) -> dict[str, Any]:
        folder, _, name = path.rpartition("/")
        if method == "POST":
            self.asked.set()
            await self.listed.wait()
            self.jobs[args[0]["metadata"]["name"]] = args[0]
            return dict(args[0])
        if folder.endswith("/jobs"):
            self.looked.set()
            if name in self.jobs:
                return self.jobs[name]
            raise ApiError(404, "NotFound", f"there is no {name}")
        items = list(self.jobs.values()) if name == "jobs" else []
        return {"metadata": {"resourceVersion": "1"}, "items": items}

    async def watch(self, path: str, *args: Any) -> AsyncGenerator[dict[str, Any], None]:
        if path.endswith("/jobs"):
            self.watches += 1
            await self.asked.wait()
            if self.watches == 1:
                raise ApiError(GONE, "Expired", "too old resource version")
            self.listed.set()
        await asyncio.Event().wait()
        yield {}


class Trained(Full):
    """An API whose pods have trained to their end, beside a sidecar that goes on; it takes its time to delete Jobs."""

    def __init__(self) -> None:
        super().__init__(refusals=0)
        self.asked = asyncio.Event()
        self.let = asyncio.Event()

    def next_state(self) -> dict[str, Any]:
        ended = [{"name": "node", "state": {"terminated": {"exitCode": 0}}}]
        return {"phase": "Running", "containerStatuses": [*ended, {"name": "sidecar", "state": {"running": {}}}]}

    async def request(self, method: str, path: str, body: Any = None, *more: Any, **query: Any) -> dict[str, Any]:
        if method == "DELETE":
            self.asked.set()
            await self.let.wait()
        return await super().request(method, path, body, *more, **query)


def test_the_jobs_of_nodes_that_ended_by_themselves_are_deleted_before_the_cluster_is_left() -> None:
    async def steps() -> None:
        api = Trained()
        async with following(api) as fleet:
            await fleet.start(NodeSpec(1, 1, 1))
            await api.asked.wait()
            assert [ended.exit_code for ended in fleet.take_exits()] == [0]
            leaving = asyncio.create_task(fleet.end_all())
            for _ in range(10):
                await asyncio.sleep(0)
            assert not leaving.done() and not api.deleted
            api.let.set()
            await leaving
            assert api.deleted == api.made

    asyncio.run(steps())


class Silent(Full):
    """An API whose machine ends no pod: it has to be told to forget them."""

    def __init__(self) -> None:
        super().__init__(refusals=0)
        self.graces: list[int] = []

    async def request(self, method: str, path: str, body: Any = None, *more: Any, **query: Any) -> dict[str, Any]:
        if method == "DELETE" and "gracePeriodSeconds" in body:
            self.graces.append(body["gracePeriodSeconds"])
        return await super().request(method, path, body, *more, **query)


def test_nodes_of_a_silent_machine_are_forgotten_before_the_time_to_end_all_is_over() -> None:
    async def steps() -> None:
        api = Silent()
        async with following(api) as fleet:
            await fleet.start(NodeSpec(1, 1, 1))
            while not isinstance(fleet.standings()[1], Running):
                await asyncio.sleep(0.01)
            await fleet.end_all(within=0.5)
            assert api.graces == [1, 0]

    asyncio.run(steps())


def test_a_launcher_that_is_stopped_has_ended_its_nodes_before_it_is_killed() -> None:
    assert CLOSE_SECONDS < EXIT_SECONDS


class Unread(Refusing):
    """An API that answers so when it is asked for events, before it tells them."""

    def __init__(self, *answers: ApiError) -> None:
        super().__init__()
        self.told = list(answers)

    async def request(self, method: str, path: str, body: Any = None, *more: Any, **query: Any) -> dict[str, Any]:
        if not path.endswith("/events"):
            return await super().request(method, path, body, *more, **query)
        if self.told:
            raise self.told.pop(0)
        return {"items": []}


@pytest.mark.parametrize("status", [0, 403, 429, 500])
def test_events_that_could_not_be_read_are_asked_for_again(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EXPLAIN_SECONDS", "EXPLAIN_AGAIN_SECONDS"):
        monkeypatch.setattr(f"elastic_launcher.engines.kubernetes.nodes.explanations.{name}", 0.01)

    async def steps() -> None:
        api = Unread(*[ApiError(status, "", "not now")] * 3)
        async with following(api) as fleet:
            await fleet.start(NodeSpec(1, 1, 1))
            while api.told:
                await asyncio.sleep(0.01)
            assert fleet.take_exits() == []

    asyncio.run(steps())


class Explained(Unread):
    """An API that tells the events of whatever is asked for, and whose Jobs get no pods."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.shown: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def watch(self, path: str, *args: Any) -> AsyncGenerator[dict[str, Any], None]:
        while path.endswith("/jobs"):
            yield {"type": "ADDED", "object": await self.shown.get()}
        await asyncio.Event().wait()

    async def request(self, method: str, path: str, body: Any = None, *more: Any, **query: Any) -> dict[str, Any]:
        if method == "POST":
            await self.shown.put({**body, "metadata": body["metadata"] | {"resourceVersion": "2"}})
        if not path.endswith("/events"):
            return await super().request(method, path, body, *more, **query)
        name = query["query"]["fieldSelector"].removeprefix("involvedObject.name=")
        self.asked.append(name)
        why = f'Error creating: pods "{name}-a" is forbidden: exceeded quota: pods'
        return {"items": [{"reason": "FailedCreate", "message": why, "lastTimestamp": "2026-11-22T09:00:00Z"}]}


def test_of_nodes_that_wait_alike_the_events_of_one_tell_why_all_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.engines.kubernetes.nodes.explanations.EXPLAIN_SECONDS", 0.01)

    async def steps() -> None:
        api = Explained()
        async with following(api) as fleet:
            for node in range(1, 9):
                await fleet.start(NodeSpec(node, node, 1))
            explained = Waiting(Cause.QUOTA, "exceeded quota: pods")
            while set(fleet.standings().values()) != {explained}:
                await asyncio.sleep(0.01)
            before = len(api.asked)
            while len(api.asked) < before + 3:
                await asyncio.sleep(0.01)
            assert set(api.asked) == {"digits-x-1"}

    asyncio.run(steps())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.engines.kubernetes.nodes.fleet.ASK_AGAIN_SECONDS", 0.01)


def test_a_node_whose_job_a_quota_refuses_waits_and_is_made_once_it_may_be() -> None:
    async def steps() -> None:
        api = Refusing(*[ApiError(403, "Forbidden", QUOTA)] * 3)
        async with following(api) as fleet:
            await fleet.start(NodeSpec(1, 1, 1))
            why = QUOTA.partition("is forbidden: ")[2]
            assert fleet.standings() == {1: Waiting(Cause.QUOTA, why)}
            while not api.made:
                await asyncio.sleep(0.01)
            assert fleet.take_exits() == []
        assert api.answers == []

    asyncio.run(steps())


WEBHOOK = 'admission webhook "queue.example" denied the request: not now'
POLICY = 'jobs.batch "digits-x-1" is forbidden: ValidatingAdmissionPolicy "p" with binding "b" denied request: not now'


@pytest.mark.parametrize(("status", "said"), [(400, WEBHOOK), (403, WEBHOOK), (422, POLICY)])
def test_a_node_whose_job_admission_refuses_waits_with_whatever_code_it_does(status: int, said: str) -> None:
    async def steps() -> None:
        api = Refusing(*[ApiError(status, "", said)] * 3)
        async with following(api) as fleet:
            await fleet.start(NodeSpec(1, 1, 1))
            assert fleet.standings() == {1: Waiting(Cause.REFUSED, said.removeprefix(POLICY.partition("Valid")[0]))}
            while not api.made:
                await asyncio.sleep(0.01)
            assert fleet.take_exits() == []

    asyncio.run(steps())


def test_a_quota_that_many_jobs_are_charged_to_at_once_costs_nobody_a_node() -> None:
    crossed = 'Operation cannot be fulfilled on resourcequotas "jobs": the object has been modified'

    async def steps() -> None:
        api = Refusing(ApiError(409, "Conflict", crossed))
        async with following(api) as fleet:
            await fleet.start(NodeSpec(1, 1, 1))
        assert api.made == ["digits-x-1"]

    asyncio.run(steps())


def test_an_api_server_that_knows_no_accounts_yet_costs_a_node_that_waits_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("elastic_launcher.engines.kubernetes.nodes.fleet.insist", lambda call, *pauses: call())

    async def steps() -> None:
        api = Refusing(ApiError(403, "Forbidden", QUOTA), ApiError(401, "Unauthorized", "Unauthorized"))
        async with following(api) as fleet:
            await fleet.start(NodeSpec(1, 1, 1))
            while not api.made:
                await asyncio.sleep(0.01)
            assert fleet.take_exits() == []

    asyncio.run(steps())


def test_of_nodes_that_wait_for_their_jobs_one_is_asked_for_at_a_time_the_oldest_first() -> None:
    async def steps() -> None:
        refusal = ApiError(403, "Forbidden", QUOTA)
        api = Refusing(*[refusal] * 4)
        async with following(api) as fleet:
            for node in (1, 2, 3):
                await fleet.start(NodeSpec(node, node, 1))
            while len(api.made) < 3:
                await asyncio.sleep(0.01)
        assert api.made == [f"digits-x-{node}" for node in (1, 2, 3)]

    asyncio.run(steps())


def test_a_node_that_is_unwanted_before_its_job_is_made_is_gone_and_nobody_failed() -> None:
    async def steps() -> None:
        api = Refusing(*[ApiError(403, "Forbidden", QUOTA)] * 1000)
        async with following(api) as fleet:
            await fleet.start(NodeSpec(1, 1, 1))
            fleet.kill(1)
            while not (told := fleet.take_exits()):
                await asyncio.sleep(0.01)
            assert (told[0].node, told[0].taken, fleet.standings()) == (1, True, {})
        assert api.made == []

    asyncio.run(steps())


def test_one_that_can_not_be_made_at_all_after_a_while_has_failed() -> None:
    async def steps() -> None:
        api = Refusing(ApiError(403, "Forbidden", QUOTA), ApiError(422, "Invalid", "no such class"))
        async with following(api) as fleet:
            await fleet.start(NodeSpec(1, 1, 1))
            while not (told := fleet.take_exits()):
                await asyncio.sleep(0.01)
            assert (told[0].why, told[0].taken) == ("its Job could not be made: no such class", False)

    asyncio.run(steps())


@pytest.mark.parametrize("answers", [[AWAY], [ApiError(403, "Forbidden", QUOTA), AWAY]])
def test_an_answer_that_was_lost_is_no_job_of_somebody_else(answers: list[ApiError]) -> None:
    async def steps() -> None:
        api = Refusing(*answers)
        async with following(api) as fleet:
            await fleet.start(NodeSpec(1, 1, 1))
            while fleet.standings()[1] != Waiting(Cause.STARTING, "its Job is being made"):
                await asyncio.sleep(0.01)
            assert fleet.take_exits() == []

    asyncio.run(steps())


def test_a_job_of_that_name_that_is_somebody_elses_is_left_alone() -> None:
    async def steps() -> None:
        api = Refusing(ApiError(409, "AlreadyExists", "digits-x-1 already exists"))
        async with following(api) as fleet:
            with pytest.raises(ApiError, match="already exists"):
                await fleet.start(NodeSpec(1, 1, 1))
            assert fleet.standings() == {}
        assert api.deleted == []

    asyncio.run(steps())


def test_a_node_whose_job_is_made_after_a_list_is_not_gone() -> None:
    async def steps() -> None:
        api = Crossing()
        async with following(api) as fleet:
            await fleet.start(NodeSpec(1, 1, 1))
            await api.looked.wait()  # the list's word alone would have it gone
            while not (told := fleet.take_exits()) and fleet.standings()[1].why == "its Job is being made":
                await asyncio.sleep(0.01)
            assert told == []

    asyncio.run(steps())


class Queueing(Refusing):
    """An API of which a queue has taken a Job back, and that shows its pod's end before it shows that."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: dict[str, asyncio.Queue[dict[str, Any]]] = {"jobs": asyncio.Queue(), "pods": asyncio.Queue()}
        self.job: dict[str, Any] = {}
        self.pods: list[dict[str, Any]] = []

    def show(self, what: str, kind: str, document: dict[str, Any]) -> None:
        document["metadata"].setdefault("resourceVersion", "2")
        self.shown[what].put_nowait({"type": kind, "object": document})

    async def request(self, method: str, path: str, body: Any = None, *more: Any, **query: Any) -> dict[str, Any]:
        if method == "POST":
            self.job = body
        if method == "GET" and path.endswith(f"/jobs/{self.job.get('metadata', {}).get('name')}"):
            return {**self.job, "spec": {**self.job["spec"], "suspend": True}}
        found = await super().request(method, path, body, *more, **query)
        return found | {"items": self.pods} if method == "GET" and path.endswith("/pods") else found

    async def watch(self, path: str, *args: Any) -> AsyncGenerator[dict[str, Any], None]:
        while True:
            yield await self.shown[path.rpartition("/")[2]].get()


def test_a_pod_that_goes_before_its_job_is_shown_to_be_taken_back_leaves_a_node_that_waits() -> None:
    async def steps() -> None:
        api = Queueing()
        async with following(api) as fleet:
            await fleet.start(NodeSpec(1, 1, 1))
            name = api.job["metadata"]["name"]
            owners = [{"name": name, "controller": True}]
            metadata = {
                "name": f"{name}-a",
                "uid": "a",
                "labels": api.job["metadata"]["labels"],
                "ownerReferences": owners,
            }
            pod = {"metadata": metadata, "spec": api.job["spec"]["template"]["spec"], "status": {"phase": "Pending"}}
            api.show("jobs", "ADDED", api.job)
            api.show("pods", "ADDED", pod)
            while fleet.standings()[1].why != "it is being scheduled":
                await asyncio.sleep(0.01)
            api.show("pods", "DELETED", pod)
            while not (told := fleet.take_exits()):
                await asyncio.sleep(0.01)
            waits = "its Job is suspended: it waits for quota admission"
            assert [(one.node, one.taken, one.again) for one in told] == [(1, True, waits)]
            assert fleet.standings() == {1: Waiting(Cause.ADMISSION, waits)}
            running = {"phase": "Running", "containerStatuses": [{"name": "node", "state": {"running": {}}}]}
            api.show("jobs", "MODIFIED", api.job)
            api.show("pods", "ADDED", {**pod, "metadata": {**metadata, "uid": "b"}, "status": running})
            while not isinstance(fleet.standings()[1], Running):
                await asyncio.sleep(0.01)
            assert (fleet.take_exits(), api.deleted) == ([], [])

    asyncio.run(steps())


def test_the_next_pod_of_a_job_is_seen_although_it_was_shown_while_the_one_before_was_there() -> None:
    async def steps() -> None:
        api = Queueing()
        async with following(api) as fleet:
            await fleet.start(NodeSpec(1, 1, 1))
            name = api.job["metadata"]["name"]
            running = {"phase": "Running", "containerStatuses": [{"name": "node", "state": {"running": {}}}]}

            def pod(uid: str, made: str) -> dict[str, Any]:
                metadata = {
                    "name": f"{name}-{uid}",
                    "uid": uid,
                    "labels": api.job["metadata"]["labels"],
                    "ownerReferences": [{"name": name, "controller": True}],
                    "creationTimestamp": made,
                }
                return {"metadata": metadata, "spec": api.job["spec"]["template"]["spec"], "status": running}

            old, new = pod("a", "2026-11-25T10:00:00Z"), pod("b", "2026-11-25T10:01:00Z")
            api.show("jobs", "ADDED", api.job)
            api.show("pods", "ADDED", old)
            while not isinstance(fleet.standings()[1], Running):
                await asyncio.sleep(0.01)
            api.pods = [new, old]
            api.show("pods", "ADDED", new)
            api.show("pods", "DELETED", old)
            while not (told := fleet.take_exits()):
                await asyncio.sleep(0.01)
            assert [(one.node, one.taken) for one in told] == [(1, True)] and told[0].again
            api.show("jobs", "MODIFIED", api.job)
            while not isinstance(now := fleet.standings()[1], Running):
                await asyncio.sleep(0.01)
            assert now.pod == f"{name}-b"

    asyncio.run(steps())


class Holding(Refusing):
    """An API that has these Jobs, and pods."""

    def __init__(self, *jobs: dict[str, Any]) -> None:
        super().__init__()
        self.jobs = list(jobs)
        self.pods: list[dict[str, Any]] = []

    async def request(self, method: str, path: str, body: Any = None, *more: Any, **query: Any) -> dict[str, Any]:
        found = await super().request(method, path, body, *more, **query)
        shown = {"jobs": self.jobs, "pods": self.pods} if method == "GET" else {}
        return found | {"items": shown.get(path.rpartition("/")[2], [])}


def test_a_node_with_a_job_and_a_pod_and_one_with_a_pod_only_are_used_once_each() -> None:
    job, other = (node_job(plan(template()), NodeSpec(node, node, 1)) for node in (1, 2))

    async def steps() -> None:
        api = Holding(job)
        api.pods = [{"metadata": one["metadata"]} for one in (job, other)]
        async with following(api) as fleet:
            assert sorted(spec.node for spec in await fleet.used()) == [1, 2]

    asyncio.run(steps())


def test_a_node_that_others_have_made_unreadable_is_ended_and_named_and_ends_nothing_else() -> None:
    known, stripped, spoilt = (node_job(plan(template()), NodeSpec(node, node, 1)) for node in (1, 2, 3))
    del stripped["metadata"]["annotations"]
    for metadata in (spoilt["metadata"], spoilt["spec"]["template"]["metadata"]):
        metadata["annotations"] = {"elastic-launcher/first-member": "many"}

    async def steps() -> None:
        api = Holding(known, stripped, spoilt)
        async with following(api) as fleet:
            found = await fleet.find()
            assert found == await fleet.used() == [NodeSpec(1, 1, 1), NodeSpec(2, 2, 1)]
            (said,) = await fleet.adopt(found)
            assert (sorted(fleet.standings()), api.deleted) == ([1, 2], ["digits-x-3"])
            assert said.startswith("Job digits-x-3 does not say any more what node it was made for")

    asyncio.run(steps())
