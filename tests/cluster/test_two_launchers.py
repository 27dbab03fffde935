"""Two launchers of one job at once: one of them governs it, and the other says why it does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster.stage import LONG, NAME, Stage, staged
from tests.support.launches import until
from tests.support.ledgers import SCRIPT
from tests.support.losses import assert_same_training, options
from tests.support.resizes import formed

SECOND = "second"
PACE = 0.02
pytestmark = [pytest.mark.machine, pytest.mark.timeout(900)]


class Other(Stage):
    """The same namespace, as a launcher with another work directory has it."""

    @property
    def work_dir(self) -> Path:
        """That launcher's work directory."""
        return self.folder / "other"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Gives a job of two nodes that trains, of an owner that does not look after its launchers."""
    with staged(tmp_path, "two") as stage:
        stage.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}})
        (owner,) = [one for one in stage.get("configmaps") if one["metadata"]["name"] == "owner"]
        argument = options(stage.folder, pace=PACE)
        stage.launch("--nodes=2:2", "--checkpoint-every=20 steps", script=SCRIPT, argument=argument, owner=owner)
        formed(stage, 2, 0, LONG)
        stage.events.wait("checkpoint_saved", timeout=LONG)
        yield stage


def start_second(stage: Stage, work_dir: Path, *options: str) -> None:
    """Starts another launcher of the same owner, thus of the same job."""
    (first,) = stage.launchers()
    spec = first["spec"]
    del spec["nodeName"]
    container = spec["containers"][0]
    command = [word.replace(str(stage.work_dir), str(work_dir)) for word in container["command"]]
    run = command.index("run") + 1
    container["command"] = [*command[:run], *options, *command[run:]]
    owners = first["metadata"]["ownerReferences"]
    metadata = {"name": SECOND, "labels": {"job-name": NAME}, "ownerReferences": owners}
    stage.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def end_of(stage: Stage, launcher: str) -> tuple[int, str]:
    """Waits until a launcher has ended by itself; returns its exit code and what it said."""

    def ended() -> dict[str, Any] | None:
        (pod,) = [one for one in stage.launchers() if one["metadata"]["name"] == launcher]
        states = [one["state"] for one in pod["status"].get("containerStatuses") or ()]
        return next((state["terminated"] for state in states if "terminated" in state), None)

    code = until(ended, f"the end of launcher {launcher}", LONG)["exitCode"]
    return code, stage.kubectl("logs", launcher, f"--namespace={stage.space}", "--tail=-1")


def test_a_second_launcher_with_the_same_work_directory_disturbs_nothing(stage: Stage) -> None:
    before = stage.uids()
    start_second(stage, stage.work_dir, "--orphan-timeout=5")
    code, said = end_of(stage, SECOND)
    assert code == 75, "it may be the next attempt of a step whose launcher is on its way out"
    assert f"the work directory {stage.work_dir} belongs to a job that is alive" in said
    assert f"on {NAME}" in said and "not given up within 5 s (--orphan-timeout)" in said
    done = stage.events.of("progress")[-1]["step"]
    stage.events.wait("progress", lambda event: event["step"] > done + 5, LONG)
    assert stage.uids() == before
    (stage.folder / "stop").touch()
    assert end_of(stage, NAME)[0] == 0
    assert_same_training(stage.folder, stage)
    assert len(stage.events.of("generation_formed")) == 1


@pytest.mark.thorough
def test_a_launcher_with_another_work_directory_takes_over_and_the_first_one_leaves(stage: Stage) -> None:
    before = stage.uids()
    other = Other(stage.kubectl, stage.space, stage.folder)
    start_second(stage, other.work_dir)
    code, said = end_of(stage, NAME)
    assert code == 75
    assert "another coordinator governs the job: term 2, and this one's is 1" in said
    formed(other, 2, 0, LONG)
    assert not set(before) & set(stage.nodes()), "no number of a node is used twice"
    (stage.folder / "stop").touch()
    assert end_of(stage, SECOND)[0] == 0
    assert_same_training(stage.folder, other)
    assert other.events.of("job_started")[0]["resumed_step"] > 0
    last_of_the_first = stage.events.all()[-1]
    assert last_of_the_first["time"] < other.events.of("node_started")[0]["time"]
    assert [stage.events.of(kind) for kind in ("node_lost", "node_failed", "node_left")] == [[], [], []]
