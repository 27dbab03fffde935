"""A training script as anyone writes it for torchrun: it knows nothing of Elastic Launcher and saves by itself.

Its one argument is a JSON object; see the keys below. Its model is the same at any world size, to rounding, since each
step sums the gradients of the same samples. Each process writes down the steps that it did, a line each.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

KEYS: dict[str, Any] = {
    "folder": ".",
    "steps": 100_000,
    "pace": 0.0,  # seconds that each step takes at least, so that the test has time to act
    "save_every": 5,
    "term": "",  # "save": SIGTERM has it save and end; "deaf": it takes no notice
    "fault": "",  # what goes wrong on rank 1 at step 8: "exception", "kill", "kill once", "exception once"
}
OPTIONS = {**KEYS, **json.loads(sys.argv[1])}
FOLDER = Path(OPTIONS["folder"])
BATCH = 24
FEATURES = 6


class Told(Exception):  # noqa: N818 - not an error
    """SIGTERM came."""


def told(*signal_and_frame: object) -> None:
    raise Told


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int, rank: int, world_size: int) -> None:
    """One step on this rank's part of the batch."""
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(BATCH, FEATURES, dtype=torch.float64, generator=generator)
    y = torch.randint(0, 3, (BATCH,), generator=generator)
    own = slice(rank * BATCH // world_size, (rank + 1) * BATCH // world_size)
    optimizer.zero_grad()
    functional.cross_entropy(model(x[own]), y[own], reduction="sum").backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= BATCH
    optimizer.step()


def fault(number: int, rank: int) -> None:
    once = FOLDER / "fault-was-there"
    if not OPTIONS["fault"] or rank != 1 or number != 8 or (OPTIONS["fault"].endswith("once") and once.exists()):
        return
    once.touch()
    if OPTIONS["fault"].startswith("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("a mistake in the script")


def save(path: Path, number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    draft = path.with_suffix(f".{os.getpid()}")
    torch.save({"step": number, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, draft)
    draft.replace(path)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    number, path = 0, FOLDER / "checkpoint.pt"
    if path.exists():
        found = torch.load(path)
        number = found["step"]
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
    print(f"rank {rank} of {world_size} begins at step {number}", flush=True)
    if OPTIONS["term"]:
        signal.signal(signal.SIGTERM, told if OPTIONS["term"] == "save" else signal.SIG_IGN)
    with open(FOLDER / f"steps-{os.getpid()}.jsonl", "w", buffering=1) as ledger:
        while number < OPTIONS["steps"] and not (FOLDER / f"stop-at-{number}").exists():
            try:
                time.sleep(OPTIONS["pace"])  # SIGTERM comes here, where all of the step before is done
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
                fault(number, rank)
                step(model, optimizer, number, rank, world_size)
            except (Told, RuntimeError):  # the latter where a peer was told, and went, in the middle of this step
                if rank == 0 and OPTIONS["term"] == "save":
                    save(path, number, model, optimizer)
                raise
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [] if OPTIONS["term"] == "" else [signal.SIGTERM])
            number += 1
            ledger.write(json.dumps({"step": number, "rank": rank, "world_size": world_size}) + "\n")
            if rank == 0 and number % OPTIONS["save_every"] == 0:
                save(path, number, model, optimizer)
    if rank == 0:
        torch.save({"model": model.state_dict(), "step": number}, FOLDER / "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
