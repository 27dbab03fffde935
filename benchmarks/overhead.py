"""Steady step time against hand-written DDP, both in the same two processes, in alternating blocks of ten steps.

With all that production has on: the launcher, its control threads, the loader, agreement, loss and random numbers.
A row of DDP against DDP shows the noise. Each row goes on until its interval is no wider than one percent to each side,
so that one percent can be told from nothing, or else to the end of its blocks, which it says. On a machine with GPUs
the rows are of those, with NCCL, a rank each (one rank where there is one): there they hold what it costs that the host
waits for each reduction's end. The interval is the bootstrap's 95 % of the median of the paired ratios.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import DEADLINE_SECONDS, SCRIPTS, finish, launched
from benchmarks.paired import EACH, FEWEST, is_told, paired_row, print_paired

SCRIPT = SCRIPTS / "overhead_train.py"
SETTINGS = "gradient_as_bucket_view, static_graph, no buffer broadcast, no_sync, AdamW foreach, the same threads"


def read(out: Path) -> dict[str, Any]:
    """Returns the times so far."""
    return dict(json.loads(out.read_text())) if out.exists() else {"ours": [], "peer": []}


def ratios_of(out: Path) -> list[float]:
    """Returns our time to the peer's, of each pair of blocks so far."""
    times = read(out)
    return [ours / peer for ours, peer in zip(times["ours"], times["peer"], strict=True)]


def measure(model: str, accumulation: int, blocks: int, side: str, ranks: int = 2) -> dict[str, Any]:
    """Runs one pair."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        out = Path(name) / "times.json"
        arguments = (SCRIPT, model, accumulation, out, side, ranks)
        with launched("--nodes", f"{ranks}:{ranks}", "--", *map(str, arguments)) as job:
            for wanted in (*range(FEWEST, blocks, EACH), blocks):
                job.wait_for(f"{wanted} pairs of blocks", lambda wanted=wanted: len(ratios_of(out)) >= wanted)
                if is_told(ratios_of(out)):
                    break
            out.with_name("enough").touch()
            job.process.wait(DEADLINE_SECONDS)
        times = read(out)
    case = (
        f"{model} tensors, accumulation {accumulation}"
        + (", DDP against itself" if side == "ddp" else "")
        + (", one rank" if ranks == 1 else "")
    )
    return paired_row("overhead", case, times["ours"], times["peer"], "ours to peer", 1.01, threads=times["threads"])


def main() -> None:
    """Prints a row a model and accumulation, and one of noise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=400, help="pairs of blocks of a row at most (400)")
    blocks = parser.parse_args().blocks
    gpus = torch.cuda.device_count()
    ranks = min(2, gpus or 2)
    print(f"peer: DistributedDataParallel, {SETTINGS}; {ranks} ranks on {'GPUs' if gpus else 'the CPU'}")
    rows = []
    for model, accumulation, side in (
        ("small", 1, "job"),
        ("small", 4, "job"),
        ("large", 1, "job"),
        ("large", 4, "job"),
        ("small", 1, "ddp"),
    ):
        row = measure(model, accumulation, blocks, side, ranks)
        print_paired(row)
        rows.append(row)
    finish(rows)


if __name__ == "__main__":
    main()
