"""A model of a given size, trained with a job, as a stock torchrun script with checkpoints, or as a replica of torchft;
stamps its imports' end and each step.

Arguments: side (ours, peer or torchft), folder, megabytes of model and Adam state, samples of a step, rows a sample,
seconds an item, workers.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, TensorDataset

SIDE, FOLDER = sys.argv[1], Path(sys.argv[2])
MEGABYTES, BATCH, ROWS, ITEM, WORKERS = (
    float(sys.argv[3]),
    int(sys.argv[4]),
    int(sys.argv[5]),
    float(sys.argv[6]),
    int(sys.argv[7]),
)
PROCESS = f"{platform.node()}-{os.getpid()}"  # pods count their processes each for itself
LAYERS, SAMPLES, CHECKPOINT_EVERY = 8, 4096, 10
WIDTH = int((MEGABYTES * 2**20 / 12 / LAYERS) ** 0.5)  # parameters and Adam's two moments, float32


class Slow(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Items that take their time to load."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(ITEM)
        return self.x[index], self.y[index]


def parts() -> tuple[nn.Module, torch.optim.Optimizer, Dataset[tuple[torch.Tensor, ...]]]:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)])
    x = torch.randn(SAMPLES, 1, WIDTH).expand(-1, ROWS, -1)  # the same row again and again takes no more memory
    y = torch.randint(0, WIDTH, (SAMPLES, 1)).expand(-1, ROWS)
    dataset = Slow(x, y) if ITEM else TensorDataset(x, y)
    return model, torch.optim.Adam(model.parameters(), lr=1e-4), dataset  # type: ignore[return-value]


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(x.flatten(0, 1)), y.flatten())


def stamp(file: object, step: int, world_size: int) -> None:
    print(json.dumps({"t": time.monotonic(), "step": step, "w": world_size}), file=file, flush=True)  # type: ignore[call-overload]


def ours() -> None:
    import elastic_launcher.torch as elastic

    job = elastic.init(BATCH, BATCH)
    model, optimizer, dataset = parts()
    model, optimizer = job.prepare(model, optimizer)
    loader = job.dataloader(dataset, shuffle=True, num_workers=WORKERS)
    with open(FOLDER / f"stamps-{PROCESS}.jsonl", "w") as file:
        for _ in job.epochs(100_000):
            for x, y in loader:
                job.backward(loss_of(model, x, y))
                optimizer.step()
                optimizer.zero_grad()
                if job.sync_gradients:
                    stamp(file, job.step, job.world_size)


def peer() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model, optimizer, dataset = parts()
    saved = FOLDER / "checkpoint.pt"
    step = 0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    share = BATCH // world_size
    loader = torch.utils.data.DataLoader(dataset, batch_size=share, num_workers=WORKERS, persistent_workers=WORKERS > 0)
    with open(FOLDER / f"stamps-{PROCESS}.jsonl", "w") as file:
        while True:
            for x, y in loader:
                loss_of(wrapped, x, y).backward()
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                stamp(file, step, world_size)
                if rank == 0 and step % CHECKPOINT_EVERY == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(state, saved.with_suffix(".new"))
                    os.replace(saved.with_suffix(".new"), saved)


def torchft() -> None:
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    model, plain, dataset = parts()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def load(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()},
        replica_id=os.environ["REPLICA_GROUP_ID"],
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        timeout=timedelta(seconds=30),
    )
    wrapped, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, plain)
    share = BATCH // int(os.environ["NUM_REPLICA_GROUPS"])
    loader = torch.utils.data.DataLoader(dataset, batch_size=share, num_workers=WORKERS, persistent_workers=WORKERS > 0)
    with open(FOLDER / f"stamps-{PROCESS}.jsonl", "w") as file:
        while True:
            for x, y in loader:
                optimizer.zero_grad()
                loss_of(wrapped, x, y).backward()
                done = manager.current_step()
                optimizer.step()
                if manager.current_step() > done:
                    stamp(file, manager.current_step(), manager.num_participants())


if __name__ == "__main__":
    (FOLDER / f"imported-{PROCESS}").write_text(str(time.monotonic()))
    {"ours": ours, "peer": peer, "torchft": torchft}[SIDE]()
