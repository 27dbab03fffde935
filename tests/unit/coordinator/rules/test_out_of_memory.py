"""Micro-batches that get smaller don't count as failures, however often: that comes to an end by itself."""

from __future__ import annotations

from dataclasses import replace

from elastic_launcher.config import ExitCode
from elastic_launcher.control.messages import MicroBatchLowered
from elastic_launcher.coordinator.model.restart_budget import RestartBudget
from tests.support.played_job import Job, redo, training

TIMES = 6


def lowered(time: int, *, leaves: bool) -> MicroBatchLowered:
    return MicroBatchLowered(10, "T4", 2 ** (TIMES - time), 2 ** (TIMES - time - 1), leaves)


def test_processes_that_come_back_with_smaller_ones_are_started_again_without_limit() -> None:
    job = Job(minimum=1, target=1)
    for time in range(TIMES):
        member = time + 1
        job.join(member)
        job.report(member, lowered(time, leaves=True))
        job.rank_ended(member, code=ExitCode.STOPPED)
        job.node_exited(member)
        job.tick(2)
        assert job.finish is None
        assert [one.node for one in job.started][-1] == member + 1
    assert job.state.micro_batches.limits == {"T4": 1}
    assert [event["new"] for event in job.events("micro_batch_lowered")] == [32, 16, 8, 4, 2, 1]


def test_a_step_that_is_done_again_in_smaller_ones_does_not_count_as_broken() -> None:
    job = training(2)
    for time in range(TIMES):
        job.report(1, lowered(time, leaves=False))
        redo(job, job.form.formation, 10)
        assert job.finish is None


def test_the_loss_of_its_node_names_the_memory() -> None:
    job = training(2)
    job.report(1, lowered(0, leaves=True))
    job.rank_ended(1, code=ExitCode.STOPPED)
    assert job.events("node_lost")[0]["message"].startswith("member 1 (rank 0, node 1) ran out of memory")


def test_restarts_from_the_last_checkpoint_for_it_have_no_limit() -> None:
    job = training(1)
    for time in range(TIMES):
        job.state = replace(job.state, restart_budget=job.state.restart_budget.once_more(10))
        job.report(1, lowered(time, leaves=True))
        assert job.state.restart_budget == RestartBudget()
