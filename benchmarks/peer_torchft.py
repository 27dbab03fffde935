"""A peer of `benchmarks.failure`: replicas of torchft under its lighthouse, where it is installed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.common import kill
from benchmarks.peer_torchrun import free_port

SETTINGS = ("--min_replicas=1", "--join_timeout_ms=500", "--quorum_tick_ms=10", "--heartbeat_timeout_ms=500")
INSTALLED = importlib.util.find_spec("torchft") is not None
DESCRIBED = (
    f"peer: torchft, replicas of one rank, gloo, lighthouse with {' '.join(SETTINGS)}; heartbeats come each 100 ms"
    if INSTALLED
    else "torchft is left out: pip install -c constraints.txt torchft-nightly (its 0.2.0 dies in each row)"
)


@contextlib.contextmanager
def replicas(
    count: int, folder: Path, script: Path, arguments: Sequence[str]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Runs a lighthouse and so many replicas, and ends them.

    Args:
        count: How many.
        folder: For logs and stamps.
        script: What they run, with ``torchft``, the folder and the arguments.
        arguments: The script's further arguments.
    """
    port = free_port()
    environment = os.environ | {
        "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}",
        "NUM_REPLICA_GROUPS": str(count),
        "OMP_NUM_THREADS": "1",
    }
    lighthouse = [str(Path(sys.executable).with_name("torchft_lighthouse")), f"--bind=127.0.0.1:{port}", *SETTINGS]
    replica = [sys.executable, str(script), "torchft", str(folder), *arguments]
    with contextlib.ExitStack() as ends:

        def start(command: Sequence[str], name: str) -> subprocess.Popen[bytes]:
            with open(folder / f"{name}.log", "ab") as log:
                process = subprocess.Popen(
                    command, env=environment | {"REPLICA_GROUP_ID": name}, stdout=log, stderr=log
                )
            ends.callback(process.wait)
            ends.callback(lambda: kill(process.pid) if process.poll() is None else None)
            return process

        start(lighthouse, "lighthouse")
        yield [start(replica, f"replica-{number}") for number in range(count)]
