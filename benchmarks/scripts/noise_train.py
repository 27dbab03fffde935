"""Trains one model with the gradient noise measured and without, in alternating blocks of steps of one job.

It writes its times after each pair of blocks, and ends once there is a file ``enough`` beside them.

Arguments: as of ``overhead_train.py``, with the optimizer (sgd or adamw) in the place of the side.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from typing import Any

import torch
from overhead_train import BATCH, MICRO, OUT, SIDE, WORLD, build, data, seconds_since
from torch.nn import functional
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic

UNTIMED = 4  # of a block: the ranks learn again what they reduce, and in which order gradients come
BLOCK_STEPS, WARM_BLOCKS = 16, 2  # each block has one measured step


class Switch:
    """Turns the measurement on and off between two steps; each way keeps the memory of its gradients."""

    def __init__(self, job: elastic.Job) -> None:
        self._session = job._session
        self._meter = job._session.measure_noise()
        self._slots: dict[bool, Any] = {True: job._session.reducer._slots, False: {}}

    def turn(self, on: bool) -> None:
        """Turns it."""
        meter = self._meter if on else None
        self._session.noise = self._session.reducer.noise = self._session.state.noise = meter
        self._session.reducer._slots = self._slots[on]


def write(times: dict[bool, list[float]]) -> None:
    rows = {"ours": times[True], "peer": times[False], "threads": torch.get_num_threads()}
    with tempfile.NamedTemporaryFile("w", dir=OUT.parent, delete=False) as file:
        json.dump(rows, file)
    os.replace(file.name, OUT)


def main() -> None:
    job = elastic.init(BATCH, MICRO)
    x, y = (tensor.to(job.device) for tensor in data(BATCH * 64))
    model = build().to(job.device)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1]},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    if SIDE == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(groups, lr=1e-3, momentum=0.9, foreach=True)
    else:
        optimizer = torch.optim.AdamW(groups, lr=1e-4, foreach=True)
    model, optimizer = job.prepare(model, optimizer)
    loader = job.dataloader(TensorDataset(x, y), shuffle=True, seed=7)
    switch = Switch(job)
    on, done, blocks, began = True, 0, 0, 0.0
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in job.epochs(1_000_000):
        for bx, by in loader:
            job.backward(functional.cross_entropy(model(bx), by))
            optimizer.step()
            optimizer.zero_grad()
            if not job.sync_gradients or job.world_size != WORLD:
                continue
            done += 1
            if done == UNTIMED:
                began = time.perf_counter()
            if done < UNTIMED + BLOCK_STEPS:
                continue
            seconds = seconds_since(began) / BLOCK_STEPS
            done, blocks = 0, blocks + 1
            if blocks > 2 * WARM_BLOCKS:
                times[on].append(seconds)
                if not on:
                    if job.is_main:
                        write(times)
                    if OUT.with_name("enough").exists():
                        job.stop("measured")
            on = not on
            switch.turn(on)


if __name__ == "__main__":
    main()
