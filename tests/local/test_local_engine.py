"""Nodes on this machine: started, told, killed whole, with GPUs of their own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_launcher.config import JobConfig
from elastic_launcher.engines import NodeExit, NodeSpec
from elastic_launcher.engines.local import LocalEngine
from elastic_launcher.workdir import WorkDir, claim
from tests.support.launches import ControlStub, assert_no_process, control_stub, until

SCRIPT = """
import os, signal, subprocess, sys, time
signal.signal(15, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import os, time\\nif os.fork() == 0:\\n  os.setsid(); time.sleep(600)"]).wait()
print("gpus", os.environ.get("CUDA_VISIBLE_DEVICES"), "threads", os.environ["OMP_NUM_THREADS"])
while not os.path.exists("go"):
    time.sleep(0.02)
"""


@pytest.fixture
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkDir]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "script.py").write_text(SCRIPT)
    with claim(JobConfig(script="script.py", max_nodes=1000, work_dir="job"), tmp_path) as claimed:
        yield claimed


@pytest.fixture
def stub(work_dir: WorkDir) -> Iterator[ControlStub]:
    with control_stub(work_dir.path) as served:
        yield served


def _await_up(work_dir: WorkDir, node: int) -> str:
    path = work_dir.layout.rank_log(node, 0)
    until(lambda: path.exists() and path.read_text().endswith("\n"), f"node {node} is up")
    return path.read_text().strip()


@pytest.mark.quick
def test_nodes_have_gpus_of_their_own_are_killed_whole_and_leave_nothing(work_dir: WorkDir, stub: ControlStub) -> None:
    config = JobConfig(script="script.py", max_nodes=1000)
    engine = LocalEngine(config, work_dir.layout, gpus=["4", "5"])
    try:
        engine.start(NodeSpec(1, 1, 1))
        engine.start(NodeSpec(2, 2, 1))
        with pytest.raises(OSError, match="node 3 needs 1 GPUs, 0 are left"):
            engine.start(NodeSpec(3, 3, 1))
        assert _await_up(work_dir, 1) == "gpus 4 threads 1"
        assert _await_up(work_dir, 2) == "gpus 5 threads 1"
        assert engine.poll() == []
        engine.kill(1)
        assert until(engine.poll, "node 1 is gone", timeout=5) == [NodeExit(1, -9)]
        assert not work_dir.layout.tmp(1).exists()
        engine.start(NodeSpec(4, 4, 1))
        assert _await_up(work_dir, 4) == "gpus 4 threads 1"
        engine.notice(2)
        until(lambda: stub.to("/v1/nodes/2/notice"), "the notice")
    finally:
        engine.close()
    assert_no_process(work_dir.path, timeout=0.5)
    assert not work_dir.layout.tmp(2).exists()


def test_who_has_the_process_id_of_an_agent_that_has_ended_is_not_killed_for_it(
    work_dir: WorkDir, stub: ControlStub
) -> None:
    Path("go").touch()
    engine = LocalEngine(JobConfig(script="script.py"), work_dir.layout)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
        try:
            engine.start(NodeSpec(1, 1, 1))
            agent = engine.agent(1)
            assert agent is not None
            agent.kill()
            agent.wait()
            agent.pid = stranger.pid
            engine.kill(1)
            assert stranger.communicate(b"alive")[0] == b"alive"
        finally:
            stranger.kill()
            engine.close()
    assert_no_process(work_dir.path, timeout=0.5)


def test_a_notice_to_a_node_that_has_just_been_started_is_not_lost(work_dir: WorkDir, stub: ControlStub) -> None:
    Path("go").touch()
    engine = LocalEngine(JobConfig(script="script.py"), work_dir.layout)
    engine.start(NodeSpec(1, 1, 1))
    engine.notice(1)
    assert until(engine.poll, "node 1 is gone") == [NodeExit(1, 0)]
    assert stub.to("/v1/nodes/1/notice") == [{"source": "signal", "first_member": 1}]
    engine.close()


def test_a_node_that_ends_is_told_once_with_its_exit_code(work_dir: WorkDir, stub: ControlStub) -> None:
    Path("go").touch()
    engine = LocalEngine(JobConfig(script="script.py"), work_dir.layout, gpus=[], environment=os.environ)
    engine.start(NodeSpec(1, 1, 1))
    assert until(engine.poll, "node 1 is gone") == [NodeExit(1, 0)]
    assert engine.poll() == []
    assert work_dir.layout.rank_log(1, 0).read_text().startswith("gpus  threads")
    engine.close()


def test_another_engine_takes_over_what_lives(work_dir: WorkDir, stub: ControlStub) -> None:
    config = JobConfig(script="script.py", max_nodes=1000)
    engine = LocalEngine(config, work_dir.layout, gpus=["4", "5", "6"])
    other = LocalEngine(config, work_dir.layout, gpus=["4", "5", "6"])
    try:
        for node in (1, 2):
            engine.start(NodeSpec(node, node, 1))
            _await_up(work_dir, node)
        engine.kill(1)
        until(engine.poll, "node 1 is gone")
        found = other.find()
        assert [(one.spec, one.slot, one.has_ended()) for one in found] == [(NodeSpec(2, 2, 1), 1, False)]
        other.adopt(found)
        assert other.poll() == []
        other.start(NodeSpec(3, 3, 1))
        assert _await_up(work_dir, 3) == "gpus 4 threads 1"
        other.notice(2)
        until(lambda: stub.to("/v1/nodes/2/notice"), "the notice")
        other.kill(2)
        assert until(other.poll, "node 2 is gone") == [NodeExit(2, None)]
        assert other.find()[0].spec == NodeSpec(3, 3, 1)
    finally:
        other.close()
        engine.close()
    assert_no_process(work_dir.path, timeout=0.5)
