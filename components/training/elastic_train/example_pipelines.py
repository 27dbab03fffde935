"""Two uses of elastic_train: a script that is in the image, and one that travels inside the pipeline."""

from kfp import dsl

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


@dsl.pipeline(name="elastic-train-script-in-image")
def script_in_image(epochs: str = "10"):
    """Trains a script that the step's image holds, on one to four nodes, as the hints of its queue say."""
    from elastic_launcher.kfp import elastic_train

    elastic_train(
        script="/workspace/train.py",
        arguments=["--epochs", epochs],
        min_nodes=1,
        max_nodes=4,
        global_batch_size=256,
        max_batch_per_gpu=64,
        hints="/etc/quota/hints.json",
        match={"queue": "team-a"},
    )


@dsl.pipeline(name="elastic-train-script-in-pipeline")
def script_in_pipeline():
    """Trains a script whose text is part of the pipeline, so that the image needs none."""
    from elastic_launcher.kfp import elastic_train

    elastic_train(script=SCRIPT, global_batch_size=64, max_batch_per_gpu=16)
