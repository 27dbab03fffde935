"""Trains a small convolutional network on the digits; runs alike under python, torchrun and elastic-launcher.

The six lines that make it elastic are marked. Everything else is what a script for one process would say.
"""

import os
from pathlib import Path

import numpy
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic  # 1

EPOCHS = 24
WIDTH = 256
PEAK_RATE = 0.003


def block(inputs: int, outputs: int) -> list[nn.Module]:
    """Returns a convolution (no bias: the norm behind it would cancel it), its norm and its activation."""
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]


def network() -> nn.Sequential:
    """Returns a network that maps 1 x 8 x 8 images to ten scores."""
    return nn.Sequential(
        *block(1, WIDTH // 2),
        *block(WIDTH // 2, WIDTH // 2),
        nn.MaxPool2d(2),
        *block(WIDTH // 2, WIDTH),
        *block(WIDTH, WIDTH),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * WIDTH, 10),
    )


def save(model: nn.Module, images: torch.Tensor) -> None:
    """Writes the model, whole and at once, to where the pipeline step wants it."""
    path = Path(os.environ.get("ELASTIC_OUTPUT", "digits.pt2"))
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(model.eval(), (images[:2],), dynamic_shapes=({0: batch},))
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        torch.export.save(program, file)
    os.replace(partial, path)


def main() -> None:
    """Trains, tests after each epoch, saves."""
    job = elastic.init()  # 2: batch sizes come from the pipeline step
    with numpy.load(os.environ["ELASTIC_DATA"]) as arrays:
        data = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=0.05)
    loader = job.dataloader(TensorDataset(data["x_train"], data["y_train"]), shuffle=True, seed=7)  # 3
    test_loader = job.dataloader(TensorDataset(data["x_test"], data["y_test"]))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=EPOCHS * loader.steps_per_epoch)
    model, optimizer, scheduler = job.prepare(model, optimizer, scheduler)  # 4

    def test(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = model(x)
        return {"loss": F.cross_entropy(scores, y, reduction="sum"), "correct": (scores.argmax(1) == y).sum()}

    for _ in job.epochs(EPOCHS):  # 5: continues where the job is
        model.train()
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            job.backward(loss)  # 6
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        model.eval()
        sums = job.evaluate(test, test_loader)
        accuracy = sums["correct"] / sums["count"]
        job.log({"test_accuracy": accuracy, "test_loss": sums["loss"] / sums["count"]})
        if job.is_main:
            print(f"epoch {job.epoch + 1} of {EPOCHS}: {accuracy:.2%} of the test images recognised", flush=True)

    if job.is_main:
        save(model, data["x_test"])


if __name__ == "__main__":
    main()
