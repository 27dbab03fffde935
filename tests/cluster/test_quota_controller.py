"""The quota controller on the cluster: GPUs move between projects, whatever happens to the controller meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import pods
from tests.support.cluster.command import act
from tests.support.cluster.ends import end_training
from tests.support.cluster.quota import Controllers, FakeJob, allowed, controllers, launch, most_allowed, stages, told
from tests.support.cluster.resource_quotas import limit
from tests.support.cluster.stage import LONG, Stage
from tests.support.cluster.taken_gpus import fill
from tests.support.launches import until
from tests.support.resizes import formed

pytestmark = [pytest.mark.machine, pytest.mark.timeout(1800)]

GRACE = 60
FAKES, AT_ONCE = 200, 20


@pytest.fixture(scope="module")
def there() -> Iterator[Controllers]:
    with controllers() as there:
        yield there


@pytest.fixture
def space(there: Controllers) -> Iterator[str]:
    """Gives a namespace for jobs that are no more than their reports."""
    with pods.namespace(there.kubectl, "fakes") as name:
        yield name


def document(*projects: str, capacity: str = "") -> str:
    """Returns a projects document; GPUs that go from one job to another need not wait."""
    return f"""
apiVersion: elastic-quota/v1
unmatched: refuse
gracePeriodSeconds: {GRACE}
growAfterSeconds: 2
{capacity}
projects:
""" + "\n".join(f"- {one}" for one in projects)


def project(name: str, guaranteed: int, *spaces: str) -> str:
    matches = ", ".join(f"{{namespace: {one}}}" for one in spaces)
    return f"{{name: {name}, guaranteed: {guaranteed}, match: [{matches}]}}"


def waited(stage: Stage, kind: str) -> dict[str, Any]:
    """Waits for an event of a job that has trained."""
    return stage.events.wait(kind, lambda event: "step" in event, LONG)


def test_a_project_borrows_the_owner_gets_its_gpus_back_and_a_paused_job_goes_on(
    there: Controllers, tmp_path: Path
) -> None:
    with (
        pods.namespace(there.kubectl, "crowd") as crowd,
        stages(tmp_path, there, "bert", "probe", "resnet") as (bert, probe, resnet),
    ):
        fill(there.kubectl, crowd, 2, 2)
        there.projects(document(project("nlp", 2, bert.space, probe.space), project("vision", 2, resnet.space)))
        ids = {"bert": launch(bert, there, "bert", "2:4")}
        borrowed = formed(bert, 4, 0, LONG)
        ids["probe"] = launch(probe, there, "probe", "1:1")
        alone = formed(probe, 1, 0, LONG)
        shared = formed(bert, 3, borrowed["generation"], LONG)

        ids["resnet"] = launch(resnet, there, "resnet", "2:2")
        formed(resnet, 2, 0, LONG)
        formed(bert, 2, shared["generation"], LONG)
        waited(probe, "quota_wait")
        until(lambda: not probe.nodes(), "the paused job holds no pod", LONG)
        rows = [row for row in there.history() if row["job"] in ids.values()]
        lowered = [row for row in rows if row["cause"] == "guarantee" and row["after"] < row["before"]]
        (raised,) = [row for row in rows if row["job"] == ids["resnet"]]
        assert {row["job"] for row in lowered} == {ids["bert"], ids["probe"]}
        assert raised["time"] - min(row["time"] for row in lowered) <= GRACE
        assert most_allowed(rows) <= 4, rows
        assert "project vision asks for 2 of its 2 guaranteed" in " ".join(told(there.kubectl, bert.space, ids["bert"]))

        end_training(resnet)
        waited(probe, "quota_back")
        formed(probe, 1, alone["generation"], LONG)
        end_training(probe)
        end_training(bert)
        short = [
            event
            for stage in (bert, probe, resnet)
            for event in stage.events.of("warning")
            if "Insufficient" in event["message"]
        ]
        assert short == [], "no node was made for a GPU that another job still held"


@pytest.mark.thorough
def test_a_borrower_leaves_the_machine_of_an_owner_that_can_use_no_other(there: Controllers, tmp_path: Path) -> None:
    with (
        pods.namespace(there.kubectl, "crowd") as crowd,
        stages(tmp_path, there, "bert", "resnet") as (bert, resnet),
    ):
        fill(there.kubectl, crowd, 2, 2)
        there.projects(document(project("nlp", 2, bert.space), project("vision", 2, resnet.space)))
        launch(bert, there, "bert", "1:4")
        borrowed = formed(bert, 4, 0, LONG)
        pinned = {"nodeSelector": {"kubernetes.io/hostname": "node-0"}}
        launch(resnet, there, "resnet", "2:2", template=pinned)
        formed(resnet, 2, 0, LONG)
        formed(bert, 2, borrowed["generation"], LONG)
        until(lambda: machines_of(bert) == ["node-1", "node-1"], "the borrower is on the other machine", LONG)
        assert machines_of(resnet) == ["node-0", "node-0"]
        assert {one["cause"] for one in bert.events.of("node_left")} == {"hint"}
        end_training(resnet)
        end_training(bert)


def machines_of(stage: Stage) -> list[str]:
    """Returns the machine of each node that is there."""
    return sorted(pod["spec"].get("nodeName", "") for pod in stage.nodes().values())


def test_a_job_stays_within_the_resource_quota_of_its_namespace(there: Controllers, tmp_path: Path) -> None:
    with stages(tmp_path, there, "bert") as (bert,):
        limit(bert, 3)
        there.projects(document(project("nlp", 4, bert.space), capacity="capacity: {resourceQuotas: {}}"))
        job = launch(bert, there, "bert", "1:4")
        most = formed(bert, 3, 0, LONG)
        limit(bert, 2)
        fewer = formed(bert, 2, most["generation"], LONG)
        why = f"3 → 2 GPUs: ResourceQuota {bert.space}/gpus leaves 2"
        until(lambda: why in told(there.kubectl, bert.space, job), "the reason names the quota", LONG)
        limit(bert, 4)
        formed(bert, 4, fewer["generation"], LONG)
        end_training(bert)
        refused = [event for event in bert.events.of("warning") if "exceeded quota" in event["message"]]
        assert refused == [], "no node was made that the quota does not allow"


def test_a_controller_that_is_killed_during_a_reclaim_is_followed_by_one_that_completes_it(
    there: Controllers, space: str, tmp_path: Path
) -> None:
    with stages(tmp_path, there, "resnet") as (resnet,):
        there.projects(
            document(project("nlp", 2, space), project("vision", 2, resnet.space), capacity="capacity: {gpus: 4}")
        )
        bert = FakeJob(f"bert-{space}", space, 1, 4)
        there.kubectl.apply(bert.shown())
        there.until("it borrows", {bert.name: 4})
        there.kubectl.apply(bert.following(there.document()))
        owner = launch(resnet, there, "resnet", "2:2")
        there.until("its GPUs are taken back", {bert.name: 2, owner: 0})
        before = there.document()
        there.until_led(there.kill_leader())
        there.kubectl.apply(bert.shown())
        until(lambda: there.document()["generation"] > before["generation"], "the next one has written", LONG)
        after = there.document()
        own = [next(row for row in one["hints"] if row["match"]["id"] == bert.name) for one in (before, after)]
        assert own[0]["reclaim"] == own[1]["reclaim"], "it has the time that it was given"
        assert (there.allowed()[bert.name], there.allowed()[owner]) == (2, 0), "the other one holds them still"
        there.kubectl.apply(bert.following(after))
        formed(resnet, 2, 0, LONG)
        rows = [row for row in there.history() if row["job"] in (bert.name, owner)]
        assert [row["after"] for row in rows if row["job"] == bert.name] in ([4, 2], [4]), "it is taken back once"
        assert there.allowed()[bert.name] == 2
        end_training(resnet)


def test_a_broken_projects_document_leaves_the_last_good_one_to_this_controller_and_the_next(
    there: Controllers, space: str
) -> None:
    good = document(project("nlp", 2, space), capacity="capacity: {gpus: 4}")
    first, second = (FakeJob(f"{name}-{space}", space, 2, 2) for name in ("first", "second"))
    there.projects(good)
    there.kubectl.apply(first.shown())
    there.until("it has its hint", {first.name: 2})
    there.kubectl.apply(first.following(there.document()))
    there.projects(good.replace("guaranteed: 2", "guaranteed: -2"))
    until(lambda: "the last good document stays in force" in there.log(), "it is refused", LONG)
    assert "guaranteed" in there.log()
    before = there.holder()
    there.restart()
    there.until_led(before)
    there.kubectl.apply(second.shown())
    there.until("the next controller serves by the last good one", {first.name: 2, second.name: 2})
    assert "the last good document stays in force" in there.log()
    there.kubectl.apply(second.following(there.document()))
    there.projects(good.replace("gpus: 4", "gpus: 2"))
    there.until("a good document is followed", {first.name: 2, second.name: 0})


def test_hints_follow_machines_that_are_cordoned_and_come_back(there: Controllers, space: str) -> None:
    job = FakeJob(f"bert-{space}", space, 1, 8)
    with pods.namespace(there.kubectl, "crowd") as crowd:
        fill(there.kubectl, crowd, 2, 2)
        there.projects(document(project("nlp", 8, space)))
        there.kubectl.apply(job.shown())
        there.until("what pods of others leave", {job.name: 4})
        there.kubectl("cordon", "node-1")
        try:
            there.until("without the machine", {job.name: 2})
            there.kubectl.apply(job.shown(allowed=2, generation=there.document()["generation"]))
        finally:
            there.kubectl("uncordon", "node-1")
        there.until("with it", {job.name: 4})
    assert there.allowed()[job.name] == 4


def test_an_api_server_that_was_restarted_is_served_again(there: Controllers, space: str) -> None:
    first, second = (FakeJob(f"{name}-{space}", space, 1, 2) for name in ("first", "second"))
    there.projects(document(project("nlp", 4, space), capacity="capacity: {gpus: 4}"))
    there.kubectl.apply(first.shown())
    there.until("it has its hint", {first.name: 2})
    act("apiserver", "restart")
    there.kubectl.apply(second.shown())
    there.until("so has one that came afterwards", {first.name: 2, second.name: 2})
    assert {first.name, second.name} <= set(there.allowed())


def test_two_jobs_keep_what_is_guaranteed_beside_two_hundred_that_wait(
    there: Controllers, space: str, tmp_path: Path
) -> None:
    with stages(tmp_path, there, "bert", "resnet") as real:
        owners = [project(f"own-{number}", 2, stage.space) for number, stage in enumerate(real)]
        capacity = f"capacity: {{gpus: {AT_ONCE + 4}}}"
        there.projects(document(*owners, project("crowd", AT_ONCE, space), capacity=capacity))
        ids = [launch(stage, there, name, "2:2") for stage, name in zip(real, ("bert", "resnet"), strict=True)]
        first = [formed(stage, 2, 0, LONG) for stage in real]
        crowd = {
            job.name: job for job in (FakeJob(f"fake-{number:03}-{space}", space, 1, 4) for number in range(FAKES))
        }
        there.kubectl.apply(*(job.shown() for job in crowd.values()))
        followed = dict.fromkeys(crowd, 0)

        def served() -> set[str]:
            """Has the others follow their hints; returns which have GPUs, once as many do as can have their minimum."""
            document = there.document()
            now = allowed(document)
            changed = [name for name in crowd if followed[name] != now.get(name, 0)]
            if changed:  # the first of them may have been seen before the others, and lent what these ask for
                there.kubectl.apply(*(crowd[name].following(document) for name in changed))
                followed.update({name: now.get(name, 0) for name in changed})
            own = {job for job, gpus in now.items() if gpus == 1} & set(crowd)
            return own if len(own) == AT_ONCE and all(now.get(job) == 2 for job in ids) else set()

        before = until(served, "all GPUs are given away", LONG)
        assert sum(there.allowed().values()) == AT_ONCE + 4
        there.kubectl("delete", "services", *sorted(before), f"--namespace={space}", "--wait=false")
        for name in before:
            del crowd[name]
        after = until(served, "those that waited are served", LONG)
        assert not after & before
        for stage, generation in zip(real, first, strict=True):
            assert stage.events.of("generation_formed")[-1]["generation"] == generation["generation"], (
                "it is left alone"
            )
            end_training(stage)
