"""A script that draws a line through 32 samples in three epochs; what stands for FAILS is done after each of them."""

SCRIPT = """
import os
import torch
import elastic_launcher.torch as elastic

job = elastic.init()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = job.prepare(model, optimizer)
inputs = torch.arange(64.0).reshape(32, 2) / 64
loader = job.dataloader(torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True)), shuffle=True)
for epoch in job.epochs(3):
    for x, y in loader:
        job.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    job.log({"epochs_done": epoch + 1, "not_a_number": float("nan")})
    FAILS
if job.is_main:
    torch.save(model.state_dict(), os.environ["ELASTIC_OUTPUT"])
"""
