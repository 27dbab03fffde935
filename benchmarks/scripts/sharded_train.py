"""Trains a transformer that is sharded within each node: with a job, or by torch's own means alone.

These are HSDP, a mesh of nodes × ranks of a node (plain FSDP where there is one node), under torchrun, and distributed
checkpoints that are written beside the training.

Arguments: side (ours or peer), folder, JSON, see `Options`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import TensorDataset

VOCABULARY, LENGTH, SAMPLES = 256, 16, 4096
Report = Callable[[int | None, int, int | None], bool]
"""Takes rank, step and world size after an optimizer step; returns whether the training is to end."""


@dataclass(frozen=True)
class Options:
    """What is trained, and what is written.

    Attributes:
        report: "stamps" after each step, the "seconds" of each block of steps, or the "memory" of the first steps.
        layers: Blocks of the transformer.
        width: Of each, a multiple of 8.
        batch: Samples of a step, which all numbers of ranks divide.
        micro: Most samples of a micro-batch.
        save_every: Steps between two checkpoints of the peer; 0 for none.
        steps: Of a block; or after which the training ends, where the memory is measured.
    """

    report: str
    layers: int
    width: int
    batch: int
    micro: int
    save_every: int = 0
    steps: int = 0


class Stamps:
    """Writes the time of each step."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"stamps-{os.getpid()}.jsonl"

    def __call__(self, rank: int | None, step: int, world_size: int | None) -> bool:
        """Writes it."""
        with self._path.open("a") as file:
            print(json.dumps({"t": time.monotonic(), "step": step, "w": world_size}), file=file)
        return False


class Seconds:
    """Trains a block of steps whenever it is told to, writes how long that took, and rests until the next one.

    Both ways are pipes: a rank that rests needs no processor, and takes part in nothing.
    """

    def __init__(self, folder: Path, steps: int) -> None:
        self._folder, self._steps = folder, steps
        self._began = time.perf_counter()

    def __call__(self, rank: int | None, step: int, world_size: int | None) -> bool:
        """Ends a block, and begins the next one."""
        if step % self._steps:
            return False
        seconds = time.perf_counter() - self._began
        with open(self._folder / "done", "wb", buffering=0) as done:
            done.write(f"{seconds}\n".encode())
        with open(self._folder / f"go-{rank}", "rb", buffering=0) as go:
            more = go.read(1) == b"+"
        self._began = time.perf_counter()
        return not more


class Memory:
    """Writes how much memory the process has come to have since the start, at most and after the last step."""

    def __init__(self, folder: Path, steps: int) -> None:
        self._folder, self._steps = folder, steps
        Path("/proc/self/clear_refs").write_text("5")  # the most that it has had is counted from here
        self._before = self._bytes("VmRSS")

    def __call__(self, rank: int | None, step: int, world_size: int | None) -> bool:
        """Writes it, once."""
        if step == self._steps:
            found = {name: self._bytes(name) - self._before for name in ("VmHWM", "VmRSS")}
            (self._folder / f"memory-{rank}.json").write_text(json.dumps(found))
        return step >= self._steps

    @staticmethod
    def _bytes(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def build(options: Options, mesh: DeviceMesh | None) -> nn.Module:
    """Returns the model, of which this process only ever has its own part."""
    width = options.width
    with torch.device("meta"):
        blocks = [
            nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(options.layers)
        ]
        model = nn.Sequential(nn.Embedding(VOCABULARY, width), *blocks, nn.Linear(width, VOCABULARY))
    for module in (*blocks, model):
        fully_shard(module, mesh=mesh)
    model.to_empty(device="cpu")
    torch.manual_seed(int(os.environ["LOCAL_RANK"]))
    with torch.no_grad():
        for parameter in model.parameters():
            part: Any = parameter
            part.to_local().normal_(std=0.02)
    return model


def optimizer_of(model: nn.Module, options: Options) -> torch.optim.Optimizer:
    """Where the memory is measured, one without temporaries of all parameters, in which a copy of the gradient could
    hide.
    """
    return torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=options.report != "memory")


@cache
def order(epoch: int) -> torch.Tensor:
    return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))


def texts() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(1))


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())


def ours(folder: Path, options: Options, report: Report) -> None:
    """Trains with a job."""
    import elastic_launcher.torch as elastic

    elastic.init_node_group("gloo")
    job = elastic.init(options.batch, options.micro)
    model = build(options, None)
    model, optimizer = job.prepare(model, optimizer_of(model, options))
    loader = job.dataloader(TensorDataset(texts()), shuffle=True)
    for _ in job.epochs(100_000):
        for (tokens,) in loader:
            job.backward(loss_of(model, tokens))
            optimizer.step()
            optimizer.zero_grad()
            if job.sync_gradients and report(job.rank, job.step, job.world_size):
                job.stop("measured")


class Checkpoints:
    """Distributed checkpoints of the peer, the newest two of them."""

    def __init__(self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._folder, self._model, self._optimizer = folder, model, optimizer
        self._group = dist.new_group(backend="gloo")  # its thread's own
        self._saving: Any = None

    def load(self) -> int:
        """Loads the newest one that is whole; returns its step."""
        found = [max(self._whole(), default=0)]
        dist.broadcast_object_list(found)
        step = found[0]
        if step:
            state = self._state()
            load(state, checkpoint_id=self._folder / str(step))
            set_state_dict(
                self._model, self._optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
            )
        return step

    def save(self, step: int) -> None:
        """Begins to save one, after the end of the one before."""
        if self._saving is not None:
            self._saving.result()
        if dist.get_rank() == 0:
            for old in sorted(self._whole())[:-1]:
                shutil.rmtree(self._folder / str(old))
        self._saving = async_save(self._state(), checkpoint_id=self._folder / str(step), process_group=self._group)

    def _whole(self) -> list[int]:
        return [int(path.parent.name) for path in self._folder.glob("*/.metadata")]

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer}


def peer(folder: Path, options: Options, report: Report) -> None:
    """Trains by torch's own means."""
    dist.init_process_group("gloo")
    rank, world_size, on_node = dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    nodes = world_size // on_node
    names = ("replicate", "shard")
    model: Any = build(options, init_device_mesh("cpu", (nodes, on_node), mesh_dim_names=names) if nodes > 1 else None)
    optimizer = optimizer_of(model, options)
    checkpoints = Checkpoints(folder / "checkpoints", model, optimizer)
    tokens, step = texts(), checkpoints.load()
    share = options.batch // world_size
    micro = min(share, options.micro)
    pieces = share // micro
    steps_an_epoch = SAMPLES // options.batch
    over = False
    while not over:
        epoch, at = divmod(step, steps_an_epoch)
        for piece in range(pieces):
            start = at * options.batch + rank * share + piece * micro
            model.set_requires_all_reduce(piece == pieces - 1)
            (loss_of(model, tokens[order(epoch)[start : start + micro]]) / pieces).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if options.save_every and step % options.save_every == 0:
            checkpoints.save(step)
        over = report(rank, step, world_size)
    dist.destroy_process_group()


def main() -> None:
    """Trains."""
    side, folder, options = sys.argv[1], Path(sys.argv[2]), Options(**json.loads(sys.argv[3]))
    reports: dict[str, Callable[[], Report]] = {
        "stamps": lambda: Stamps(folder),
        "seconds": lambda: Seconds(folder, options.steps),
        "memory": lambda: Memory(folder, options.steps),
    }
    {"ours": ours, "peer": peer}[side](folder, options, reports[options.report]())


if __name__ == "__main__":
    main()
