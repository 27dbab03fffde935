"""Trains on the digits, with a batch that adapts, and tests after each epoch."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import elastic_launcher.torch as elastic

job = elastic.init(global_batch_size=32, max_batch_per_gpu=256)
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
loader = job.dataloader(TensorDataset(x[:1500], y[:1500]), shuffle=True, drop_last=True)
loader.autoscale_batch_size(512, local_bsz_bounds=(16, 256), gradient_accumulation=True)
test_loader = job.dataloader(TensorDataset(x[1500:], y[1500:]))
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model, optimizer = job.prepare(model, optimizer)

for epoch in job.epochs(30):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        job.backward(loss)
        optimizer.step()
    sums = job.evaluate(lambda x, y: {"right": (model(x).argmax(1) == y).sum()}, test_loader)
    if job.is_main:
        print(f"epoch {epoch}: accuracy {sums['right'] / sums['count']:.3f}")
