"""Steady step time with the gradient noise measured against without, in one job, in alternating blocks of 16 steps.

With all that production has on, as in `overhead`, and two parameter groups whose parameters alternate. SGD measures the
gradient itself, AdamW divides it by its second moment, which costs more. One rank measures its first micro-batch, or
without accumulation the step before. Each row goes on until its interval is no wider than one percent to each side, or
else to the end of its blocks, which it says. The interval is the bootstrap's 95 % of the median of the paired ratios.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import DEADLINE_SECONDS, SCRIPTS, finish, launched
from benchmarks.overhead import ratios_of, read
from benchmarks.paired import EACH, FEWEST, is_told, paired_row, print_paired

SCRIPT = SCRIPTS / "noise_train.py"
BAR = 1.05


def measure(model: str, accumulation: int, optimizer: str, ranks: int, blocks: int) -> dict[str, Any]:
    """Runs one row."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        out = Path(name) / "times.json"
        arguments = (SCRIPT, model, accumulation, out, optimizer, ranks)
        with launched("--nodes", f"{ranks}:{ranks}", "--", *map(str, arguments)) as job:
            for wanted in (*range(EACH, blocks, EACH), blocks):
                job.wait_for(f"{wanted} pairs of blocks", lambda wanted=wanted: len(ratios_of(out)) >= wanted)
                if wanted >= FEWEST and is_told(ratios_of(out)):
                    break
            out.with_name("enough").touch()
            job.process.wait(DEADLINE_SECONDS)
        times = read(out)
    case = f"{model} tensors, accumulation {accumulation}, {optimizer}, {ranks} rank{'s' * (ranks > 1)}"
    of, threads = "measured to not measured", times["threads"]
    return paired_row("noise", case, times["ours"], times["peer"], of, BAR, threads=threads)


def main() -> None:
    """Prints a row a model, accumulation, optimizer and number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=400, help="pairs of blocks of a row at most (400)")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    options = parser.parse_args()
    gpus = torch.cuda.device_count()
    several = min(2, gpus or 2)
    print(f"without the measurement against with it; on {'GPUs' if gpus else 'the CPU'}")
    rows = []
    cases = [
        (model, accumulation, optimizer, ranks)
        for ranks in sorted({1, several}, reverse=True)
        for model in ("small", "large")
        for accumulation in (1, 4)
        for optimizer in ("sgd", "adamw")
    ]
    for case in cases:
        if options.case not in " ".join(map(str, case)):
            continue
        row = measure(*case, options.blocks)
        print_paired(row)
        rows.append(row)
    finish(rows)


if __name__ == "__main__":
    main()
