"""What is proved of a job on the cluster that was stopped, or whose training was ended."""

from __future__ import annotations

import time

from elastic_launcher.checkpoint import find_newest
from tests.support.cluster.stage import LONG, Stage
from tests.support.launches import until
from tests.support.ledgers import assert_each_sample_once, read_ledgers
from tests.support.losses import BATCH, MICRO, SAMPLES, assert_same_training

WITHIN = 15.0
"""Seconds from when the coordinator sees that it is to stop until all nodes are gone: the bound that is documented."""


def assert_saved_and_over(stage: Stage, why: str) -> None:
    """Fails unless the job ended as it is to, of itself, and with all that it had done."""
    finished = stage.events.wait("job_finished", timeout=LONG)
    seen = stage.events.wait("warning", lambda event: why in event["message"])
    until(lambda: not stage.nodes(), "the API has forgotten the nodes", LONG)
    assert time.time() - seen["time"] < WITHIN
    assert finished["exit_code"] == 75
    saved = find_newest(stage.folder / "checkpoints").manifest
    assert saved is not None
    assert saved.step == finished["steps"] == assert_each_sample_once(read_ledgers(stage.folder), SAMPLES, BATCH, MICRO)
    assert not stage.events.of("node_lost")


def end_training(stage: Stage) -> None:
    """Ends the training; fails unless it was the plain one."""
    (stage.folder / "stop").touch()
    assert stage.wait() == 0
    assert_same_training(stage.folder, stage)


def finish(stage: Stage) -> None:
    """Ends the training; fails unless it was the plain one, and each member was one process for all of its life."""
    end_training(stage)
    members = [rows[0]["member"] for rows in read_ledgers(stage.folder)]
    assert len(members) == len(set(members))
