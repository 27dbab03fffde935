"""Checkpoints in an object store, which pods reach from any machine and whose folder none of them sees."""

from __future__ import annotations

from pathlib import Path

import certifi
import pytest

from elastic_launcher.engines.kubernetes.objects.names import JOB_LABEL
from elastic_launcher.engines.kubernetes.objects.service import STOP
from tests.cluster.machine.places import HOST_ADDRESS
from tests.support.cluster.stage import LONG, staged
from tests.support.ledgers import SCRIPT
from tests.support.losses import assert_same_training, options
from tests.support.object_store import object_store
from tests.support.resizes import formed

pytestmark = [pytest.mark.machine, pytest.mark.timeout(900)]


def test_a_job_goes_on_from_an_object_store_alone_in_pods_of_another_namespace(tmp_path: Path) -> None:
    argument = options(tmp_path, pace=0.02)
    with object_store(tmp_path / "buckets", HOST_ADDRESS) as store:
        flags = ("--nodes=2:2", f"--checkpoint-dir={store.url}")
        known = store.environment | {"SSL_CERT_FILE": certifi.where()}  # the test's image has no certificates
        reach = {"environment": known, "variables": known}
        with staged(tmp_path, "stored") as stage:
            stage.launch(*flags, script=SCRIPT, argument=argument, retries=0, **reach)
            formed(stage, 2, 0)
            stage.kubectl("annotate", "services", f"--namespace={stage.space}", "-l", JOB_LABEL, f"{STOP}=moves")
            assert stage.wait() == 75
            saved = stage.events.of("checkpoint_saved")[-1]
            assert saved["path"].startswith(store.url)
        stage.work_dir.rename(tmp_path / "lost")
        for ledger in tmp_path.glob("ledger-*.jsonl"):  # in other pods, processes may have the same numbers
            ledger.rename(ledger.with_suffix(".before.jsonl"))
        with staged(tmp_path, "restored") as stage:
            stage.launch(*flags, script=SCRIPT, argument=argument, retries=0, **reach)
            started = stage.events.wait("job_started", lambda event: event["term"] == 2, LONG)
            assert started["resumed_step"] == saved["step"]
            formed(stage, 2, 1)
            (tmp_path / "stop").touch()
            assert stage.wait() == 0
            assert_same_training(tmp_path, stage)
            assert [event["generation"] for event in stage.events.of("generation_formed")] == [1, 2]
            nodes = [event["node"] for event in stage.events.of("node_started")]
            assert nodes == sorted(set(nodes))
