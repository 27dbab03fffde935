"""What the first batch decides, as a boolean notes it, is what it is in one plain process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.launches import launched
from tests.support.places import SCRIPTS
from tests.support.resizes import LONG
from tests.support.scripts.first_batch import BATCH, DATA, make


@pytest.mark.parametrize(
    ("kind", "nodes"), [pytest.param("buffer", 1, marks=pytest.mark.thorough), ("buffer", 2), ("weights", 2)]
)
def test_it_is_decided_once_by_the_first_step(kind: str, nodes: int, tmp_path: Path) -> None:
    script = (SCRIPTS / "first_batch.py", tmp_path, kind)
    with launched("--nodes", f"{nodes}:{nodes}", "--", *script, cwd=tmp_path) as job:
        assert job.wait(LONG) == 0, job.stderr
    plain, optimizer = make(kind)
    for x in DATA.split(BATCH):
        optimizer.zero_grad()
        plain(x).backward()
        optimizer.step()
    for rank in range(nodes):
        found = torch.load(tmp_path / f"{nodes}-{rank}.pt")
        torch.testing.assert_close(found, dict(plain.state_dict()), rtol=1e-12, atol=0.0)


def test_a_parameter_that_it_decides_is_refused_by_name_before_training(tmp_path: Path) -> None:
    script = (SCRIPTS / "first_batch.py", tmp_path, "parameter")
    with launched("--nodes", "2:2", "--", *script, cwd=tmp_path) as job:
        assert job.wait(LONG) == 1, job.stderr
    assert "the loop body changes mean without an optimizer" in job.last_message, job.last_message
    assert not job.events.of("generation_formed")
