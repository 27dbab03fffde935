"""Trains a small network on the digits at one learning rate; runs alike under python, torchrun and elastic-launcher."""

import argparse
import json
import os
from pathlib import Path

import numpy
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic

LABELS = 10


def save(model: nn.Module, images: torch.Tensor, matrix: torch.Tensor) -> None:
    """Writes the model where the pipeline step wants it, and beside it what it confuses with what."""
    path = Path(os.environ.get("ELASTIC_OUTPUT", "digits.pt2"))
    program = torch.export.export(model.eval(), (images[:2],), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    with open(path, "wb") as file:
        torch.export.save(program, file)
    classes = {"labels": [str(label) for label in range(LABELS)], "matrix": matrix.int().tolist()}
    path.with_name(path.name + ".classes.json").write_text(json.dumps(classes))


def main() -> None:
    """Trains, tests after each epoch, saves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=0.003)
    parser.add_argument("--epochs", type=int, default=6)
    given = parser.parse_args()
    job = elastic.init()
    with numpy.load(os.environ["ELASTIC_DATA"]) as arrays:
        data = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, LABELS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.rate)
    loader = job.dataloader(TensorDataset(data["x_train"], data["y_train"]), shuffle=True, seed=7)
    test_loader = job.dataloader(TensorDataset(data["x_test"], data["y_test"]))
    model, optimizer = job.prepare(model, optimizer)

    def test(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        found = model(x).argmax(1)
        cells = torch.bincount(LABELS * y + found, minlength=LABELS**2)
        return {"correct": (found == y).sum(), **{f"cell_{cell}": count for cell, count in enumerate(cells)}}

    sums: dict[str, float] = {}
    for _ in job.epochs(given.epochs):
        for x, y in loader:
            job.backward(F.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
        sums = job.evaluate(test, test_loader)
        job.log({"test_accuracy": sums["correct"] / sums["count"]})

    if job.is_main:
        matrix = torch.tensor([sums[f"cell_{cell}"] for cell in range(LABELS**2)]).reshape(LABELS, LABELS)
        save(model, data["x_test"], matrix)


if __name__ == "__main__":
    main()
