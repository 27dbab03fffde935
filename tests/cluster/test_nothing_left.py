"""However a job ends, nothing of it is left but what says how: its Service and its Secret, until their owner goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_launcher.engines.kubernetes.objects.names import JOB_LABEL
from elastic_launcher.engines.kubernetes.objects.service import STOP
from tests.cluster.machine.processes import ClusterError
from tests.support.cluster.ends import assert_saved_and_over
from tests.support.cluster.stage import LONG, NAME, Stage, staged
from tests.support.launches import until
from tests.support.ledgers import SCRIPT
from tests.support.losses import assert_same_training, options
from tests.support.resizes import formed

WITHIN = 60.0
"""Seconds after a job's end: the bound that is documented."""
KINDS = "jobs,pods,services,endpointslices,secrets,configmaps,persistentvolumeclaims,leases"
pytestmark = [pytest.mark.machine, pytest.mark.timeout(900)]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "left") as stage:
        yield stage


def there(stage: Stage) -> set[str]:
    """Returns all that is in the namespace, as KIND/NAME; a Service's slices are the Service's own."""
    return {f"{one['kind']}/{one['metadata']['name']}" for one in stage.get(KINDS) if one["kind"] != "EndpointSlice"}


def started(stage: Stage, *arguments: str, **more: object) -> set[str]:
    """Starts a job, and waits until it trains; returns what was there before it, and is to stay."""
    before = there(stage)
    stage.launch("--nodes=2:2", *arguments, script=SCRIPT, argument=options(stage.folder, **more), retries=0)
    formed(stage, 2, 0)
    return before | {"ConfigMap/code", f"Job/{NAME}"}


def assert_nothing_left(stage: Stage, before: set[str]) -> None:
    """Fails unless what the job leaves is what is documented, and goes with its owner."""
    (service,) = stage.get("services", "-l", JOB_LABEL)
    name = service["metadata"]["name"]
    (launcher,) = stage.launchers()
    says_how = {f"Service/{name}", f"Secret/{name}-key", f"Pod/{launcher['metadata']['name']}"}
    until(lambda: there(stage) == before | says_how, "nodes and their Jobs are gone", WITHIN)
    stage.delete("job", NAME)
    until(lambda: there(stage) == before - {f"Job/{NAME}"}, "all the rest goes with the launcher's Job", WITHIN)


@pytest.mark.thorough
def test_a_job_that_is_done_leaves_nothing(stage: Stage) -> None:
    before = started(stage, pace=0.02)
    (stage.folder / "stop").touch()
    assert stage.wait() == 0
    assert_same_training(stage.folder, stage)
    assert_nothing_left(stage, before)


def test_a_script_that_fails_leaves_nothing(stage: Stage) -> None:
    before = started(stage, pace=0.02, fault="exception", fault_step=30)
    assert stage.wait() == 1
    assert "ValueError: a mistake in the script" in stage.log()
    assert_nothing_left(stage, before)


@pytest.mark.thorough
def test_a_job_that_is_stopped_leaves_nothing(stage: Stage) -> None:
    before = started(stage, pace=0.02)
    (service,) = stage.get("services", "-l", JOB_LABEL)
    named = ("service", service["metadata"]["name"], f"--namespace={stage.space}")
    stage.kubectl("annotate", *named, f"{STOP}=the queue is closed")
    assert_saved_and_over(stage, "the queue is closed")
    assert stage.wait() == 75
    assert_nothing_left(stage, before)


@pytest.mark.thorough
def test_a_namespace_that_is_deleted_goes_with_its_job(stage: Stage) -> None:
    started(stage, pace=0.02)
    stage.kubectl("delete", "namespace", stage.space, "--wait=false")

    def gone() -> bool:
        try:
            stage.kubectl("get", "namespace", stage.space)
        except ClusterError as error:
            return "NotFound" in str(error)
        return False

    until(gone, "the namespace goes", LONG)
    (finished,) = stage.events.of("job_finished")
    assert finished["exit_code"] == 75
