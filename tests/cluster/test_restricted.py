"""What a training may need of its pod, under the *restricted* standard: a compiler, loader workers, shared memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import pods
from tests.support.cluster.stage import Stage, staged
from tests.support.compiler import COMPILER, HEADER
from tests.support.ledgers import SCRIPT
from tests.support.losses import assert_same_training, options
from tests.support.resizes import formed

COMPILED_WITHIN = 600.0  # a compile takes a minute or two for each rank, on a machine of two cores
SHARED = 1 << 30  # bytes: what nodes get unless their template says otherwise
# What a node's pod looks like from within. A loader worker is forked from its rank.
LOOK = """
import json, os, pathlib
memory = os.statvfs("/dev/shm")
try:
    pathlib.Path("/written").touch()
    root = "written to"
except OSError:
    root = "read-only"
commands, parents = {}, {}
for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        parents[process.name] = (process / "stat").read_text().rpartition(")")[2].split()[1]
        commands[process.name] = (process / "cmdline").read_bytes()
    except OSError:
        pass
ranks = [one for one, command in commands.items() if b"train.py" in command]
print(json.dumps({
    "shared": memory.f_blocks * memory.f_frsize,
    "root": root,
    "user": os.getuid(),
    "loaders": len([one for one in ranks if commands.get(parents[one]) == commands[one]]),
    "compiled": len([name for _, _, names in os.walk("/tmp") for name in names if name.endswith(".so")]),
}))
"""
pytestmark = [
    pytest.mark.machine,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(COMPILER is None, reason="torch.compile needs a C++ compiler: install g++, or name one in CXX"),
    pytest.mark.skipif(not HEADER.exists(), reason=f"torch.compile needs Python's headers: there is no {HEADER}"),
]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "restricted") as stage:
        yield stage


def look(stage: Stage, pod: str) -> dict[str, Any]:
    """Returns what a node's pod sees of itself."""
    python = pods.python_pod(stage.space, "any")["spec"]["containers"][0]["command"][0]
    return dict(json.loads(stage.kubectl("exec", pod, f"--namespace={stage.space}", "--", python, "-c", LOOK)))


def test_a_compiled_model_trains_with_loader_workers_in_restricted_pods(stage: Stage) -> None:
    script = options(stage.folder, compile=True, workers=2, pace=0.05)
    stage.launch("--nodes=2:2", f"--start-timeout={COMPILED_WITHIN:g}", script=SCRIPT, argument=script)
    formed(stage, 2, 0, COMPILED_WITHIN)
    for pod in stage.nodes().values():
        name = pod["metadata"]["name"]
        found = look(stage, name)
        assert (found["root"], found["user"], found["shared"]) == ("read-only", pods.UID, SHARED)
        assert found["loaders"] == 2
        assert found["compiled"], "nothing was compiled"
    (stage.folder / "stop").touch()
    assert stage.wait() == 0
    assert_same_training(stage.folder, stage)
