"""A script may put its own things in the place of `sys.stdout`, `sys.stderr` and `sys.excepthook`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.launches import launched
from tests.support.places import SCRIPTS

SCRIPT = """
import contextlib, io, sys
import torch
from torch import nn
from torch.utils.data import TensorDataset
import elastic_launcher.torch as elastic

class Copies:  # as many scripts have it, without flush
    def __init__(self, stream): self.stream, self.file = stream, open("copy.txt", "a", buffering=1)
    def write(self, text): self.stream.write(text); self.file.write(text)

def pretty(kind, error, trace): sys.__stderr__.write(f"PRETTY {error}\\n")

sys.stdout = Copies(sys.stdout)
job = elastic.init(8, 4)
sys.excepthook = pretty
model = nn.Linear(2, 1)
model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = job.dataloader(TensorDataset(torch.randn(32, 2), torch.randn(32, 1)))

def train(epochs):
    for epoch in job.epochs(epochs):
        for x, y in loader:
            job.backward((model(x) - y).square().mean())
            optimizer.step()
        print("epoch", epoch)

def main():
    train(2)
    with contextlib.redirect_stdout(io.StringIO()) as text:
        train(1)
    assert text.getvalue() == "epoch 0\\n", text.getvalue()
    if sys.argv[1:] == ["raise"]:
        raise ValueError("a mistake in the script")

main()
"""


def test_marks_go_to_the_log_alone_and_a_missing_flush_ends_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with launched("--nodes", "2:2", "--", script, cwd=tmp_path) as job:
        assert job.wait() == 0, job.stderr
        log = (job.work_dir / "logs" / "1-0.log").read_text()
    assert "::elastic generation=1 rank=" in log
    assert set((tmp_path / "copy.txt").read_text().splitlines()) == {"epoch 0", "epoch 1"}


def test_an_exception_is_named_although_the_script_has_replaced_the_hook(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with launched("--nodes", "1:1", "--", script, "raise", cwd=tmp_path) as job:
        assert job.wait() == 1
        assert "ValueError: a mistake in the script" in job.last_message, job.last_message
    assert "PRETTY a mistake in the script" in (job.work_dir / "logs" / "1-0.log").read_text()


@pytest.mark.parametrize("resize", ["in-process", pytest.param("respawn", marks=pytest.mark.thorough)])
def test_each_argument_reaches_the_script_as_it_was_typed(tmp_path: Path, resize: str) -> None:
    folder = tmp_path / "$local_rank"
    folder.mkdir()
    script = folder / "tr$$ain.py"
    script.write_text("import json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    words = ["pa$$word", "$local_rank", "${local_rank}", "100$", "a b", "--", ""]
    with launched("--nodes", "1:1", "--resize", resize, "--", script, *words, cwd=tmp_path) as job:
        assert job.wait() == 0, job.stderr
        log = (job.work_dir / "logs" / "1-0.log").read_text()
    assert json.dumps(words) in log.splitlines()


@pytest.mark.parametrize("nodes", [pytest.param("1:1", marks=pytest.mark.thorough), "2:2"])
def test_a_process_that_ends_at_once_after_the_training_has_told_all_its_steps(tmp_path: Path, nodes: str) -> None:
    script = SCRIPTS / "vanish.py"
    with launched("--nodes", nodes, "--", script, cwd=tmp_path) as job:
        assert job.wait(150) == 0, job.stderr
    assert "done: 28 steps, 112 samples" in job.last_message
