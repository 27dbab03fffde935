"""A script whose ranks do different things together from step `AT` on.

Its one argument is a JSON object, as that of ``train.py``; ``apart`` says what:

- ``optimizer``: the first rank trains another model than the others, which is larger;
- ``evaluate``: the first rank alone evaluates;
- ``counter``: a rank evaluates after so many steps of its own;
- ``after``: the first rank alone evaluates, after the training;
- ``own``: the first rank waits in a process group of the script's own;
- ``own stop``, ``own break``: the same, and the others end the training, or leave its loop;
- ``stop``: the first rank ends the training in a step in which ranks have agreed on a growth;
- ``slow``: the first rank goes on when the file "go" is there.
"""

from __future__ import annotations

import json
import time
from typing import Any

import torch
import torch.distributed as dist
from numbered import Numbered
from torch import nn
from torch.nn import functional
from train import FOLDER, OPTIONS, build

import elastic_launcher.torch as elastic

AT = 6
APART = OPTIONS["apart"]


def main() -> None:
    job = elastic.init(OPTIONS["batch"], OPTIONS["micro"])
    models = build(), nn.Sequential(build(), nn.Linear(3, 500), nn.Linear(500, 3)).double()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    job.prepare(*models, *optimizers)
    loader = job.dataloader(Numbered(OPTIONS["samples"]), shuffle=True, seed=7)
    test = job.dataloader(Numbered(OPTIONS["samples"]))
    own = 0

    def evaluate() -> dict[str, Any]:
        return job.evaluate(lambda _, x, y: {"hits": (models[0](x).argmax(1) == y).sum()}, test)

    for _ in job.epochs(OPTIONS["epochs"]):
        for _, x, y in loader:
            time.sleep(OPTIONS["pace"])
            chosen = int(APART == "optimizer" and job.is_main and job.step >= AT)
            job.backward(functional.cross_entropy(models[chosen](x), y), optimizer=optimizers[chosen])
            optimizers[chosen].step()
            if not job.sync_gradients:
                continue
            own += 1
            if (APART == "evaluate" and job.is_main and job.step == AT) or (APART == "counter" and own % AT == 0):
                evaluate()
            if APART.startswith("own") and job.step == AT:
                dist.init_process_group("gloo")
                if job.is_main:
                    dist.barrier()
                elif APART == "own stop":
                    job.stop()
                elif APART == "own break":
                    break
            if APART == "stop" and job.is_main and job._engine._resizer._next is not None:
                job.stop()
            while APART == "slow" and job.is_main and job.step == AT and not (FOLDER / "go").exists():
                time.sleep(0.01)
    if APART == "after" and job.is_main:
        (FOLDER / "after.json").write_text(json.dumps(evaluate()))


if __name__ == "__main__":
    main()
