"""Measures the time from the edit of a hint to the first step at the new size, against a restart with torchrun.

Shrink: nothing has to start. Grow: a node starts beside the training; the peer is ``torchrun --standalone`` of the same
script up to the end of its first step, beside the same training, in the same run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import SCRIPTS, finish, launched, row, stamps, wait_for, write_hint

SCRIPT = SCRIPTS / "resize_train.py"
ARGUMENTS = ("25", "400", "1", "0.0", "0")  # as in resize.py: megabytes, samples of a step, rows a sample, no workers
SETTLED = 12


def torchrun(folder: Path) -> float:
    """Returns how long plain torchrun takes to the first step of the script, beside other processes."""
    own = folder / "alone"
    own.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", str(SCRIPT)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ELASTIC_")}
    began = time.monotonic()
    process = subprocess.Popen(
        [*command, "ours", str(own), *ARGUMENTS],
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for("a first step", lambda: stamps(own))
        return float(min(rows[0]["t"] for rows in stamps(own).values())) - began
    finally:
        process.terminate()
        process.wait()


def once() -> tuple[float, float, float]:
    """Returns the latencies of a grow and a shrink, and of the peer."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        hints = folder / "hints.json"
        write_hint(hints, 1)
        with launched("--nodes", "1:2", "--hints", hints, "--", SCRIPT, "ours", folder, *ARGUMENTS) as job:
            job.wait_for("steps", lambda: any(len(rows) > SETTLED for rows in stamps(folder).values()))
            first = next(iter(stamps(folder)))
            peer = torchrun(folder)
            raised = write_hint(hints, 2)
            formed = job.event("generation_formed", lambda e: e["world_size"] == 2)["first_step"]
            job.wait_for("steps of two", lambda: sum(r["w"] == 2 for r in stamps(folder)[first]) > SETTLED)
            grow = next(r["t"] for r in stamps(folder)[first] if r["step"] > formed) - raised
            lowered = write_hint(hints, 1)
            job.wait_for("steps of one", lambda: stamps(folder)[first][-1]["w"] == 1)
            shrink = next(r["t"] for r in stamps(folder)[first] if r["w"] == 1 and r["t"] > lowered) - lowered
    return grow, shrink, peer


def main() -> None:
    """Prints a row for growing and one for shrinking."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    found = [once() for _ in range(runs)]
    peer = [f[2] for f in found]
    rows = [
        row("hint_latency", [f[0] for f in found], peer, "seconds", case="grow 1 to 2", bar="peer + 1.5 s"),
        row("hint_latency", [f[1] for f in found], peer, "seconds", case="shrink 2 to 1", bar="0.5 s + a step"),
    ]
    for one in rows:
        print(f"{one['case']}: ours {one['ours']:.2f} s, torchrun from nothing {one['peer']:.2f} s; {one['ours_all']}")
    finish(rows)


if __name__ == "__main__":
    main()
