"""Trains on the digits, with a batch that adapts, and tests after each epoch."""

import adaptdl.torch as adl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

adl.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
loader = adl.AdaptiveDataLoader(TensorDataset(x[:1500], y[:1500]), batch_size=32, shuffle=True, drop_last=True)
loader.autoscale_batch_size(512, local_bsz_bounds=(16, 256), gradient_accumulation=True)
test_loader = adl.AdaptiveDataLoader(TensorDataset(x[1500:], y[1500:]), batch_size=128)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model = adl.AdaptiveDataParallel(model, optimizer)

for epoch in adl.remaining_epochs_until(30):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    sums = adl.Accumulator()
    with torch.no_grad():
        for x, y in test_loader:
            sums["right"] += (model(x.to(device)).argmax(1).cpu() == y).sum().item()
            sums["count"] += len(y)
    with sums.synchronized():
        print(f"epoch {epoch}: accuracy {sums['right'] / sums['count']:.3f}")
