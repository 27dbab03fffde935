"""One step that is the whole Workflow, its nodes processes that share its pod's GPUs; what is preset is overridden."""

from hera.workflows import Resources, RetryStrategy, WorkflowTemplate, models

from elastic_launcher.hera import ElasticTrain

SCRIPT = """\
import torch
import elastic_launcher.torch as elastic

job = elastic.init()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = job.prepare(model, optimizer)
samples = torch.utils.data.TensorDataset(torch.randn(512, 4), torch.randn(512, 1))
loader = job.dataloader(samples, shuffle=True)
for epoch in job.epochs(2):
    for x, y in loader:
        job.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
"""

with WorkflowTemplate(
    name="small",
    entrypoint="train",
    service_account_name="elastic-launcher",
    pod_gc=models.PodGC(strategy="OnPodSuccess"),
) as w:
    ElasticTrain(
        name="train",
        image="elastic-launcher",
        script=SCRIPT,
        nodes="1:2",
        global_batch_size=64,
        max_batch_per_gpu=16,
        resources=Resources(gpus=2, cpu_request=4, memory_request="8Gi"),
        retry_strategy=RetryStrategy(limit=1, retry_policy="OnError"),
        labels={"team": "vision"},
        annotations={"workflows.argoproj.io/progress": "0/16"},
    )
