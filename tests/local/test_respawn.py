"""The respawn tier: real agents whose workers are ended and restarted, with scripts of ours and of anybody's."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from tests.support.launches import Launcher, assert_no_process, launched, until
from tests.support.ledgers import SCRIPT as TRAIN
from tests.support.ledgers import assert_same_model, train_plain
from tests.support.losses import BATCH, SAMPLES, assert_same_training, options
from tests.support.places import SCRIPTS
from tests.support.resizes import allow, formed

SCRIPT = SCRIPTS / "stock.py"
LONG = 120.0
AHEAD = 200
"""Steps between the order to stop and the stop: all ranks are to read it before they come there."""


class Stage:
    """A stock script under the launcher, in a folder of its own.

    Args:
        folder: Where all of its files go.
        options: The script's.
    """

    def __init__(self, folder: Path, **options: object) -> None:
        self.folder = folder
        self.options = {"folder": str(folder), "pace": 0.01, **options}
        self.hints = folder / "hints.json"

    def hint(self, nodes: int) -> None:
        """Has the quota hint allow so many nodes."""
        allow(self.hints, nodes)

    @contextlib.contextmanager
    def run(self, nodes: str, *flags: str | Path) -> Iterator[Launcher]:
        """Runs the job."""
        hinted = ("--hints", self.hints) if self.hints.exists() else ()
        arguments = ("--resize", "respawn", "--nodes", nodes, *hinted, *flags)
        with launched(*arguments, "--", SCRIPT, json.dumps(self.options), cwd=self.folder) as job:
            yield job

    def rows(self) -> list[dict[str, int]]:
        """Returns what the ranks wrote down."""
        lines = [line for path in self.folder.glob("steps-*.jsonl") for line in path.read_text().splitlines(True)]
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_size(self, job: Launcher, generation: int, world_size: int) -> dict[str, object]:
        """Waits until that generation has done a few steps at that size; returns its event."""
        event = job.events.wait("generation_formed", lambda e: e["generation"] == generation, LONG)
        assert event["world_size"] == world_size, event
        self._wait_steps(job, generation, world_size)
        return event

    def wait_size_from(self, job: Launcher, generation: int, world_size: int) -> dict[str, object]:
        """Waits for that size like `wait_size`, but in that generation or a later one.

        torchrun's own rendezvous goes on without a node that is late for its last call, and takes it in a round later.
        """
        fits = lambda e: e["generation"] >= generation and e["world_size"] == world_size  # noqa: E731
        event = job.events.wait("generation_formed", fits, LONG)
        self._wait_steps(job, event["generation"], world_size)
        return event

    def _wait_steps(self, job: Launcher, generation: int, world_size: int) -> None:
        before = len(self.rows())
        trained = lambda: sum(row["world_size"] == world_size for row in self.rows()[before:])  # noqa: E731
        until(lambda: trained() >= 3 * world_size, f"generation {generation} trains; {job.stderr[-2000:]}", LONG)

    def stop(self) -> int:
        """Has the script end at a step that is yet to come, and returns that."""
        last = max(row["step"] for row in self.rows()) + AHEAD
        (self.folder / f"stop-at-{last}").touch()
        return last

    def assert_like_plain(self, steps: int) -> None:
        """Fails if the model is not that of one process."""
        plain = self.folder / "plain"
        plain.mkdir()
        options = {"folder": str(plain), "steps": steps}
        alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        subprocess.run([sys.executable, SCRIPT, json.dumps(options)], env=os.environ | alone, check=True)
        ours, theirs = (torch.load(folder / "model.pt") for folder in (self.folder, plain))
        assert ours["step"] == theirs["step"] == steps
        for name, value in theirs["model"].items():
            torch.testing.assert_close(ours["model"][name], value, rtol=0, atol=1e-9)


@pytest.mark.parametrize("backend", [pytest.param("elastic-launcher", marks=pytest.mark.thorough), "c10d"])
def test_hints_resize_a_stock_script_from_1_to_2_to_1_to_2(tmp_path: Path, backend: str) -> None:
    """With c10d these are torchrun's own agents and rendezvous, which alone hang at the first step up."""
    stage = Stage(tmp_path)
    wait = stage.wait_size_from if backend == "c10d" else stage.wait_size
    stage.hint(1)
    with stage.run("1:2", "--rdzv-backend", backend) as job:
        wait(job, 1, 1)
        stage.hint(2)
        grown = wait(job, 2, 2)
        agent = job.node_pid(1)
        stage.hint(1)
        shrunk = wait(job, int(grown["generation"]) + 1, 1)
        stage.hint(2)
        wait(job, int(shrunk["generation"]) + 1, 2)
        assert job.node_pid(1) == agent and psutil.Process(agent).is_running(), "the first node did not stay"
        steps = stage.stop()
        assert job.wait(LONG) == 0, job.stderr
        assert_no_process(job.work_dir)
    assert [grown["cause"], shrunk["cause"]] == ["hint", "hint"]
    assert [(event["node"], event["cause"]) for event in job.events.of("node_left")] == [(2, "hint")]
    assert not job.events.of("node_lost") and not job.events.of("warning")
    assert job.events.of("job_finished")[0]["message"] == "done"
    stage.assert_like_plain(steps)


@pytest.mark.parametrize("backend", ["elastic-launcher", pytest.param("c10d", marks=pytest.mark.thorough)])
def test_a_killed_rank_costs_its_node_and_the_rest_restarts(tmp_path: Path, backend: str) -> None:
    stage = Stage(tmp_path, fault="kill once")
    with stage.run("1:2", "--rdzv-backend", backend) as job:
        lost = job.events.wait("node_lost", timeout=LONG)
        assert (lost["signal"], lost["exit_code"]) == (9, None) and "SIGKILL" in lost["message"]
        again = job.events.wait("generation_formed", lambda e: e["generation"] > 1 and e["world_size"] == 2, LONG)
        stage.wait_size(job, again["generation"], 2)
        steps = stage.stop()
        assert job.wait(LONG) == 0, job.stderr
        assert_no_process(job.work_dir)
    causes = [event["cause"] for event in job.events.of("generation_formed")]
    assert causes[:2] == ["start", "failure"]
    stage.assert_like_plain(steps)


def test_a_failure_of_the_script_ends_the_job_with_its_last_lines(tmp_path: Path) -> None:
    stage = Stage(tmp_path, fault="exception")
    with stage.run("2:2") as job:
        assert job.wait(LONG) == 1, job.stderr
        assert_no_process(job.work_dir)
    assert "exited with code 1" in job.stderr and "ValueError: a mistake in the script" in job.stderr + job.stdout
    assert job.events.of("job_finished")[0]["exit_code"] == 1


@pytest.mark.thorough
def test_with_max_failures_an_exception_costs_its_node(tmp_path: Path) -> None:
    stage = Stage(tmp_path, fault="exception once")
    with stage.run("2:2", "--max-failures", "1") as job:
        job.events.wait("node_lost", timeout=LONG)
        stage.wait_size(job, 2, 2)
        steps = stage.stop()
        assert job.wait(LONG) == 0, job.stderr
    stage.assert_like_plain(steps)


@pytest.mark.thorough
def test_a_notice_gives_ranks_time_to_save_and_the_rest_goes_on_without_that_node(tmp_path: Path) -> None:
    """No step is done twice, since SIGTERM has the script save."""
    stage = Stage(tmp_path, term="save", save_every=1_000_000)
    with stage.run("1:2") as job:
        stage.wait_size(job, 1, 2)
        os.kill(job.node_pid(1), signal.SIGTERM)
        noticed = stage.wait_size(job, 2, 1)
        assert noticed["cause"] == "notice" and noticed["members"] == [{"member": 2, "node": 2}]
        steps = stage.stop()
        assert job.wait(LONG) == 0, job.stderr
        assert_no_process(job.work_dir)
    done = [row["step"] for row in stage.rows() if row["rank"] == 0]
    assert sorted(done) == list(range(1, steps + 1))
    stage.assert_like_plain(steps)


@pytest.mark.thorough
def test_two_ranks_a_node_and_an_interrupt_that_saves(tmp_path: Path) -> None:
    """The same command goes on from there, and ends with the same model."""
    stage = Stage(tmp_path, term="save", save_every=1_000_000)
    with stage.run("1:1", "--nproc-per-node", "2") as job:
        stage.wait_size(job, 1, 2)
        os.kill(job.process.pid, signal.SIGINT)
        assert job.wait(LONG) == 130, job.stderr
        assert_no_process(job.work_dir)
    assert "the script itself has saved" in job.stderr.splitlines()[-1]
    with stage.run("1:1", "--nproc-per-node", "2") as job:
        stage.wait_size(job, 2, 2)
        steps = stage.stop()
        assert job.wait(LONG) == 0, job.stderr
    done = [row["step"] for row in stage.rows() if row["rank"] == 0]
    assert sorted(done) == list(range(1, steps + 1))
    stage.assert_like_plain(steps)


@pytest.mark.thorough
def test_a_killed_agent_is_replaced(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    with stage.run("2:2") as job:
        stage.wait_size(job, 1, 2)
        os.kill(job.node_pid(1), signal.SIGKILL)
        replaced = stage.wait_size(job, 2, 2)
        assert replaced["cause"] == "failure" and [member["node"] for member in replaced["members"]] == [2, 3]
        steps = stage.stop()
        assert job.wait(LONG) == 0, job.stderr
        assert_no_process(job.work_dir)
    stage.assert_like_plain(steps)


@pytest.mark.quick
def test_a_script_of_our_library_saves_and_restarts_at_each_size(tmp_path: Path) -> None:
    """1 to 2 to 1: no step is done twice, no sample is missing, and the model is the plain one."""
    hints = tmp_path / "hints.json"
    allow(hints, 1)
    flags = ("--nodes", "1:2", "--resize", "respawn", "--hints", hints, "--checkpoint-every", "1h")
    with launched(*flags, "--", TRAIN, options(tmp_path), cwd=tmp_path) as job:
        formed(job, 1, 1)  # the first one found out that the script uses our library
        allow(hints, 2)
        grown = formed(job, 2, 2)
        allow(hints, 1)
        shrunk = formed(job, 1, 3)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
        assert_no_process(job.work_dir)
    saved = [event["step"] for event in job.events.of("checkpoint_saved")]
    assert [grown["cause"], shrunk["cause"]] == ["hint", "hint"]
    assert [grown["first_step"], shrunk["first_step"]] == saved
    assert grown["pause_seconds"] > 0 and len(job.events.of("job_started")) == 1
    assert not job.events.of("node_lost") and not job.events.of("step_redone")
    assert_same_training(tmp_path, job)


@pytest.mark.thorough
def test_a_resize_waits_for_room_on_the_disk_and_loses_no_step(tmp_path: Path) -> None:
    disk, hints = tmp_path / "disk", tmp_path / "hints.json"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        filler = disk / "filler"
        filler.write_bytes(bytes(250 * 1024))
        allow(hints, 1)
        flags = ("--nodes", "1:2", "--resize", "respawn", "--hints", hints, "--checkpoint-dir", disk)
        with launched(*flags, "--checkpoint-every", "5 steps", "--", TRAIN, options(tmp_path), cwd=tmp_path) as job:
            formed(job, 1, 1)
            allow(hints, 2)
            job.events.wait("warning", lambda event: "no new start (hint)" in event["message"], LONG)
            stood = job.events.of("progress")[-1]["step"]
            job.events.wait("progress", lambda event: event["step"] > stood + 5, LONG)
            assert not job.events.of("node_left") and not job.events.of("checkpoint_saved")
            filler.unlink()
            grown = formed(job, 2, 2)
            (tmp_path / "stop").touch()
            assert job.wait(LONG) == 0, job.stderr
            assert_no_process(job.work_dir)
        assert grown["first_step"] in [event["step"] for event in job.events.of("checkpoint_saved")]
        assert not job.events.of("node_lost") and not job.events.of("step_redone")
        assert_same_training(tmp_path, job)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.thorough
def test_survivors_of_a_loss_save_before_the_job_restarts(tmp_path: Path) -> None:
    flags = ("--nodes", "2:2", "--resize", "respawn", "--checkpoint-every", "1h")
    with launched(*flags, "--", TRAIN, options(tmp_path), cwd=tmp_path) as job:
        before = formed(job, 2, 1)
        os.kill(job.node_pid(before["members"][1]["node"]), signal.SIGKILL)
        formed(job, 2, before["generation"])
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
        assert_no_process(job.work_dir)
    assert_same_training(tmp_path, job)


@pytest.mark.thorough
def test_where_nobody_is_left_who_holds_the_state_the_job_restarts_from_the_last_checkpoint(tmp_path: Path) -> None:
    flags = ("--nodes", "1:1", "--resize", "respawn", "--checkpoint-every", "5 steps")
    with launched(*flags, "--", TRAIN, options(tmp_path), cwd=tmp_path) as job:
        before = formed(job, 1, 1)
        job.events.wait("checkpoint_saved", timeout=LONG)
        os.kill(job.node_pid(before["members"][0]["node"]), signal.SIGKILL)
        again = formed(job, 1, before["generation"])
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
        assert_no_process(job.work_dir)
    assert again["cause"] == "failure" and again["first_step"] > 0 and again["pause_seconds"] > 0
    assert any("all nodes restart" in event["message"] for event in job.events.of("warning"))
    steps = torch.load(tmp_path / "model.pt")["step"]
    assert_same_model(tmp_path, train_plain(SAMPLES, BATCH, steps))
