"""A learning rate that the loop body sets by the step holds on a joiner too, in the step with which it joins."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.launches import launched
from tests.support.resizes import LONG, allow, formed
from tests.support.scripts import own_rates
from tests.support.scripts.own_rates import BATCH, SAMPLES, X, build, loss_of, rate


@pytest.mark.thorough
def test_a_rate_that_the_loop_body_sets_is_that_of_the_joiners_first_step(tmp_path: Path) -> None:
    hints = tmp_path / "hints.json"
    allow(hints, 1)
    with launched("--nodes", "1:2", "--hints", hints, "--", own_rates.__file__, tmp_path, cwd=tmp_path) as job:
        last = formed(job, 1, 0)
        allow(hints, 2)
        formed(job, 2, last["generation"])
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    found = torch.load(tmp_path / "model.pt")
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for step in range(found["step"]):
        start = step * BATCH % SAMPLES
        optimizer.param_groups[0]["lr"] = rate(step)
        optimizer.zero_grad()
        loss_of(model, X[start : start + BATCH]).backward()
        optimizer.step()
    for name, value in model.state_dict().items():
        assert torch.allclose(found["model"][name], value, rtol=0, atol=1e-12), name
