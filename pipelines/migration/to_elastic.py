"""Trains on the digits, with 256 samples in each optimizer step."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic

job = elastic.init(global_batch_size=256, max_batch_per_gpu=64)
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
dataset = TensorDataset(torch.tensor(images / 16), torch.tensor(labels))
loader = job.dataloader(dataset, drop_last=True)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer = job.prepare(model, optimizer)

for _ in job.epochs(100):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        job.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

if job.is_main:
    torch.save(model.state_dict(), "digits.pt")
