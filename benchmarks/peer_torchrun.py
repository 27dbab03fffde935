"""The peer of several benchmarks: stock torchrun's c10d rendezvous at its best valid settings."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.common import DEADLINE_SECONDS

SETTINGS = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
DESCRIBED = f"peer: torchrun c10d, {SETTINGS}, {ENVIRONMENT}, max_restarts 9, checkpoints each 10 steps"
PATIENCE = 40.0  # seconds for an agent to end


def free_port() -> int:
    """Returns a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def torchrun_agent(
    port: int, folder: Path, script: Path, arguments: Sequence[str], nodes: str, *, host: bool, ranks: int = 1
) -> subprocess.Popen[bytes]:
    """Starts the agent of one node.

    Args:
        port: Where the rendezvous' store is.
        folder: For logs, stamps and checkpoints.
        script: What it runs, with ``peer``, the folder and the arguments.
        arguments: The script's further arguments.
        nodes: MIN:MAX.
        host: Whether the store is in this agent.
        ranks: Of this node.
    """
    command = [
        *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={ranks}"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=peer", "--max-restarts=9"),
        *("--local-addr=127.0.0.1", f"--rdzv-conf={SETTINGS},is_host={int(host)}", f"--log-dir={folder / 'logs'}"),
        *(str(script), "peer", str(folder), *arguments),
    ]
    environment = os.environ | ENVIRONMENT | {"OMP_NUM_THREADS": "1"}
    with open(folder / "agents.log", "ab") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


@contextlib.contextmanager
def run_agents(folder: Path, script: Path, arguments: Sequence[str], nodes: int, ranks: int) -> Iterator[None]:
    """Starts so many nodes; after what is done meanwhile waits for their end, and ends them whatever happens."""
    port = free_port()
    agents = [
        torchrun_agent(port, folder, script, arguments, f"{nodes}:{nodes}", host=number == 0, ranks=ranks)
        for number in range(nodes)
    ]
    try:
        yield
        for agent in agents:
            agent.wait(DEADLINE_SECONDS)
    finally:
        end_agents(agents)


def end_agents(agents: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends agents and what they started."""
    for agent in agents:
        agent.send_signal(signal.SIGTERM)
    for agent in agents:
        try:
            agent.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(agent.pid, signal.SIGKILL)
