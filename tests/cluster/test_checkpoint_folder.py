"""The folder of checkpoints has to be one and the same in all pods: what is not is said before the first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.machine import volumes
from tests.support.cluster import pods
from tests.support.cluster.stage import Stage, staged
from tests.support.ledgers import SCRIPT
from tests.support.losses import options

pytestmark = [pytest.mark.machine, pytest.mark.timeout(900)]


def with_volume(stage: Stage, at: Path, volume: dict[str, Any]) -> dict[str, Any]:
    """Returns fields of the nodes' ``spec`` in which a volume lies over a folder of the test's."""
    spec = pods.python_pod(stage.space, "node", writable=[stage.folder])["spec"]
    container = {key: spec["containers"][0][key] for key in ("name", "image", "imagePullPolicy", "volumeMounts", "env")}
    container["env"] = [one for one in container["env"] if one["name"] == "PYTHONPATH"]
    container["volumeMounts"].append({"name": "over", "mountPath": str(at)})
    return {"containers": [container], "volumes": [*spec["volumes"], {"name": "over", **volume}]}


def test_nodes_that_have_another_claim_there_end_the_job_before_its_first_step(tmp_path: Path) -> None:
    checkpoints, other = tmp_path / "checkpoints", tmp_path / "other"
    other.mkdir()
    other.chmod(0o777)
    with staged(tmp_path, "another") as stage:
        stage.apply(*volumes.volumes(stage.space, [other], writable=True))
        claim = {"persistentVolumeClaim": {"claimName": volumes.claim_name(other)}}
        template = with_volume(stage, checkpoints, claim)
        stage.launch("--nodes=2:2", script=SCRIPT, argument=options(tmp_path), template=template, retries=0)
        assert stage.wait() == 2
        (finished,) = stage.events.of("job_finished")
        seen = f"--checkpoint-dir is {checkpoints}: node "
        assert finished["message"].startswith(seen)
        assert ") sees another folder there; launcher and nodes need one and the same" in finished["message"]
        assert finished["message"] in stage.log()
        assert not stage.events.of("generation_formed")
        assert not [*checkpoints.iterdir(), *other.iterdir()]


@pytest.mark.thorough
def test_an_empty_volume_there_is_said_before_a_node_is_made(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    with staged(tmp_path, "empty") as stage:
        template = with_volume(stage, checkpoints, {"emptyDir": {}})
        stage.launch(script=SCRIPT, argument=options(tmp_path), template=template, retries=0)
        assert stage.wait() == 2
        assert f"--checkpoint-dir is {checkpoints}: volume over of the nodes' pods" in stage.log()
        assert not stage.events.of("node_started")
