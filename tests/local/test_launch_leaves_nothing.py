"""However a launch ends, nothing of it is left outside its work directory (``make soak`` has 80 more)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.soak.cases import case
from tests.soak.play import play
from tests.support.launches import until
from tests.support.leftovers import Stage

LEAVES = """
import os, socket, sys, time

for folder in (os.environ["HOME"], "/dev/shm"):
    open(os.path.join(folder, f"left-by-{os.getpid()}"), "w").close()
listener = socket.create_server(("127.0.0.1", 0))
listener.set_inheritable(True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        waits = "import os, time; os.write(1, b'left'); time.sleep(1000)"
        os.execve(sys.executable, ["a stray", "-I", "-S", "-c", waits], {})
    os._exit(0)
os.wait()
while not os.path.exists("stop"):
    time.sleep(0.02)
"""


@pytest.mark.parametrize("number", [4, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(1, 21) if n != 4)])
def test_a_launch_leaves_nothing(tmp_path: Path, number: int) -> None:
    outcome = play(case(number), tmp_path)
    assert outcome.problems == (), outcome.line


def test_what_a_launch_leaves_is_found(tmp_path: Path) -> None:
    """A script may do what no launcher can undo: a process of another session, parent and environment."""
    script = tmp_path / "leaves.py"
    script.write_text(LEAVES)
    (tmp_path / "stage").mkdir()
    stage = Stage(tmp_path / "stage", script=script)
    try:
        with stage.launched("--nodes=1:1") as launcher:
            log = launcher.work_dir / "logs" / "1-0.log"
            until(lambda: log.exists() and "left" in log.read_text(), "the stray runs")
            stage.look()
            (stage.here / "stop").touch()
            launcher.wait()
            left = stage.left(patience=1.0)
        kinds = [line.split()[0] for line in left]
        assert kinds == ["process", "socket", "file", "file"], left
        assert "a stray" in left[0]
        assert str(stage.home) in left[2] and "/dev/shm/" in left[3]
        assert stage.left() == left[2:], "the stage ends what is left"
    finally:
        for process in stage.seen:
            Path(f"/dev/shm/left-by-{process.pid}").unlink(missing_ok=True)


@pytest.mark.thorough
def test_the_ports_of_a_launch_are_known(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    with stage.launched("--nodes=1:1") as launcher:
        launcher.events.wait("progress")
        stage.look()
        control = json.loads((launcher.work_dir / "control.json").read_text())
        addresses = (control["url"], control["store"])
        assert {int(address.rpartition(":")[2]) for address in addresses} <= stage.ports
        assert len(stage.left(patience=0.0)) >= len(stage.ports), "all that is held counts while it is held"
        (stage.here / "stop").touch()
        assert launcher.wait() == 0
        stage.assert_nothing_left()
