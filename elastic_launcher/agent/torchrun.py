"""The command line and the environment of a node's torchrun."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path

from elastic_launcher import variables
from elastic_launcher.config import JobConfig

RANK_EXEC = Path(__file__).with_name("rank_exec.py")
LOOPBACK = "127.0.0.1"
FOREIGN = ("PET_", "TORCHELASTIC_")
"""Variables by which the user's shell, or a torchrun around us, would change how ours behaves."""


RESTARTS = "--max-restarts=1000000"
"""Where workers are started again and again it is the coordinator that counts failures."""
C10D = "is_host=0,last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"
"""The store is the coordinator's; a node that went away is missed after 3 s and waited for no longer (default 45 s).

A node that waits to come in looks once a second, so a last call of a second would leave it out now and then.
"""
CURES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without it, torch 2.13 to 2.15 hang when a node comes to c10d agents that run already."""


def command(
    config: JobConfig, job_id: str, store: str, log_dir: Path, python: str = sys.executable, *, respawn: bool = False
) -> list[str]:
    """Returns torchrun's command line.

    Args:
        config: The job.
        job_id: Its id.
        store: ``host:port`` of the coordinator's store.
        log_dir: Where torchrun keeps its own files.
        python: The interpreter, for torchrun and for the script.
        respawn: Whether workers are restarted when the size changes.
    """
    program = "elastic_launcher.agent.run"
    if not respawn:
        rounds = ["--rdzv-backend=elastic-launcher", "--max-restarts=0"]
    elif config.rdzv_backend == "c10d":
        program = "torch.distributed.run"
        settings = f"{C10D},join_timeout={math.ceil(config.start_timeout)}"
        host = store.rpartition(":")[0]
        rounds = ["--rdzv-backend=c10d", f"--rdzv-conf={settings}", RESTARTS]
        rounds += [f"--local-addr={host}"] if host == LOOPBACK else []  # all nodes are on this machine
    else:
        rounds = ["--rdzv-backend=elastic-launcher", "--rdzv-conf=shared=1", RESTARTS]
    # -P: a json.py or queue.py in the user's folder is for the script, not for torchrun
    return [
        *(python, "-P", "-m", program),
        f"--nnodes={config.min_nodes}:{config.max_nodes}",
        f"--nproc-per-node={config.nproc_per_node}",
        *rounds,
        f"--rdzv-endpoint={store}",
        f"--rdzv-id={job_id}",
        f"--log-dir={log_dir}",
        "--no-python",
        python,
        # torch takes each word from here on for a template, in which $ has a meaning
        *(word.replace("$", "$$") for word in ("-I", "-S", str(RANK_EXEC), python, "-u", *config.command)),
    ]


def environment(inherited: Mapping[str, str], agent: int, tmp: Path, cache: Path) -> dict[str, str]:
    """Returns torchrun's environment, which ranks inherit.

    Args:
        inherited: The agent's own environment.
        agent: The agent's process id: ranks make sure that torchrun is still its child.
        tmp: The node's temporary folder.
        cache: Where compiled code goes, unless the user has said it.
    """
    kept = {name: value for name, value in inherited.items() if not name.startswith(FOREIGN)}
    kept |= {variables.AGENT_PID: str(agent), "TMPDIR": str(tmp), **CURES}
    kept.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache / "torchinductor"))
    return kept
