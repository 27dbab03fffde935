"""The training script of chaos: small, float64, and led by a file that says where to stop and what goes wrong.

Its arguments: the folder in which it finds that file and writes what it did, loader workers, where joiners wait,
whether the global batch adapts or the model is sharded, the global batch and the largest micro-batch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from numbered import MEMBER, Numbered, digest, optimizer_of, row_of, two_layers
from scripted_policy import ScriptedPolicy
from shard_train import whole
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

import elastic_launcher.torch as elastic
from elastic_launcher.torch import fault_injection

SAMPLES = 97
EVALUATE = 4  # steps between evaluations
SIZES = {step: (40, 24, 31, 60, 97, 33)[step // 5 % 6] for step in range(2, 3000, 5)}
"""Global batches by the step in which they are decided: in mid-epoch and in last steps."""
SEED = 7
POLL = 0.01
CRAWL = 0.02  # seconds of each micro-batch while an effect is awaited, so that it comes within few steps


def build(norm: bool = False) -> nn.Module:
    return two_layers(1024)  # a quarter of it, with the optimizer's state, is more than all else in one file of a rank


def shard(model: nn.Module) -> None:
    """Shards the first layer, and the rest."""
    for module in (next(model.children()), model):
        fully_shard(module)


class Control:
    """What the conductor wants.

    Args:
        folder: Where it says so, in ``control.json``.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "control.json"
        self._folder = folder
        self._document: dict[str, Any] = {"id": 0}
        self._base = 0

    def wait_to_join(self) -> None:
        """Waits until this member is let in."""
        while self._read(0)["admit"] < MEMBER:
            time.sleep(POLL)

    def obey(self, job: elastic.Job) -> None:
        """Does what is wanted at the beginning of a micro-batch."""
        document = self._read(job.step)
        if job.rank != 0:
            return
        hold = document["hold"]
        if hold is not None and job.step >= self._base + hold:
            at = self._folder / f"at-{document['id']}.json"
            aside = at.with_suffix(f".{os.getpid()}")
            aside.write_text(json.dumps({"step": job.step, "member": MEMBER}))
            aside.replace(at)
            while self._read(job.step)["id"] == document["id"]:
                time.sleep(POLL)
        if self._document["save"]:
            job.save()
        if self._document["stop"]:
            job.stop("all has happened")
        if self._document["crawl"]:
            time.sleep(CRAWL)

    def _read(self, step: int) -> dict[str, Any]:
        """Returns what is wanted now; what goes wrong for this member is armed when it is read first."""
        document = json.loads(self._path.read_text())
        if document["id"] != self._document["id"]:
            self._base = step
            fault_injection.arm(document["faults"])
        self._document = document
        return document


def note(folder: Path, name: str, epoch: int, row: dict[str, Any]) -> None:
    """Adds a row to one of this process's files: one an epoch, so that none grows large; pods count their own pids."""
    with open(folder / f"{name}-{MEMBER}-{os.getpid()}-{epoch:05d}.jsonl", "a") as file:
        file.write(json.dumps(row, separators=(",", ":")) + "\n")


def main() -> None:
    folder, workers, held_at, kind = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    adapts, sharded = kind == "adapts", kind == "sharded"
    control = Control(folder)
    if held_at == "init":
        control.wait_to_join()
    if sharded:
        elastic.init_node_group("gloo")
    job = elastic.init(int(sys.argv[5]), int(sys.argv[6]))
    model = build()
    if sharded:
        shard(model)
    optimizer, scheduler = optimizer_of(model)
    model, optimizer, scheduler = job.prepare(model, optimizer, scheduler)
    loader = job.dataloader(Numbered(SAMPLES), shuffle=True, seed=SEED, num_workers=workers)
    if adapts:
        loader.autoscale_batch_size(SAMPLES)
        autoscaling = job._session.autoscaling
        assert autoscaling is not None
        autoscaling.policy = ScriptedPolicy(SIZES)

    def evaluate(where: str) -> None:
        sums = job.evaluate(lambda _, x, y: {"loss": functional.cross_entropy(model(x), y, reduction="sum")}, loader)
        bits = f"{digest(optimizer)} {job.global_batch_size}"
        if adapts:
            bits += f" {job.noise_scale!r} {job.gain!r} {job.lr_factor!r} {job.statistical_epoch!r}"
        part = job.local_rank if sharded else 0
        row = {"member": MEMBER, "step": job.step, "rank": job.rank, "part": part, "bits": bits, **sums}
        note(folder, "sums", job.epoch, {"where": where, **row})

    for _ in job.epochs(100_000):
        for indices, x, y in loader:
            if job.rank is None and held_at == "rehearsal":
                control.wait_to_join()
            control.obey(job)
            row = row_of(job, indices)
            epoch = job.epoch  # a step that is the epoch's last one counts it up
            note(folder, "ledger", epoch, {"begun": True, **row})
            job.backward(functional.cross_entropy(model(x), y))
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            row["sync"] = job.sync_gradients
            if sharded and job.sync_gradients:
                row |= {"loss": job.loss, "norm": whole(norm).item()}
                row["weights"] = [whole(parameter.detach().norm()).item() for parameter in model.parameters()]
            note(folder, "ledger", epoch, row)
            if job.sync_gradients and job.step % EVALUATE == 0:
                evaluate("loop")
    fault_injection.point("after", job.step)
    evaluate("end")
    found = {name: whole(tensor) for name, tensor in model.state_dict().items()}
    if job.is_main:
        torch.save({"model": found, "step": job.step}, folder / "model.pt")
    print("over", job.rank)


if __name__ == "__main__":
    main()
