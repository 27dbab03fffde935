"""An optimizer's own state travels, or the job ends in its first step instead of when somebody joins."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launches import launched

LONG = 240.0  # on a machine that does other things too

SCRIPT = """
import collections, torch, elastic_launcher.torch as elastic

class Own(torch.optim.SGD):
    def step(self, closure=None):
        super().step()
        for p in self.param_groups[0]["params"]:
            self.state[p]["history"] = KIND

job = elastic.init(4, 4)
model = torch.nn.Linear(2, 1)
model, optimizer = job.prepare(model, Own(model.parameters(), lr=0.1))
for _ in job.epochs(1):
    for (x,) in job.dataloader(torch.utils.data.TensorDataset(torch.ones(12, 2))):
        job.backward(model(x).mean()); optimizer.step(); optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("kind", "ends"),
    [("{1.5, 2.5}", 1), pytest.param("collections.deque([1.5], maxlen=3)", 0, marks=pytest.mark.thorough)],
)
def test_state_that_cannot_travel_is_found_in_the_first_step(kind: str, ends: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("KIND", kind))
    with launched("--nodes", "1:1", "--", "train.py", cwd=tmp_path) as job:
        assert job.wait(LONG) == ends, job.stderr
        if ends:
            assert "TypeError: optimizer[0].state['weight'].history: builtins.set cannot be" in job.stderr
            assert "joiners and checkpoints need it" in job.stderr
