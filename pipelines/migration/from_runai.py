"""Trains on the digits, with 256 samples in each optimizer step."""

import runai.elastic.torch
import runai.ga.torch
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

runai.elastic.torch.init(256, 64, gpus=torch.cuda.device_count() or 1)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
dataset = TensorDataset(torch.tensor(images / 16), torch.tensor(labels))
loader = DataLoader(dataset, batch_size=runai.elastic.batch_size * runai.elastic.gpus, drop_last=True)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).double()
model = nn.DataParallel(model.to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = runai.ga.torch.optim.Optimizer(optimizer, runai.elastic.steps)

for _ in range(100):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = F.cross_entropy(model(x), y) / runai.elastic.steps
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

torch.save(model.module.state_dict(), "digits.pt")
