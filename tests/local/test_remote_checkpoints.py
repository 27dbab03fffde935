"""A job whose checkpoints are in an object store goes on from there alone; a store that is gone stops nothing."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.support.launches import until
from tests.support.object_store import object_store
from tests.support.relaunches import LONG, Stage

thorough = partial(pytest.param, marks=pytest.mark.thorough)


def test_a_job_goes_on_from_the_store_alone_and_without_it_trains_on(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    with object_store(tmp_path / "buckets") as store:
        options = ("--checkpoint-every", "0.3s", "--checkpoint-dir", store.url)
        with stage.run(2, 5, *options) as job:
            job.events.wait("checkpoint_saved", lambda e: e["path"].startswith(store.url), LONG)
            store.stop()
            warning = job.events.wait("warning", timeout=LONG)
            assert "could not be saved: s3://models/jobs/digits: " in warning["message"]
            known = len(job.events.of("checkpoint_saved"))
            stage.wait_steps(job, 5)
            store.start()
            job.events.wait("checkpoint_saved", lambda e: e not in job.events.of("checkpoint_saved")[:known], LONG)
            until(lambda: _told(store.bucket, 1), "copied")
            stage.kill_everything(job)
        saved = job.events.of("checkpoint_saved")[-1]
        stage.work_dir.rename(tmp_path / "lost")  # another machine has none of its files
        with stage.run(1, 7, *options) as job:
            stage.wait_steps(job, 3)
            until(lambda: _told(store.bucket, 2), "copied")
            stage.kill_everything(job)
        stage.work_dir.rename(tmp_path / "lost, too")
        with stage.run(1, 7, *options) as job:
            stage.wait_steps(job, 3)
            export = [sys.executable, "-m", "elastic_launcher", "checkpoint", "export", str(stage.work_dir)]
            said = subprocess.run([*export, "--to", str(tmp_path / "out.pt")], capture_output=True, text=True)
            assert said.returncode == 0 and f"saved in {store.url}/step-" in said.stdout, said.stderr
            stage.finish(job)
    started = job.events.of("job_started")
    assert [event["term"] for event in started] == [1, 2, 3]
    assert saved["step"] <= started[1]["resumed_step"] <= started[2]["resumed_step"]
    assert (
        f"this job resumes from step {started[2]['resumed_step']}, saved in {started[2]['resumed_path']}" in job.stderr
    )
    assert started[2]["resumed_path"].startswith(f"{store.url}/step-")
    formed = job.events.of("generation_formed")
    assert [(event["generation"], event["world_size"]) for event in formed] == [(1, 2), (2, 1), (3, 1)]
    timeline = (stage.work_dir / "report.html").read_text().partition("<h2>Generations</h2>")[2]
    assert timeline.partition("</table>")[0].count("<tr") == 1 + len(formed)
    nodes = [event["node"] for event in job.events.of("node_started")]
    assert nodes == sorted(set(nodes))
    assert stage.assert_like_plain(job.events.all(), 7) > saved["step"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        thorough("memory://x", "--checkpoint-dir is 'memory://x', which is lost with each process: give a folder"),
        thorough("gopher://host/x", "gopher:// is not known to fsspec"),
        ("s3://models/x", "the checkpoints in s3://models/x can't be read: s3://models/x: "),
    ],
)
def test_a_store_that_cannot_be_used_is_said_before_anything_starts(tmp_path: Path, url: str, said: str) -> None:
    stage = Stage(tmp_path)
    nobody = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ALLOW_HTTP": "true"}
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    with stage.run(1, 5, "--checkpoint-dir", url, **nobody, **keys) as job:
        assert job.wait(LONG) == 2
    assert said in job.stderr and "Traceback" not in job.stderr
    assert job.events.all() == []


@pytest.mark.thorough
def test_ranks_that_come_up_while_the_launcher_is_killed_go_on_from_the_store(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    with object_store(tmp_path / "buckets") as store:
        options = ("--checkpoint-every", "3 steps", "--checkpoint-dir", store.url)
        with stage.run(2, 5, *options) as job:
            job.events.wait("checkpoint_saved", lambda e: e["step"] > 6, LONG)
            stage.kill_everything(job)
        with stage.run(2, 5, *options) as job:
            assert job.node_pid(3) and job.node_pid(4)
            job.process.kill()  # its ranks take seconds to import torch
            job.process.wait()
            with stage.run(2, 5, *options) as job:
                found = job.events.wait("coordinator_adopted", timeout=LONG)
                formed = job.events.wait("generation_formed", lambda e: e["time"] > found["time"], LONG)
                stage.finish(job)
    started = job.events.of("job_started")
    assert found["generation"] == 0 and len(started) == 2
    assert formed["first_step"] == started[1]["resumed_step"] > 6
    stage.assert_like_plain(job.events.all(), 5)


def _told(bucket: Path, term: int) -> bool:
    """Returns whether the store knows a generation of that launcher: one killed before has nothing to tell the next."""
    parts = (bucket / "jobs/digits/events").glob(f"t{term:08d}-*")
    return any(b"generation_formed" in part.read_bytes() for part in parts)
