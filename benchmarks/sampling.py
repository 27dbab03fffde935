"""Indices per second and memory at 10⁹ samples, against a permutation by torch at 10⁷."""

from __future__ import annotations

import argparse
import resource
import statistics
import time

import torch

from benchmarks.common import finish
from elastic_launcher.sampling import indices

SAMPLES, SLICE, PEER_SAMPLES = 10**9, 2**20, 10**7


def main() -> None:
    """Prints the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    ours, peer = [], []
    indices(SAMPLES, 1, 0, 0, SLICE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for run in range(runs):
        began = time.perf_counter()
        indices(SAMPLES, 1, run, run * SLICE, (run + 1) * SLICE)
        ours.append(SLICE / (time.perf_counter() - began))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for run in range(runs):
        began = time.perf_counter()
        torch.randperm(PEER_SAMPLES, generator=torch.Generator().manual_seed(run))
        peer.append(PEER_SAMPLES / (time.perf_counter() - began))
    peer_grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held) / 1024
    print(f"ours at 10^9: {statistics.median(ours) / 1e6:.1f} M indices/s, {grown:.1f} MB more after the first slice")
    print(f"torch.randperm at 10^7: {statistics.median(peer) / 1e6:.1f} M indices/s, {peer_grown:.1f} MB more")
    finish(
        [
            {
                "benchmark": "sampling",
                "ours": round(statistics.median(ours)),
                "peer": round(statistics.median(peer)),
                "ratio": round(statistics.median(ours) / statistics.median(peer), 3),
                "unit": "indices per second",
                "runs": runs,
                "memory_grown_mb": round(grown, 1),
                "peer_memory_grown_mb": round(peer_grown, 1),
                "bar": 1_000_000,
            }
        ]
    )


if __name__ == "__main__":
    main()
