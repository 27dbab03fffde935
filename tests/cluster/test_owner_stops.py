"""What the launcher belongs to is stopped: the job is saved and over, whether or not anybody sends a signal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.cluster.ends import assert_saved_and_over
from tests.support.cluster.stage import LONG, NAME, Stage, staged
from tests.support.cluster.workflow_kind import WORKFLOW, workflows_known
from tests.support.launches import until
from tests.support.ledgers import SCRIPT
from tests.support.losses import options
from tests.support.manifests import MANIFESTS, objects
from tests.support.resizes import formed

DELETED = "what the step belongs to was deleted"
Act = Callable[[Stage], None]
pytestmark = [pytest.mark.machine, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", autouse=True)
def workflow_kind() -> Iterator[None]:
    with workflows_known():
        yield


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "stops") as stage:
        yield stage


def changes(kind: str, name: str, spec: dict[str, object]) -> Act:
    def act(stage: Stage) -> None:
        patch = json.dumps({"spec": spec})
        stage.kubectl("patch", kind, name, f"--namespace={stage.space}", "--type=merge", f"--patch={patch}")

    return act


def deletes(kind: str, name: str) -> Act:
    return lambda stage: stage.delete(kind, name)


OTHER = pytest.mark.thorough
OF_WORKFLOWS = [
    pytest.param(changes("workflow", "train", {"activeDeadlineSeconds": 0}), "was terminated", id="terminated by KFP"),
    pytest.param(
        changes("workflow", "train", {"shutdown": "Terminate"}), "shut down (Terminate)", id="terminated", marks=OTHER
    ),
    pytest.param(changes("workflow", "train", {"shutdown": "Stop"}), "shut down (Stop)", id="stopped", marks=OTHER),
]


@pytest.mark.parametrize(("act", "why"), OF_WORKFLOWS)
def test_a_step_ends_when_its_workflow_is_told_to(stage: Stage, act: Act, why: str) -> None:
    start_as_step(stage)
    act(stage)
    assert_saved_and_over(stage, why)
    assert stage.wait() == 75
    (pod,) = stage.launchers()
    assert "deletionTimestamp" not in pod["metadata"], "nobody has signalled it"


@pytest.mark.thorough
def test_a_step_ends_when_its_workflow_is_deleted(stage: Stage) -> None:
    """The cluster deletes the launcher and the nodes meanwhile, each as it comes to it."""
    start_as_step(stage)
    stage.delete("workflow", "train")
    assert_saved_and_over(stage, DELETED)
    until(lambda: not stage.launchers(), "the launcher is gone with its Workflow", LONG)


OF_JOBS = [
    pytest.param(deletes("job", NAME), DELETED, id="deleted"),
    pytest.param(changes("job", NAME, {"suspend": True}), f"Job {NAME} was suspended", id="suspended"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("act", "why"), OF_JOBS)
def test_a_job_ends_when_it_is_told_to(stage: Stage, act: Act, why: str) -> None:
    stage.launch("--nodes=2:2", script=SCRIPT, argument=options(stage.folder, pace=0.02), retries=0)
    formed(stage, 2, 0)
    act(stage)
    assert_saved_and_over(stage, why)


@pytest.mark.thorough
def test_a_step_that_outlasts_the_launchers_grace_is_dropped_and_the_rest_is_saved(stage: Stage) -> None:
    """A step takes 15 s, and ten of the twenty are for the save."""
    grace = {"terminationGracePeriodSeconds": 20}
    stage.launch("--nodes=1:1", script=SCRIPT, argument=options(stage.folder, pace=3.0), retries=0, launcher=grace)
    stage.events.wait("progress", lambda event: event["step"] >= 2, LONG)
    stage.delete("job", NAME)
    assert_saved_and_over(stage, DELETED)
    assert stage.events.of("job_finished")[0]["steps"] == stage.events.of("progress")[-1]["step"]


def start_as_step(stage: Stage) -> None:
    """Starts the launcher as a controller of Workflows does, with that overlay's rights, and waits until it trains."""
    of_steps = [rule for role in objects(MANIFESTS / "overlays" / "argo", "Role") for rule in role["rules"]]
    metadata = {"name": NAME}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": of_steps}
    stage.apply(role, WORKFLOW)
    (owner,) = stage.get("workflows")
    stage.launch("--nodes=2:2", script=SCRIPT, argument=options(stage.folder, pace=0.02), owner=owner)
    formed(stage, 2, 0)
