"""The launcher's pod goes: its nodes train on under the next one, or leave by themselves where there is no next one."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_launcher.checkpoint import find_newest
from tests.support.cluster.ends import finish
from tests.support.cluster.ranks import adopted, processes, send_ranks
from tests.support.cluster.stage import LONG, Stage, staged
from tests.support.launches import until
from tests.support.ledgers import SCRIPT, read_ledgers
from tests.support.losses import assert_same_training, options
from tests.support.resizes import formed

ORPHAN, GRACE = 30.0, 15.0
LATE = 20.0
"""Seconds beyond the two, for the cluster to show what has ended, on a machine that does other things too."""
ENDED = ("Succeeded", "Failed")
PACE = 0.02
STRIKE = """
import os, pathlib, signal
for process in pathlib.Path("/proc").glob("[0-9]*"):
    if b"--engine=kubernetes" in (process / "cmdline").read_bytes().split(b"\\0"):
        os.kill(int(process.name), signal.SIGKILL)
"""
pytestmark = [pytest.mark.machine, pytest.mark.timeout(900)]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "goes") as stage:
        yield stage


def evict(stage: Stage, pod: str) -> None:
    """Evicts a pod by the API, as a drain does: with all its grace."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    path = f"/api/v1/namespaces/{stage.space}/pods/{pod}/eviction"
    stage.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))


def kill(stage: Stage, pod: str) -> None:
    """Has the API forget a pod, and its machine end it: that leaves it two seconds after SIGTERM."""
    stage.delete("pod", pod, "--grace-period=0", "--force")


def strike(stage: Stage, pod: str) -> None:
    """Kills what runs in a pod, which gets no word of it beforehand; its processes have to be shared."""
    stage.kubectl("exec", pod, f"--namespace={stage.space}", "--", f"{sys.prefix}/bin/python", "-c", STRIKE)


@pytest.mark.thorough
def test_a_job_survives_two_launchers_and_its_report_tells_of_every_generation(stage: Stage) -> None:
    stage.allow(2)
    argument = options(stage.folder, pace=PACE)
    stage.launch("--nodes=2:3", "--hints=configmap/gpu-hints", script=SCRIPT, argument=argument)
    formed(stage, 2, 0)
    before, pids = stage.uids(), processes(stage)
    (first,) = stage.launchers()
    evict(stage, first["metadata"]["name"])
    found = adopted(stage, 2)
    assert {one["member"]: {one["pid"]} for one in found["members"]} == pids
    assert stage.uids() == before

    stage.allow(3)
    formed(stage, 3, 1)
    before, pids = stage.uids(), processes(stage)
    kill(stage, stage.launchers()[-1]["metadata"]["name"])
    found = adopted(stage, 3)
    assert {one["member"]: {one["pid"]} for one in found["members"]} == pids
    assert stage.uids() == before

    stage.allow(2)
    formed(stage, 2, 2)
    assert processes(stage) == pids, "no process restarted"
    (stage.folder / "stop").touch()
    assert stage.wait() == 0
    assert_same_training(stage.folder, stage)
    for rows in read_ledgers(stage.folder):
        done = [row["step"] for row in rows if row["sync"] and row["rank"] is not None]
        assert done == sorted(set(done)), "no step was done again"
    assert len(stage.events.of("job_started")) == 1
    assert not stage.events.of("node_lost")
    assert [event["generation"] for event in stage.events.of("generation_formed")] == [1, 2, 3]
    report = (stage.work_dir / "report.md").read_text()
    told = re.findall(r"^\| (\d+) \| [^|]+ \| [^|]+ \| (\d+) \|", report, re.MULTILINE)
    assert told == [("1", "2"), ("2", "3"), ("3", "2")]


@pytest.mark.thorough
def test_a_launcher_that_is_moved_while_it_still_waits_for_a_rank_leaves_the_job_to_the_next(stage: Stage) -> None:
    limits = ("--heartbeat-timeout=90", "--orphan-timeout=180")
    stage.launch("--nodes=2:2", *limits, script=SCRIPT, argument=options(stage.folder, pace=PACE))
    formed(stage, 2, 0, LONG)
    before, pids = stage.uids(), processes(stage)
    wake = send_ranks(stage, 2, "SIGSTOP")
    evict(stage, stage.launchers()[-1]["metadata"]["name"])
    control = stage.work_dir / "control.json"
    until(lambda: json.loads(control.read_text())["term"] == 2, "a launcher comes back", LONG)
    came_back = control.stat().st_mtime
    until(lambda: stage.status()["told"] > came_back, "it follows the cluster", LONG)
    evict(stage, stage.launchers()[-1]["metadata"]["name"])
    until(lambda: json.loads(control.read_text())["term"] == 3, "another one comes", LONG)
    wake()
    found = adopted(stage, 3)
    assert [event["term"] for event in stage.events.of("coordinator_adopted")] == [3]
    assert {one["member"]: {one["pid"]} for one in found["members"]} == pids
    assert stage.uids() == before
    finish(stage)
    assert not stage.events.of("node_lost")


@pytest.mark.thorough
@pytest.mark.parametrize("moment", ["after the others have saved", "at once"])
def test_nodes_that_nobody_governs_leave_a_checkpoint_and_nothing_else(stage: Stage, moment: str) -> None:
    every = "1h" if moment == "after the others have saved" else "20 steps"
    limits = (f"--orphan-timeout={ORPHAN:g}", f"--grace-period={GRACE:g}", f"--checkpoint-every={every}")
    argument = options(stage.folder, pace=PACE)
    shared = {"shareProcessNamespace": True}
    stage.launch("--nodes=3:3", *limits, script=SCRIPT, argument=argument, launcher=shared, retries=0)
    generation = formed(stage, 3, 0)
    if every != "1h":
        stage.events.wait("checkpoint_saved", lambda event: event["step"] > generation["first_step"], LONG)
    before = stage.uids()
    strike(stage, stage.launchers()[-1]["metadata"]["name"])
    began = time.monotonic()
    if every == "1h":
        until(lambda: find_newest(stage.folder / "checkpoints").manifest, "the nodes save what they have", LONG)
    kill(stage, stage.nodes()[2]["metadata"]["name"])

    def gone() -> bool:
        nodes = stage.nodes()
        assert {pod["metadata"]["uid"] for pod in nodes.values()} <= set(before.values()), "a pod was made"
        return all(pod["status"]["phase"] in ENDED for pod in nodes.values())

    until(gone, "the nodes leave", ORPHAN + GRACE + LATE - (time.monotonic() - began))
    assert len(stage.get("jobs")) == 1 + len(before)
    idle = "no Job has a pod, or makes one"
    until(lambda: not any(job["status"].get("active") for job in stage.get("jobs")), idle, LONG)
    assert stage.events.of("job_finished") == [], "nobody has ended it"
    assert find_newest(stage.folder / "checkpoints").manifest is not None
