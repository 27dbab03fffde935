"""The training script of the local tests: small, float64, and it writes down all that reached its model.

Its one argument is a JSON object; see the keys below. Each process writes a ledger of its own, a line a micro-batch.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from numbered import FEATURES, MEMBER, Numbered, digest, optimizer_of, row_of, two_layers
from scripted_policy import ScriptedPolicy, hold_gains
from torch import nn
from torch.nn import functional

import elastic_launcher.torch as elastic
from elastic_launcher.torch.step import autoscale, goodput_policy, step_times

KEYS: dict[str, Any] = {
    "folder": ".",  # ledgers, the final model, the stop file, the save file
    "samples": 97,  # the environment's SAMPLES goes before it
    "batch": 24,
    "micro": 5,  # None: the launcher says it
    "epochs": 100_000,
    "prints": False,  # whether it says each micro-batch, in a long line
    "pace": 0.0,  # seconds that each micro-batch takes at least, so that the test has time to act
    "workers": 0,
    "norm": False,  # whether the model has batch norm
    "compile": False,  # whether the model is compiled
    "augment": False,
    "evaluate": 0,  # after how many steps all samples are evaluated, inside the loop; also after it
    "slow_start": 0.0,  # seconds before init, in joiners
    "slow_forward": 0.0,  # seconds of the first forward pass, in joiners
    "die": "",  # "admitted": the first joiner, in the step in which it is admitted; "after": member 1, after the loop
    "slow_members": [],  # whose micro-batches take `slow` seconds longer, while the file "fast" is not there
    "slow": 0.0,
    "slow_evaluation": 0.0,  # seconds that each of its batches takes longer, while the file "fast" is not there
    "linger": [],  # who goes on after the training until the file "home" is there
    "sizes": None,  # the global batch adapts: as listed by step; {}: by goodput
    "worth": None,  # what a sample of a larger batch is worth, in place of what is measured
    "rule": None,  # of learning rates that follow it
    "hold": None,  # the step at whose beginning all wait until the file "go" is there
    "bits": False,  # whether a digest of the model and of the optimizer is written down with each micro-batch
    "fault": "",  # what goes wrong, on the rank of fault_rank
    "fault_rank": 1,
    "fault_step": 3,
    "locked": 10.0,  # seconds that the fault "locked" takes
}
OPTIONS = {**KEYS, **json.loads(sys.argv[1])}
OPTIONS["samples"] = int(os.environ.get("SAMPLES", OPTIONS["samples"]))
OPTIONS["sizes"] = json.loads(os.environ.get("SIZES", json.dumps(OPTIONS["sizes"])))
FOLDER = Path(OPTIONS["folder"])


def build(norm: bool = False) -> nn.Module:
    torch.manual_seed(2)
    if norm:  # over a length, so that one sample is enough for a rank; no bias before it, whose gradient would be noise
        return nn.Sequential(
            nn.Unflatten(1, (1, FEATURES)),
            nn.Conv1d(1, 4, 2, bias=False),
            nn.BatchNorm1d(4),
            nn.Tanh(),
            nn.Conv1d(4, 4, 2, bias=False),
            nn.BatchNorm1d(4, momentum=None),  # the mean over all batches so far
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(4 * (FEATURES - 2), 3),
        ).double()
    return two_layers(16)


def fault(job: elastic.Job, loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """Does what the test asked for, at its step and on its rank."""
    if not OPTIONS["fault"] or job.rank != OPTIONS["fault_rank"] or job.step != OPTIONS["fault_step"]:
        return loss
    match OPTIONS["fault"]:
        case "exception":
            raise ValueError("a mistake in the script")
        case "exception once" if not (FOLDER / "raised").exists():
            (FOLDER / "raised").touch()
            raise ValueError("a mistake in the script")
        case "vector loss":
            return loss.expand(2)
        case "step first":
            optimizer.step()
        case "exit":
            sys.exit(0)
        case "exit 3":
            sys.exit(3)
        case "exit 3 once" if not (FOLDER / "exited").exists():
            (FOLDER / "exited").touch()
            sys.exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segmentation fault once" if not (FOLDER / "crashed").exists():
            (FOLDER / "crashed").touch()
            ctypes.string_at(0)
        case "abort once" if not (FOLDER / "crashed").exists():
            (FOLDER / "crashed").touch()
            os.abort()
        case "hang" if not (FOLDER / "hung").exists():
            (FOLDER / "hung").touch()
            signal.pause()
        case "kill worker once" if not (FOLDER / "killed").exists():
            (FOLDER / "killed").touch()
            for worker in multiprocessing.active_children():
                worker.kill()
        case "locked" if not (FOLDER / "locked").exists():  # the interpreter: it computes, and no other thread runs
            usual, began = sys.getswitchinterval(), time.monotonic()
            sys.setswitchinterval(1000.0)
            while time.monotonic() < began + OPTIONS["locked"]:
                sum(range(1_000_000))
            sys.setswitchinterval(usual)
            (FOLDER / "locked").write_text(str(time.monotonic() - began))
        case "nan":
            return loss * float("nan")
        case "other parameters":
            with torch.no_grad():
                next(iter(optimizer.param_groups[0]["params"])).add_(1e-3)
    return loss


def evaluated(job: elastic.Job, model: nn.Module, loader: Any) -> None:
    """Evaluates all samples, and writes down what came of it."""
    (FOLDER / "evaluates").touch()

    def loss(_: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        if not (FOLDER / "fast").exists():
            time.sleep(OPTIONS["slow_evaluation"])
        return {"loss": functional.cross_entropy(model(x), y, reduction="sum")}

    sums = job.evaluate(loss, loader)
    with open(FOLDER / f"sums-{MEMBER}-{os.getpid()}.jsonl", "a") as file:
        file.write(json.dumps({"step": job.step, **sums}) + "\n")


def main() -> None:
    joiner = MEMBER > 1
    if joiner:
        time.sleep(OPTIONS["slow_start"])
    off = MEMBER == 2 and OPTIONS["fault"].startswith("differs")
    batch = OPTIONS["batch"] + (off and OPTIONS["fault"] == "differs: batch")
    job = elastic.init(batch, OPTIONS["micro"])
    if OPTIONS["fault"] == "init twice":
        elastic.init(batch, OPTIONS["micro"])
    model = build(OPTIONS["norm"]).to(job.device)
    if off and OPTIONS["fault"] == "differs: model":
        model = nn.Sequential(*model[:2], nn.Linear(16, 4)).double()
    optimizer, scheduler = optimizer_of(model)
    plain = model
    if OPTIONS["compile"]:
        model = torch.compile(model)
    model, optimizer, scheduler = job.prepare(model, optimizer, scheduler)
    samples = 0 if OPTIONS["fault"] == "empty data" else OPTIONS["samples"]
    dataset = Numbered(samples + (off and OPTIONS["fault"] == "differs: data"), OPTIONS["augment"])
    loader = job.dataloader(dataset, shuffle=True, seed=7, num_workers=OPTIONS["workers"])
    if OPTIONS["sizes"] is not None:
        loader.autoscale_batch_size(OPTIONS["samples"], learning_rate_rule=OPTIONS["rule"])
        autoscaling = job._session.autoscaling
        assert autoscaling is not None
        if OPTIONS["worth"]:
            hold_gains(job, OPTIONS["batch"], OPTIONS["worth"])
        if OPTIONS["sizes"]:
            autoscaling.policy = ScriptedPolicy({int(step): size for step, size in OPTIONS["sizes"].items()})
        else:  # decisions sooner than a usual training needs them
            step_times.FEWEST_ESTIMATES, goodput_policy.INTERVAL, autoscale.REFRESH_STEPS = 0.01, 0.1, 16
    slow = OPTIONS["slow_forward"] if joiner else 0.0

    def bits() -> str:
        return digest(optimizer) if OPTIONS["bits"] else ""

    with open(FOLDER / f"ledger-{MEMBER}-{os.getpid()}.jsonl", "w", buffering=1) as ledger:  # pids are a pod's own
        for _ in job.epochs(OPTIONS["epochs"]):
            for indices, x, y in loader:
                if slow:
                    time.sleep(slow)
                    slow = 0.0
                if OPTIONS["die"] == "admitted" and MEMBER == 2 and job.rank is not None:
                    os.kill(os.getpid(), signal.SIGKILL)
                slowed = MEMBER in OPTIONS["slow_members"] and not (FOLDER / "fast").exists()
                time.sleep(OPTIONS["pace"] + slowed * OPTIONS["slow"])
                while job.rank is not None and job.step == OPTIONS["hold"] and not (FOLDER / "go").exists():
                    time.sleep(0.01)
                row = row_of(job, indices) | {"before": bits()}
                ledger.write(json.dumps({"begun": True, **row}) + "\n")
                if OPTIONS["prints"]:
                    print(f"a micro-batch of step {job.step}".ljust(500), flush=True)
                loss = fault(job, functional.cross_entropy(model(x), y), optimizer)
                job.backward(loss)
                norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                row |= {
                    "sync": job.sync_gradients,
                    "loss": job.loss,
                    "lr": scheduler.get_last_lr()[0],
                    "norm": float(norm),
                    "sum": float(x.sum()),
                    "bits": bits(),
                }
                ledger.write(json.dumps(row) + "\n")
                if OPTIONS["evaluate"] and job.sync_gradients and job.step % OPTIONS["evaluate"] == 0:
                    evaluated(job, model, loader)
                if job.sync_gradients:
                    job.state["steps"] = job.state.get("steps", 0) + 1
                    if job.rank == job.world_size - 1 and (FOLDER / "save").exists():
                        (FOLDER / "save").unlink()
                        job.save()
                if (
                    OPTIONS["fault"] == "break"
                    and job.rank == OPTIONS["fault_rank"]
                    and job.step == OPTIONS["fault_step"]
                ):
                    break
                if job.is_main and job.sync_gradients and (FOLDER / "stop").exists():
                    job.stop("the test has seen enough")
    if OPTIONS["evaluate"]:
        evaluated(job, model, loader)
    if OPTIONS["die"] == "after" and MEMBER == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while MEMBER in OPTIONS["linger"] and not (FOLDER / "home").exists():
        time.sleep(0.05)
    if job.is_main:
        torch.save({"model": plain.state_dict(), "step": job.step, "state": job.state}, FOLDER / "model.pt")


if __name__ == "__main__":
    main()
