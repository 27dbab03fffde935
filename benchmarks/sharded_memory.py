"""The memory of a rank of a training that is sharded within each node, against torch's FSDP on one node, and its HSDP.

Each figure is how much larger the resident memory of a rank has been at most (the largest of all ranks) with a large
model than with a tiny one, so that neither Python nor torch is in it, in parts of the model: what a rank holds of its
parameters. With AdamW (one parameter at a time, not foreach, whose temporaries are a part too), a rank holds four parts
where FSDP runs: parameters, gradients, and two moments. Beyond that it has what is gathered of a block, the activations
and, where checkpoints are written beside the training, a copy of what is saved: three parts.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import DEADLINE_SECONDS, SCRIPTS, finish, in_turn, launched, options_of, row
from benchmarks.peer_torchrun import run_agents

SCRIPT = SCRIPTS / "sharded_train.py"
RANKS = 2  # of a node
LAYERS, WIDTH, TINY = 8, 720, 8
PART = LAYERS * 12 * WIDTH**2 * 4 / RANKS  # bytes of parameters, but for the small ones
STEPS = 6
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed is given back at once


@dataclass(frozen=True)
class Case:
    """What is compared.

    Attributes:
        peer_nodes: Nodes of the peer: one is FSDP alone, two are HSDP.
        save_every: Steps between two checkpoints; 0 for none.
    """

    peer_nodes: int
    save_every: int

    @property
    def name(self) -> str:
        """As it is printed."""
        saves = f", a checkpoint each {self.save_every} steps" if self.save_every else ", no checkpoints"
        return ("FSDP on one node" if self.peer_nodes == 1 else "HSDP on two nodes") + saves


CASES = tuple(Case(nodes, save_every) for nodes in (1, 2) for save_every in (0, 3))


def script_options(width: int, nodes: int, save_every: int) -> str:
    """Returns the script's options: one sample a rank and step."""
    more = {"batch": nodes * RANKS, "micro": 1, "save_every": save_every, "steps": STEPS}
    return json.dumps({"report": "memory", "layers": LAYERS, "width": width, **more})


def largest(folder: Path) -> int:
    """Returns the most bytes that any rank has had."""
    return max(int(json.loads(file.read_text())["VmHWM"]) for file in folder.glob("memory-*.json"))


def ours(width: int, save_every: int) -> int:
    """Returns the most memory of a rank of ours."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        saves = ("--checkpoint-every", f"{save_every or 10 * STEPS} steps")
        arguments = ("--nodes", "2:2", "--nproc-per-node", str(RANKS), *saves)
        options = script_options(width, 2, save_every)
        with launched(*arguments, "--", SCRIPT, "ours", folder, options) as job:
            job.process.wait(DEADLINE_SECONDS)
        return largest(folder)


def peer(width: int, nodes: int, save_every: int) -> int:
    """Returns the most memory of a rank of the peer."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        with run_agents(folder, SCRIPT, [script_options(width, nodes, save_every)], nodes, RANKS):
            pass
        return largest(folder)


def main() -> None:
    """Prints a row for each case."""
    options = options_of(__doc__)
    os.environ.update(MALLOC)
    print(f"{LAYERS} blocks of width {WIDTH}: a part is {PART / 2**20:.0f} MB; peer: fully_shard, async_save, AdamW")
    rows = []

    def mine(case: Case) -> float:
        return (ours(WIDTH, case.save_every) - ours(TINY, case.save_every)) / PART

    def theirs(case: Case) -> float:
        large, tiny = (peer(width, case.peer_nodes, case.save_every) for width in (WIDTH, TINY))
        return (large - tiny) / PART

    for case, found, others in in_turn(CASES, options, mine, theirs):
        one = row("sharded memory", found, others, "parts (ratio: peer to ours)", case=case.name)
        print(f"{case.name}: ours {one['ours']:.2f} parts, {one['peer']:.2f}; all: {one['ours_all']}", flush=True)
        rows.append(one)
    finish(rows)


if __name__ == "__main__":
    main()
