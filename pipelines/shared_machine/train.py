"""Trains a small network on the digits, at a set pace; runs alike under python and elastic-launcher.

Usage: train.py MODEL EPOCHS SECONDS, the last of which each step takes at least on one rank.
"""

import sys
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic

torch.set_num_threads(1)


def main(path: str, epochs: int, seconds: float) -> None:
    """Trains, and writes the model."""
    job = elastic.init(global_batch_size=120, max_batch_per_gpu=60)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float64) / 16, torch.tensor(labels))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = job.dataloader(data, shuffle=True, seed=7)
    model, optimizer = job.prepare(model, optimizer)
    for _ in job.epochs(epochs):
        for x, y in loader:
            time.sleep(seconds / 2 * len(x) / 60)  # more ranks are faster, as with a larger network
            loss = F.cross_entropy(model(x), y)
            job.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    if job.is_main:
        torch.save(model.state_dict(), path)
        print(f"loss {float(loss):.6f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
