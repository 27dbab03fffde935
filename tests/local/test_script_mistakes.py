"""A mistake in a script or between ranks ends the job with 1, named, and leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from elastic_launcher.host import processes
from tests.support.launches import assert_no_process, launched, until
from tests.support.ledgers import SCRIPT, assert_each_sample_once, assert_same_model, counted, read_ledgers, train_plain

SAMPLES, BATCH, MICRO = 97, 24, 5
LONG = 120.0


def options(folder: Path, **more: object) -> str:
    return json.dumps({"folder": str(folder), "samples": SAMPLES, "batch": BATCH, "micro": MICRO, **more})


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        pytest.param("exception", ["rank 1", "ValueError: a mistake in the script"], marks=pytest.mark.quick),
        pytest.param("empty data", ["data set (Numbered) is empty", "at least one sample"], marks=pytest.mark.thorough),
        pytest.param("init twice", ["elastic.init() was called twice", "keep the job"], marks=pytest.mark.thorough),
        pytest.param("vector loss", ["rank 1", "scalar loss", "shape (2,)"], marks=pytest.mark.thorough),
        pytest.param(
            "step first", ["optimizer.step() was called before job.backward(loss)"], marks=pytest.mark.thorough
        ),
        ("break", ["rank 1 left the training loop", "job.stop"]),
        pytest.param("exit", ["rank 1's script", "ended after step 3", "job.stop"], marks=pytest.mark.thorough),
        pytest.param(
            "exit 3",
            ["the script of member 2 (rank 1, node 2) exited with code 3 after step 3"],
            marks=pytest.mark.thorough,
        ),
        pytest.param("differs: batch", ["global_batch_size", "24", "25"], marks=pytest.mark.thorough),
        ("differs: data", ["dataset", "97 samples", "98 samples"]),
        pytest.param("differs: model", ["model 0", "float64"], marks=pytest.mark.thorough),
    ],
)
def test_a_mistake_ends_the_job_and_is_named(tmp_path: Path, fault: str, said: list[str]) -> None:
    script = options(tmp_path, fault=fault, epochs=200, pace=0.002)
    with launched("--nodes", "2:2", "--", SCRIPT, script, cwd=tmp_path) as job:
        assert job.wait(LONG) == 1, job.stderr
        assert_no_process(job.work_dir)
    shown = job.stderr + job.stdout
    assert [text for text in said if text not in shown] == [], shown
    finished = job.events.of("job_finished")[0]
    assert finished["exit_code"] == 1
    assert said[0] in finished["message"]
    if fault != "break":
        assert "left the training loop" not in shown, "an innocent rank was told that its peer had left by break"


@pytest.mark.thorough
def test_parameters_that_come_apart_are_named_with_the_next_epoch(tmp_path: Path) -> None:
    script = options(tmp_path, fault="other parameters", epochs=200)
    with launched("--nodes", "2:2", "--", SCRIPT, script, cwd=tmp_path) as job:
        assert job.wait(LONG) == 1, job.stderr
        assert_no_process(job.work_dir)
    message = job.events.of("job_finished")[0]["message"]
    assert "no longer the same on all ranks" in message and "0.weight" in message and "rank 1" in message


def test_a_checkpoint_of_parameters_that_had_come_apart_is_named(tmp_path: Path) -> None:
    long_epoch = {"samples": 2400}  # its end compares too
    script = options(tmp_path, fault="other parameters", pace=0.004, **long_epoch)
    every = ("--checkpoint-every", "7 steps")
    with launched("--nodes", "2:2", *every, "--", SCRIPT, script, cwd=tmp_path) as job:
        assert job.wait(LONG) == 1, job.stderr
        assert_no_process(job.work_dir)
    message = job.events.of("job_finished")[0]["message"]
    assert "no longer the same on all ranks" in message
    said = f"A checkpoint of step 7 in {job.work_dir / 'checkpoints'} holds those of rank 0: if there is one, remove it"
    assert f"{said} to go on from the one before." in message


def test_a_loss_that_is_no_number_is_shown_and_is_no_error(tmp_path: Path) -> None:
    script = options(tmp_path, fault="nan", fault_rank=0, fault_step=9, epochs=2)
    with launched("--nodes", "1:1", "--", SCRIPT, script, cwd=tmp_path) as job:
        assert job.wait(LONG) == 0, job.stderr
    assert job.events.of("progress")[-1]["loss"] == "nan"
    assert "not a finite number" in (job.work_dir / "report.md").read_text()


@pytest.mark.parametrize(
    ("signal_number", "code"),
    [
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.quick),
        pytest.param(signal.SIGTERM, 75, marks=pytest.mark.thorough),
    ],
)
def test_an_interrupted_launcher_ends_all_and_says_what_was_saved(
    tmp_path: Path, signal_number: int, code: int
) -> None:
    with launched("--nodes", "2:2", "--", SCRIPT, options(tmp_path, pace=0.01), cwd=tmp_path) as job:
        job.events.wait("progress", timeout=LONG)
        os.kill(job.process.pid, signal_number)
        assert job.wait(LONG) == code, job.stderr
        assert_no_process(job.work_dir)
    saved = job.events.of("checkpoint_saved")[-1]
    assert f"step {saved['step']} is saved in {saved['path']}, the same command resumes from there" in job.stderr


def test_ranks_of_a_killed_launcher_leave_within_the_orphan_timeout(tmp_path: Path) -> None:
    script = options(tmp_path, pace=0.01)
    with launched("--nodes", "2:2", "--orphan-timeout", "3", "--", SCRIPT, script, cwd=tmp_path) as job:
        job.events.wait("progress", timeout=LONG)
        job.process.kill()
        job.process.wait()
        assert_no_process(job.work_dir, timeout=30.0)


@pytest.mark.thorough
def test_a_job_of_which_all_stands_still_for_longer_than_the_orphan_timeout_goes_on(tmp_path: Path) -> None:
    """As in a paused container; the launcher is the last to go on, so that its ranks ask in vain at first."""
    script = options(tmp_path, pace=0.01)
    with launched("--nodes", "2:2", "--orphan-timeout", "12", "--", SCRIPT, script, cwd=tmp_path) as job:
        step = job.events.wait("progress", timeout=LONG)["step"]
        all_of_it = [*processes.find(str(job.work_dir)), psutil.Process(job.process.pid)]
        for process in all_of_it:
            process.suspend()
        time.sleep(15.0)  # of its standstill
        for process in all_of_it:
            process.resume()
        job.events.wait("progress", lambda event: event["step"] > step + 200, LONG)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
        assert_no_process(job.work_dir)
    assert len(job.events.of("generation_formed")) == 1 and not job.events.of("step_redone")
    steps = assert_each_sample_once(read_ledgers(tmp_path), SAMPLES, BATCH, MICRO)
    assert_same_model(tmp_path, train_plain(SAMPLES, BATCH, steps))


def test_hints_below_the_minimum_while_running_end_the_job_with_75(tmp_path: Path) -> None:
    hints = tmp_path / "hints.json"
    hints.write_text('{"default": "2"}')
    with launched("--nodes", "2:2", "--hints", hints, "--", SCRIPT, options(tmp_path, pace=0.01), cwd=tmp_path) as job:
        job.events.wait("progress", timeout=LONG)
        aside = tmp_path / "aside.json"
        aside.write_text('{"default": "1"}')
        os.replace(aside, hints)
        assert job.wait(LONG) == 75, job.stderr
        assert_no_process(job.work_dir)
    assert "is saved in" in job.stderr.splitlines()[-1]


def test_two_ranks_a_node_and_loader_workers_train_the_same_and_stop_at_one_step(tmp_path: Path) -> None:
    """One rank's job.stop() ends all at one step; with nproc_per_node 2 and workers, the same model comes out."""
    script = options(tmp_path, workers=2, pace=0.002)
    with launched("--nodes", "1:1", "--nproc-per-node", "2", "--", SCRIPT, script, cwd=tmp_path) as job:
        job.events.wait("progress", lambda e: e["step"] > 20, LONG)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
        assert_no_process(job.work_dir)
    ledgers = read_ledgers(tmp_path)
    last = {rows[-1]["rank"]: max(row["step"] for row in rows if row["sync"]) for rows in ledgers}
    assert len(last) == 2 and len(set(last.values())) == 1
    steps = assert_each_sample_once(ledgers, SAMPLES, BATCH, MICRO)
    assert len(counted(ledgers)) == steps
    assert_same_model(tmp_path, train_plain(SAMPLES, BATCH, steps))


def test_a_full_disk_marks_a_gap_and_stops_nothing(tmp_path: Path) -> None:
    """The launcher may not make any file longer for a while, whatever it writes to; its ranks may, and train on."""
    import resource

    script = options(tmp_path, pace=0.004)
    with launched("--nodes", "1:1", "--", SCRIPT, script, cwd=tmp_path) as job:
        job.events.wait("progress", timeout=LONG)
        size = (job.work_dir / "events.jsonl").stat().st_size
        unlimited = resource.prlimit(job.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        before = max(row["step"] for rows in read_ledgers(tmp_path) for row in rows)
        until(
            lambda: max(row["step"] for rows in read_ledgers(tmp_path) for row in rows) > before + 150,
            "the training goes on",
            LONG,
        )
        resource.prlimit(job.process.pid, resource.RLIMIT_FSIZE, unlimited)
        gap = job.events.wait("events_gap", timeout=LONG)
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert gap["lost"] >= 1
    assert "could not be written" in (job.work_dir / "report.md").read_text()
