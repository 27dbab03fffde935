"""Trains on the digits, with 256 samples in each optimizer step."""

import os

import torch
from sklearn.datasets import load_digits
from torch import distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

distributed.init_process_group()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
dataset = TensorDataset(torch.tensor(images / 16), torch.tensor(labels))
sampler = DistributedSampler(dataset, shuffle=False, drop_last=True)
loader = DataLoader(dataset, batch_size=256 // distributed.get_world_size(), sampler=sampler, drop_last=True)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).double()
model = DistributedDataParallel(model.to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

for _ in range(100):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

if distributed.get_rank() == 0:
    torch.save(model.module.state_dict(), "digits.pt")
distributed.destroy_process_group()
