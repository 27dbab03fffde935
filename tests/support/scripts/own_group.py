"""A script of our library that has a process group of its own besides, and loses its last rank while it uses that.

Its one argument is a JSON object, as that of ``train.py``; ``lose`` says what happens in step `AT`, first time:

- ``kill``: the last rank is killed before the script's own reduction;
- ``freeze``: it stands still there;
- ``hang``: it is killed, and the first rank waits for something that the second one will not send;
- ``mistake``: as ``kill``; and the first rank raises an exception that has nothing to do with it.
"""

from __future__ import annotations

import os
import signal
import time

import torch
import torch.distributed as dist
from numbered import Numbered, optimizer_of
from torch.nn import functional
from train import FOLDER, OPTIONS, build

import elastic_launcher.torch as elastic

AT, WORLD_SIZE = 8, 3
FIRST_ATTEMPT = int(os.environ["ELASTIC_MEMBER"]) <= WORLD_SIZE


def own_sum(value: float) -> float:
    """Adds up over the ranks, in the script's own group."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    found = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(found)
    return found.item()


def between_steps(job: elastic.Job, what: str) -> None:
    """Uses that group, or loses it."""
    if FIRST_ATTEMPT and job.step == AT:
        if job.rank == WORLD_SIZE - 1:
            os.kill(os.getpid(), signal.SIGSTOP if what == "freeze" else signal.SIGKILL)
        if what == "hang" and job.is_main:
            dist.recv(torch.zeros(1), src=1)
        if what == "hang":
            return
    if what == "mistake" and job.is_main and job.step >= AT:
        raise ValueError("a mistake in the script")
    assert own_sum(job.rank or 0) == sum(range(WORLD_SIZE))


def main() -> None:
    job = elastic.init(OPTIONS["batch"], OPTIONS["micro"])
    plain = build()
    model, optimizer, scheduler = job.prepare(plain, *optimizer_of(plain))
    loader = job.dataloader(Numbered(OPTIONS["samples"]), shuffle=True, seed=7)
    for _ in job.epochs(OPTIONS["epochs"]):
        for _, x, y in loader:
            time.sleep(OPTIONS["pace"])
            job.backward(functional.cross_entropy(model(x), y))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if job.sync_gradients:
                between_steps(job, OPTIONS["lose"])
    if job.is_main:
        torch.save({"model": plain.state_dict(), "step": job.step}, FOLDER / "model.pt")


if __name__ == "__main__":
    main()
