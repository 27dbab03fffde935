"""A job trains with the room that there is, says what it waits for, and takes what becomes free."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import pods
from tests.cluster.crowd import LATER, fill
from tests.cluster.machine.places import GPU
from tests.cluster.stage import HINTS, LONG, Stage, staged
from tests.local.ledgers import SCRIPT
from tests.local.resizes import formed
from tests.local.sudden import assert_same_training, options

pytestmark = [
    pytest.mark.machine,
    pytest.mark.timeout(1200),  # each node that joins takes half a minute on a busy machine
]

FOLLOW = f"--hints=configmap/{HINTS}"
QUOTA = f"requests.{GPU}"
PACE = 0.05  # seconds that a micro-batch takes at least: who trains leaves the machine to those that start


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "room") as stage:
        yield stage


@pytest.fixture
def crowd(stage: Stage) -> Iterator[str]:
    """Gives a namespace for what takes room."""
    with pods.namespace(stage.kubectl, "crowd") as name:
        yield name


def limit(stage: Stage, gpus: int) -> None:
    """Has a ResourceQuota allow so many GPUs, and waits until it counts."""
    spec = {"hard": {QUOTA: str(gpus)}}
    stage.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}, "spec": spec})
    line = "{.status.hard}"
    stage.kubectl.watch(
        "resourcequotas",
        f"--namespace={stage.space}",
        line=line,
        good=lambda seen: seen == f'{{"{QUOTA}":"{gpus}"}}',
        what=f"the quota of {gpus} GPUs counts",
        seconds=LONG,
    )


def launch(stage: Stage, *arguments: str, **more: Any) -> None:
    stage.launch(*arguments, script=SCRIPT, argument=options(stage.folder, pace=PACE, **more))


def told(stage: Stage, *words: str) -> str:
    """Waits for a warning with all of these words, and returns it."""
    found = stage.events.wait("warning", lambda event: all(word in event["message"] for word in words), LONG)
    return str(found["message"])


def finish(stage: Stage) -> None:
    (stage.folder / "stop").touch()
    assert stage.wait() == 0
    assert_same_training(stage.folder, stage)


@pytest.mark.thorough
def test_a_job_trains_where_it_finds_room_says_what_it_lacks_and_grows_once_it_is_there(
    stage: Stage, crowd: str
) -> None:
    fill(stage.kubectl, crowd, 2, later=2)
    stage.allow(4)
    launch(stage, "--nodes=1:4", FOLLOW)
    said = told(stage, "2 of 4 nodes pending", "Training goes on with 2")
    assert f"Insufficient {GPU}" in said and "free GPUs" in said and len(said.splitlines()) == 1
    generation = formed(stage, 2, 0, LONG)["generation"]
    assert stage.log().count(said) == 1
    before = stage.uids()
    stage.kubectl("delete", "pod", LATER, f"--namespace={crowd}", "--wait=false")
    formed(stage, 4, generation, LONG)
    assert stage.uids() == before
    finish(stage)


@pytest.mark.thorough
def test_a_replacement_that_the_quota_refuses_comes_once_that_is_raised(stage: Stage) -> None:
    limit(stage, 3)
    stage.allow(3)
    launch(stage, "--nodes=1:3", FOLLOW)
    generation = formed(stage, 3, 0, LONG)["generation"]
    limit(stage, 2)
    stage.delete("pod", stage.nodes()[2]["metadata"]["name"])
    generation = formed(stage, 2, generation, LONG)["generation"]
    said = told(stage, "1 of 3 nodes pending", "exceeded quota: gpus")
    assert "raise the ResourceQuota" in said and "Training goes on with 2" in said
    limit(stage, 3)
    formed(stage, 3, generation, LONG)
    finish(stage)


def test_an_image_that_is_not_there_is_said_and_given_up_in_the_time_that_was_asked_for(stage: Stage) -> None:
    container = {"name": "main", "image": "localhost/none:1", "imagePullPolicy": "Never"}
    given = {"script": SCRIPT, "argument": options(stage.folder), "template": {"containers": [container]}}
    stage.launch("--nodes=1:1", "--pending-timeout=30s", **given)
    assert stage.wait() == 76
    assert "check the image's name" in told(stage, "1 of 1 nodes pending", "localhost/none:1")
    (finished,) = stage.events.of("job_finished")
    assert "node 1 was pending for 30 s (--pending-timeout)" in finished["message"], finished
    assert stage.events.of("generation_formed") == []
