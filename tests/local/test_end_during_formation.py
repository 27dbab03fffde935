"""A script that ends while a new group is under way has ended well: nothing of it is done again."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.launches import launched

SCRIPT = """
import threading
import torch
import elastic_launcher.torch as elastic

job = elastic.init(global_batch_size=8, max_batch_per_gpu=8)
model = torch.nn.Linear(2, 1)
model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
loader = job.dataloader(torch.utils.data.TensorDataset(torch.ones(80, 2)), shuffle=True)
for epoch in job.epochs(1_000_000):
    for (x,) in loader:
        job.backward(model(x).square().mean())
        optimizer.step(); optimizer.zero_grad()
        if any(thread.name == "elastic-formation" for thread in threading.enumerate()):
            job.stop("a group is under way")
print("over", flush=True)
"""


def test_a_script_ends_while_a_peer_does_not_come_to_the_group(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    frozen = {"ELASTIC_FAULT": "freeze=form@0:2"}
    with launched("--nodes", "1:2", "--", "train.py", cwd=tmp_path, environment=frozen) as job:
        assert job.wait(90) == 0
        assert job.stdout.count("over") == 1
        assert not [lost for lost in job.events.of("node_lost") if lost["node"] == 1]
        assert json.loads((job.work_dir / "nodes" / "1-0.exit").read_text()) == {"exit_code": 0, "signal": None}
