"""A process of a node that is not the script's dies: the node is replaced, and the script is not to blame."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.launches import Launcher, assert_no_process, launched, until
from tests.support.ledgers import SCRIPT
from tests.support.losses import assert_same_training, options
from tests.support.resizes import LONG, formed


def agent(job: Launcher, node: int) -> psutil.Process:
    return psutil.Process(job.node_pid(node))


def rank_parent(job: Launcher, node: int) -> psutil.Process:
    """Returns what torchrun has started, and what has started the script in turn."""

    def found() -> psutil.Process | None:
        parents = [one for launcher in agent(job, node).children() for one in launcher.children()]
        for parent in parents:
            with contextlib.suppress(psutil.NoSuchProcess):  # one that torch had started for a moment
                if parent.children():
                    return parent
        return None

    return until(found, f"the rank of node {node} runs", LONG)


def torchrun(job: Launcher, node: int) -> psutil.Process:
    return rank_parent(job, node).parent()


@pytest.mark.parametrize("victim", [torchrun, pytest.param(rank_parent, marks=pytest.mark.thorough)])
def test_before_init(tmp_path: Path, victim: Callable[[Launcher, int], psutil.Process]) -> None:
    script = options(tmp_path, slow_start=3.0)
    with launched("--nodes", "2:2", "--", SCRIPT, script, cwd=tmp_path) as job:
        job.events.wait("node_warm", lambda event: event["node"] == 1, LONG)
        victim(job, 2).kill()
        job.events.wait("node_failed", lambda event: event["node"] == 2, LONG)
        formed(job, 2, 0)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert_same_training(tmp_path, job)


@pytest.mark.thorough
@pytest.mark.parametrize("victim", [torchrun, agent, rank_parent])
def test_while_it_trains(tmp_path: Path, victim: Callable[[Launcher, int], psutil.Process]) -> None:
    with launched("--nodes", "2:2", "--", SCRIPT, options(tmp_path), cwd=tmp_path) as job:
        formed(job, 2, 0)
        victim(job, 2).kill()
        formed(job, 2, 1)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    (lost,) = job.events.of("node_lost")
    assert lost["node"] == 2 and lost["exit_code"] is None, lost
    assert_same_training(tmp_path, job)


@pytest.mark.parametrize(
    "victim", [torchrun, *(pytest.param(one, marks=pytest.mark.thorough) for one in (agent, rank_parent))]
)
def test_after_the_loop(tmp_path: Path, victim: Callable[[Launcher, int], psutil.Process]) -> None:
    """What the script had to do there is done again from the last checkpoint, by all."""
    flags = ("--nodes", "2:2", "--checkpoint-every", "5 steps")
    with launched(*flags, "--", SCRIPT, options(tmp_path, epochs=4, linger=[2]), cwd=tmp_path) as job:
        job.events.wait("node_warm", lambda event: event["node"] == 1, LONG)
        ended = job.work_dir / "nodes" / "1-0.exit"
        until(ended.exists, "node 1 has ended", LONG)
        victim(job, 2).kill()
        assert job.wait(LONG) == 0, job.stderr
        assert_no_process(job.work_dir)
    said = [event["message"] for event in job.events.of("warning")]
    assert any("what it had to do there may be missing; all nodes restart" in message for message in said), said


def test_a_loader_worker_that_is_killed_costs_its_node(tmp_path: Path) -> None:
    """As by a machine that is out of memory."""
    script = options(tmp_path, workers=2, fault="kill worker once", fault_step=20)
    with launched("--nodes", "2:2", "--", SCRIPT, script, cwd=tmp_path) as job:
        formed(job, 2, 1)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    (lost,) = job.events.of("node_lost")
    assert lost["node"] == 2
    assert "was killed by SIGKILL; out of memory?" in (job.work_dir / "logs" / "2-0.log").read_text()
    assert_same_training(tmp_path, job)


def test_a_node_whose_torchrun_dies_each_time_is_not_started_for_ever(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time; time.sleep(600)")
    with launched("--nodes", "1:1", "--", script, cwd=tmp_path) as job:
        for node in (1, 2, 3):
            torchrun(job, node).kill()
        assert job.wait(LONG) == 1, job.stderr
        assert_no_process(job.work_dir)
    message = job.last_message
    assert "3 nodes in a row failed to come up, the last: member 3 (node 3) was killed by SIGKILL" in message, message


@pytest.mark.thorough
@pytest.mark.parametrize("victim", [torchrun, agent])
def test_where_workers_are_restarted(tmp_path: Path, victim: Callable[[Launcher, int], psutil.Process]) -> None:
    """Before `elastic.init()` as well, where the script is still anybody's."""
    flags = ("--resize", "respawn", "--nodes", "2:2", "--checkpoint-every", "5 steps")
    with launched(*flags, "--", SCRIPT, options(tmp_path, slow_start=2.0), cwd=tmp_path) as job:
        victim(job, 2).kill()
        first = job.events.wait("generation_formed", lambda event: "first_step" in event, LONG)
        victim(job, max(member["node"] for member in first["members"])).kill()
        formed(job, 2, first["generation"])
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert_same_training(tmp_path, job)
