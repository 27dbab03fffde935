"""Trains in two phases, evaluates after each, and has a batch that adapts as listed: see `test_phases.py`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from numbered import MEMBER, Numbered, optimizer_of, two_layers
from scripted_policy import ScriptedPolicy, hold_gains
from torch.nn import functional

import elastic_launcher.torch as elastic

OPTIONS = {"pace": 0.0, "waits": False, **json.loads(sys.argv[1])}
FOLDER = Path(OPTIONS["folder"])
SIZES = {step: (40, 24, 31, 60, 97, 33)[step // 5 % 6] for step in range(2, 3000, 5)}
EPOCHS = (8, 12)


def main() -> None:
    job = elastic.init(24, 5)
    model = two_layers(16)
    model, optimizer, scheduler = job.prepare(model, *optimizer_of(model))
    loader = job.dataloader(Numbered(97), shuffle=True, seed=7)
    loader.autoscale_batch_size(97)
    hold_gains(job, 24, 0.7)
    autoscaling = job._session.autoscaling
    assert autoscaling is not None
    autoscaling.policy = ScriptedPolicy(SIZES)
    scores, ends, statistical = [], [], []
    for phase, epochs in enumerate(EPOCHS):
        for _ in job.epochs(epochs):
            for _, x, y in loader:
                time.sleep(OPTIONS["pace"])
                job.backward(functional.cross_entropy(model(x), y))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        ends.append(job.step)
        statistical.append(job.statistical_epoch)
        if OPTIONS["waits"] and phase == 0 and MEMBER <= 2:
            (FOLDER / f"at-end-{MEMBER}").touch()
            while not (FOLDER / "go").exists():
                time.sleep(0.02)
        sums = job.evaluate(lambda _, x, y: {"loss": functional.cross_entropy(model(x), y, reduction="sum")}, loader)
        scores.append(sums["loss"])
    model_now = [p.tolist() for p in model.parameters()]
    ended = {"scores": scores, "step": job.step, "ends": ends, "statistical": statistical, "model": model_now}
    (FOLDER / f"ended-{os.environ.get('ELASTIC_MEMBER', 0)}.json").write_text(json.dumps(ended))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
