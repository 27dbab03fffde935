"""A stock torchrun script that saves when it is told to stop, and goes on from there; stamps each step.

Arguments: as those of resize_train.py, whose model it trains.
"""

from __future__ import annotations

import os
import signal
import threading

import resize_train as given
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STOP = threading.Event()


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: STOP.set())
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model, optimizer, dataset = given.parts()
    saved, step = given.FOLDER / "checkpoint.pt", 0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    loader = torch.utils.data.DataLoader(dataset, batch_size=given.BATCH // world_size)
    stops = torch.zeros(1)
    with open(given.FOLDER / f"stamps-{given.PROCESS}.jsonl", "w") as file:
        while not stops.item():
            for x, y in loader:
                given.loss_of(wrapped, x, y).backward()
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                given.stamp(file, step, world_size)
                stops.fill_(STOP.is_set())
                dist.all_reduce(stops)  # all leave at the same step
                if stops.item():
                    break
    if rank == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, saved.with_suffix(".new"))
        os.replace(saved.with_suffix(".new"), saved)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
