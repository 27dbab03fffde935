"""Steady step time against hand-written DDP, both in the same two processes, in alternating blocks of ten steps.

With all that production has on: the launcher, its control threads, the loader, agreement, loss and random numbers.
A row of DDP against DDP shows the noise. On a machine with GPUs the rows are of those, with NCCL, a rank each (one rank
where there is one): there they hold what it costs that the host waits for each reduction's end. The interval is the
bootstrap's 95 % of the median of the paired ratios.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import SCRIPTS, finish, launched, wait_for

SCRIPT = SCRIPTS / "overhead_train.py"
SETTINGS = "gradient_as_bucket_view, static_graph, no buffer broadcast, no_sync, AdamW foreach, the same threads"


def interval(ratios: list[float]) -> tuple[float, float]:
    """Returns the 95 % interval of the median."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


def measure(model: str, accumulation: int, blocks: int, side: str, ranks: int = 2) -> dict[str, Any]:
    """Runs one pair."""
    arguments = (SCRIPT, model, str(accumulation), str(blocks))
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        out = Path(name) / "times.json"
        with launched("--nodes", f"{ranks}:{ranks}", "--", *arguments, out, side, str(ranks)) as job:
            wait_for("the times", lambda: out.exists() or job.process.poll() is not None, 560)
            if not out.exists():
                raise RuntimeError((job.folder / "log").read_text()[-2000:])
        times = json.loads(out.read_text())
    ratios = [a / b for a, b in zip(times["ours"], times["peer"], strict=True)]
    low, high = interval(ratios)
    return {
        "benchmark": "overhead",
        "case": f"{model} tensors, accumulation {accumulation}"
        + (", DDP against itself" if side == "ddp" else "")
        + (", one rank" if ranks == 1 else ""),
        "ours": round(statistics.median(times["ours"]), 5),
        "peer": round(statistics.median(times["peer"]), 5),
        "ratio": round(statistics.median(ratios), 4),
        "interval": [round(low, 4), round(high, 4)],
        "unit": "seconds a step (ratio: ours to peer)",
        "runs": len(ratios),
        "threads": times["threads"],
        "bar": 1.01,
    }


def main() -> None:
    """Prints a row a model and accumulation, and one of noise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=30)
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
        print(f"{row['case']}: {row['ratio']:.3f} ({row['interval'][0]:.3f} to {row['interval'][1]:.3f})", flush=True)
        rows.append(row)
    finish(rows)


if __name__ == "__main__":
    main()
