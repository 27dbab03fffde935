"""A node by itself: the real agent over the real torchrun, with small scripts, against a stub of the coordinator."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from elastic_launcher.config import JobConfig
from elastic_launcher.engines.local import node_environment
from elastic_launcher.host import processes
from elastic_launcher.workdir import WorkDir, claim
from tests.support.launches import PATIENCE, ControlStub, assert_no_process, control_stub, until

NODE, FIRST_MEMBER = 3, 7

WAITS = """
import os, time
while not os.path.exists("go"):
    time.sleep(0.02)
"""

DEAF = """
import signal
for number in (1, 2, 15):
    signal.signal(number, signal.SIG_IGN)
"""

LEAVES_ONE_RUNNING = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import os, time\\nif os.fork() == 0:\\n  os.setsid(); time.sleep(600)"]).wait()
"""


@dataclass
class Node:
    """An agent under way."""

    process: subprocess.Popen[bytes]
    work_dir: WorkDir
    stub: ControlStub
    ended: list[dict[str, Any]] = field(default_factory=list)

    def posts(self, what: str) -> list[dict[str, Any]]:
        """Returns what came to one of the node's endpoints; all of it says whose ranks the agent has."""
        told = self.stub.to(f"/v1/nodes/{NODE}/{what}")
        assert all(one["first_member"] == FIRST_MEMBER for one in told)
        return [{name: value for name, value in one.items() if name != "first_member"} for one in told]

    def log(self, local_rank: int = 0) -> str:
        """Returns what a rank wrote."""
        path = self.work_dir.layout.rank_log(NODE, local_rank)
        return path.read_text() if path.exists() else ""

    def await_log(self, text: str, local_rank: int = 0) -> None:
        """Waits until a rank wrote ``text``."""
        until(lambda: text in self.log(local_rank), f"rank {local_rank} writes {text!r}; {self.agent_log()}")

    def agent_log(self) -> str:
        """Returns what agent and torchrun wrote."""
        return self.work_dir.layout.node_log(NODE).read_text()[-3000:]


@contextlib.contextmanager
def node(tmp_path: Path, text: str, *arguments: str, **settings: Any) -> Iterator[Node]:
    """Starts a node that runs a script of that text."""
    (tmp_path / "script.py").write_text(text)
    command: dict[str, Any] = {"script": "script.py", "arguments": arguments, "work_dir": "job"}
    config = JobConfig(**(command | settings))
    with claim(config, tmp_path) as work_dir, control_stub(work_dir.path) as stub:
        layout = work_dir.layout
        environment = node_environment(config, layout, os.environ) | {
            "ELASTIC_NODE": str(NODE),
            "ELASTIC_FIRST_MEMBER": str(FIRST_MEMBER),
        }
        with open(layout.node_log(NODE), "wb") as log:
            agent = [sys.executable, "-P", "-m", "elastic_launcher.agent"]
            process = subprocess.Popen(
                agent, cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        try:
            yield Node(process, work_dir, stub)
        finally:
            process.kill()
            process.wait()
            processes.kill_until_none(str(layout.path))
            layout.remove_tmp(NODE)


@pytest.mark.quick
def test_a_node_that_ends_well_says_so_and_leaves_nothing_but_its_logs(tmp_path: Path) -> None:
    script = """
import os, sys, tempfile
names = ["MEMBER", "NODE", "DATA", "GLOBAL_BATCH_SIZE"]
print(*(os.environ.get("ELASTIC_" + name) for name in names), end=" ")
print(*(os.environ.get(name) for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")), *sys.argv)
print(tempfile.mkdtemp(), file=sys.stderr)
"""
    with node(tmp_path, script, "--lr", "", nproc_per_node=2, data="/data", global_batch_size=8) as ours:
        assert ours.process.wait(PATIENCE) == 0, ours.agent_log()
        ended = sorted(ours.posts("rank_ended"), key=lambda post: int(post["local_rank"]))
        assert ended == [{"local_rank": rank, "exit_code": 0, "signal": None} for rank in (0, 1)]
        assert {post["pid"] for post in ours.posts("heartbeat")} == {ours.process.pid}
        for rank in (0, 1):
            said, folder = ours.log(rank).splitlines()
            assert said == f"{FIRST_MEMBER + rank} {NODE} /data 8 {rank} 127.0.0.1 29555 script.py --lr "
            assert Path(folder).parent == ours.work_dir.layout.tmp(NODE)
        document = json.loads(ours.work_dir.layout.node_file(NODE).read_text())
        assert (document["node"], document["pid"], document["members"]) == (NODE, ours.process.pid, [7, 8])
        assert not ours.work_dir.layout.tmp(NODE).exists()
        assert_no_process(ours.work_dir.path)


def test_a_node_whose_rank_leaves_before_it_says_that_it_left(tmp_path: Path) -> None:
    """As where the launcher is gone, and a rank is the first to see that; torchrun ends the other."""
    script = "import os, signal, sys; signal.pause() if os.environ['LOCAL_RANK'] == '0' else sys.exit(75)"
    with node(tmp_path, script, nproc_per_node=2) as ours:
        assert ours.process.wait(PATIENCE) == 75, ours.agent_log()
        assert {"local_rank": 1, "exit_code": 75, "signal": None} in ours.posts("rank_ended")
        assert_no_process(ours.work_dir.path)


@pytest.mark.parametrize(
    ("script", "ended"),
    [
        pytest.param("import sys; sys.exit(3)", {"exit_code": 3, "signal": None}, marks=pytest.mark.thorough),
        ("raise ValueError('a flaw')", {"exit_code": 1, "signal": None}),
        pytest.param(
            "import os; os.kill(os.getpid(), 9)", {"exit_code": None, "signal": 9}, marks=pytest.mark.thorough
        ),
    ],
)
def test_how_a_rank_ends_is_told_and_makes_the_node_fail(tmp_path: Path, script: str, ended: dict[str, Any]) -> None:
    with node(tmp_path, script) as ours:
        assert ours.process.wait(PATIENCE) == 1
        assert ours.posts("rank_ended") == [{"local_rank": 0} | ended]
        assert "a flaw" in ours.log() if "flaw" in script else not ours.log()


def test_a_rank_that_dies_is_told_while_its_sibling_lives(tmp_path: Path) -> None:
    script = """
import os, signal
signal.signal(15, signal.SIG_IGN)
if os.environ["LOCAL_RANK"] == "0":
    os.kill(os.getpid(), 9)
"""
    with node(tmp_path, script + WAITS, nproc_per_node=2) as ours:
        until(lambda: ours.posts("rank_ended"), "the death is told")
        assert ours.posts("rank_ended") == [{"local_rank": 0, "exit_code": None, "signal": 9}]
        assert ours.process.poll() is None


@pytest.mark.parametrize("code", [pytest.param(0, marks=pytest.mark.thorough), 3])
def test_where_a_full_disk_takes_no_record_of_a_ranks_end_torchrun_tells_of_it(tmp_path: Path, code: int) -> None:
    script = (
        f"import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_FSIZE, (0, 0)); raise SystemExit({code})"
    )
    with node(tmp_path, script) as ours:
        assert ours.process.wait(PATIENCE) == (1 if code else 0), ours.agent_log()
        assert not ours.posts("rank_ended")


@pytest.mark.quick
def test_sigterm_is_a_notice_each_time_and_ends_nothing_by_itself(tmp_path: Path) -> None:
    with node(tmp_path, "print('up')" + WAITS) as ours:
        ours.await_log("up")
        for count in (1, 2):
            ours.process.send_signal(signal.SIGTERM)
            until(lambda: len(ours.posts("notice")) == count, f"notice {count}")  # noqa: B023
        assert ours.posts("notice") == [{"source": "signal"}] * 2
        assert ours.process.poll() is None
        (tmp_path / "go").touch()
        assert ours.process.wait(PATIENCE) == 0


@pytest.mark.thorough
def test_a_sigterm_to_the_whole_session_is_a_notice_too(tmp_path: Path) -> None:
    with node(tmp_path, "print('up')" + WAITS) as ours:
        ours.await_log("up")
        os.killpg(ours.process.pid, signal.SIGTERM)
        until(lambda: ours.posts("notice"), "a notice")
        (tmp_path / "go").touch()
        assert ours.process.wait(PATIENCE) == 0


def test_a_notice_that_nobody_takes_ends_the_node(tmp_path: Path) -> None:
    with node(tmp_path, "print('up')" + WAITS, orphan_timeout=8.0) as ours:
        ours.await_log("up")
        ours.stub.stop()
        ours.process.send_signal(signal.SIGTERM)
        assert ours.process.wait(PATIENCE) == 1
        assert "a notice could not be delivered" in ours.agent_log()
        assert json.loads(ours.work_dir.layout.exit_file(NODE, 0).read_text()) == {"exit_code": None, "signal": 15}
        assert_no_process(ours.work_dir.path)


@pytest.mark.quick
def test_ranks_die_with_their_agent(tmp_path: Path) -> None:
    script = "import signal\nsignal.signal(15, signal.SIG_IGN)\nprint('up')\n"
    with node(tmp_path, script + WAITS, nproc_per_node=2) as ours:
        ours.await_log("up", 0)
        ours.await_log("up", 1)
        ours.process.kill()
        assert_no_process(ours.work_dir.path)


@pytest.mark.parametrize(("number", "name"), [(signal.SIGKILL, "SIGKILL"), (37, "signal 37")])
def test_ranks_die_with_torchrun(tmp_path: Path, number: int, name: str) -> None:
    with node(tmp_path, "print('up')" + WAITS) as ours:
        ours.await_log("up")
        (launcher,) = psutil.Process(ours.process.pid).children()
        launcher.send_signal(number)
        assert ours.process.wait(PATIENCE) == 1
        assert ours.posts("rank_ended") == [{"local_rank": 0, "exit_code": None, "signal": signal.SIGKILL}]
        assert f"torchrun was killed by {name}, and its ranks with it" in ours.agent_log()
        assert_no_process(ours.work_dir.path)


def test_a_rank_whose_parent_is_killed_leaves_no_word_that_could_be_taken_for_its_scripts(tmp_path: Path) -> None:
    with node(tmp_path, "print('up')" + WAITS) as ours:
        ours.await_log("up")
        (launcher,) = psutil.Process(ours.process.pid).children()
        (parent,) = launcher.children()
        parent.kill()
        assert ours.process.wait(PATIENCE) == 1
        assert not ours.posts("rank_ended")
        assert_no_process(ours.work_dir.path)


def test_a_node_without_its_coordinator_leaves_within_the_orphan_timeout(tmp_path: Path) -> None:
    script = DEAF + LEAVES_ONE_RUNNING + "print('up')" + WAITS
    with node(tmp_path, script, orphan_timeout=3.0) as ours:
        ours.await_log("up")
        ours.stub.stop()
        stopped = time.monotonic()
        assert ours.process.wait(PATIENCE) == 75
        assert time.monotonic() - stopped < 3.0 + 2.0
        assert "has not answered for 3 s: leaving; nothing was saved" in ours.agent_log()
        assert ours.log().endswith("has not answered for 3 s: this rank leaves; nothing was saved\n")
        assert_no_process(ours.work_dir.path)


def test_time_in_which_a_node_stands_still_itself_is_not_its_coordinators_silence(tmp_path: Path) -> None:
    with node(tmp_path, "print('up')" + WAITS, orphan_timeout=3.0) as ours:
        ours.await_log("up")
        heard = len(ours.posts("heartbeat"))
        ours.process.send_signal(signal.SIGSTOP)
        time.sleep(4.0)  # of its standstill
        ours.process.send_signal(signal.SIGCONT)
        until(lambda: len(ours.posts("heartbeat")) > heard + 1, "it reports again")
        (tmp_path / "go").touch()
        assert ours.process.wait(PATIENCE) == 0, ours.agent_log()


def test_a_refusal_is_no_contact(tmp_path: Path) -> None:
    with node(tmp_path, "print('up')" + WAITS, orphan_timeout=3.0) as ours:
        ours.await_log("up")
        ours.stub.refuse.add(f"/v1/nodes/{NODE}/heartbeat")
        assert ours.process.wait(PATIENCE) == 75


def test_what_a_script_left_running_ends_with_the_node(tmp_path: Path) -> None:
    with node(tmp_path, LEAVES_ONE_RUNNING) as ours:
        assert ours.process.wait(PATIENCE) == 0
        assert_no_process(ours.work_dir.path, timeout=0.5)


def test_files_of_the_user_do_not_get_in_torchruns_way(tmp_path: Path) -> None:
    for name in ("json.py", "queue.py", "torch.py"):
        (tmp_path / name).write_text("raise ImportError('not for torchrun')\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("import sys; print(__name__, *sys.argv[1:])")
    with node(tmp_path, "", "--x", "1", script=None, module="package.train") as ours:
        assert ours.process.wait(PATIENCE) == 0, ours.agent_log()
        assert ours.log() == "__main__ --x 1\n"


def test_variables_of_another_torchrun_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PET_NPROC_PER_NODE": "3", "PET_STANDALONE": "1", "PET_MODULE": "1", "RANK": "5"}.items():
        monkeypatch.setenv(name, value)
    with node(tmp_path, "import os; print(os.environ['RANK'], 'PET_MODULE' in os.environ)") as ours:
        assert ours.process.wait(PATIENCE) == 0, ours.agent_log()
        assert ours.log() == "0 False\n"
