"""A node whose machine lacks what the job needs: a mistake in how the job was set up."""

from __future__ import annotations

from elastic_launcher.config import ExitCode
from elastic_launcher.coordinator.model.actions import StartNode
from elastic_launcher.coordinator.model.observations import NodeExited, NodeUnfit
from elastic_launcher.coordinator.rules.nodes import RETRY_SECONDS
from tests.support.played_job import Job, training

WHY = "--checkpoint-dir is /claim: node 2 sees another folder there; mount one volume claim at that path"


def test_before_the_first_step_it_ends_the_job_at_once() -> None:
    job = Job(minimum=1, target=2)
    job.warm(1)
    job.feed(NodeUnfit(job.now, 2, WHY))
    assert job.finish is not None
    assert job.finish.exit_code == ExitCode.BAD_USAGE
    assert job.finish.message.startswith(WHY)
    assert job.events("node_failed") == [{"node": 2, "message": WHY}]
    assert [one.node for one in job.started] == [1, 2]


def test_a_joiner_costs_the_training_nothing() -> None:
    job = training(1)
    job.target(2)
    for node in (2, 3, 4):
        job.feed(NodeUnfit(job.now, node, WHY))
        job.feed(NodeExited(job.now, node, int(ExitCode.BAD_USAGE)))
        job.tick(10 * RETRY_SECONDS)
    assert job.finish is None
    assert [one["message"] for one in job.events("node_failed")] == [WHY] * 3
    job.tick(1000)
    assert [one.node for one in job.started] == [1, 2, 3, 4], "no more until the target is raised"
    job.target(1)
    job.target(2)
    assert isinstance(job.look()[-2], StartNode)


def test_what_is_told_of_a_node_that_is_gone_changes_nothing() -> None:
    job = Job(minimum=1, target=2)
    job.target(1)
    job.feed(NodeUnfit(job.now, 2, WHY))
    assert job.finish is None
