"""How a node's torchrun is started: its command line and its environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from elastic_launcher.config import JobConfig

RANK_EXEC = Path(__file__).with_name("rank_exec.py")
FOREIGN = ("PET_", "TORCHELASTIC_")
"""Variables by which the user's shell, or a torchrun around us, would change how ours behaves."""


def command(config: JobConfig, job_id: str, store: str, log_dir: Path, python: str = sys.executable) -> list[str]:
    """Returns torchrun's command line.

    Args:
        config: The job.
        job_id: Its id.
        store: ``host:port`` of the coordinator's store.
        log_dir: Where torchrun keeps its own files.
        python: The interpreter, for torchrun and for the script.
    """
    # -P: a json.py or queue.py in the user's folder is for the script, not for torchrun
    return [
        *(python, "-P", "-m", "torch.distributed.run"),
        f"--nnodes={config.min_nodes}:{config.max_nodes}",
        f"--nproc-per-node={config.nproc_per_node}",
        "--rdzv-backend=elastic-launcher",
        f"--rdzv-endpoint={store}",
        f"--rdzv-id={job_id}",
        "--max-restarts=0",
        f"--log-dir={log_dir}",
        "--no-python",
        *(python, "-I", "-S", str(RANK_EXEC)),
        *(python, "-u", *config.command),
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
    kept |= {"ELASTIC_AGENT_PID": str(agent), "TMPDIR": str(tmp)}
    kept.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache / "torchinductor"))
    return kept
