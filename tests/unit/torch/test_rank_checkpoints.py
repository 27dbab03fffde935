"""What a rank saves and resumes with: nothing that a disk or the memory refuses for a moment ends its training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from elastic_launcher.config import JobConfig
from elastic_launcher.torch.buffers import ModelBuffers
from elastic_launcher.torch.checkpoints import Checkpoints
from elastic_launcher.torch.group import build_group
from elastic_launcher.torch.launch import Launch
from elastic_launcher.torch.member import Member
from elastic_launcher.torch.place import Formation, Place
from elastic_launcher.torch.session import Session
from elastic_launcher.torch.signals import Agreement
from elastic_launcher.torch.state import TrainingState
from elastic_launcher.workdir import Layout
from tests.support import until

FINGERPRINT = {
    "global_batch_size": 8,
    "seed": 0,
    "dataset": "Digits of 97 samples",
    "shuffle": True,
    "loader_seed": 0,
    "drop_last": False,
}
CPU = torch.device("cpu")


class Reports(Member):
    """A member whose reports stay here."""

    def __init__(self, orphan_timeout: float) -> None:
        super().__init__(Launch("control.json", 1, 1, torchrun=False, local_rank=0), CPU, orphan_timeout)
        self.told: list[dict[str, Any]] = []

    def report(self, kind: str, **fields: Any) -> None:
        self.told.append({"kind": kind, **fields})


class Rank:
    """The only rank of a job.

    Attributes:
        layout: Its work directory.
        state: What it trains.
        checkpoints: What it saves with.
    """

    def __init__(self, folder: Path, resumes: str = "", orphan_timeout: float = 60.0) -> None:
        self.layout = Layout(folder)
        document = {"id": "job", "config": JobConfig(script="train.py").to_dict()}
        self.layout.job.write_text(json.dumps(document))
        self.member = Reports(orphan_timeout)
        self.member.checkpoint = resumes
        self.state = TrainingState([nn.Linear(2, 1)], [], [], [], {}, {})
        launch = Launch("control.json", 1, 1, torchrun=False, local_rank=0)
        self.session = Session(8, 8, 0, CPU, launch, self.member, ModelBuffers(), self.state)
        self.checkpoints = self.session.checkpoints = Checkpoints(self.session, self.member, folder)

    def train(self, step: int) -> None:
        """Takes its place, in which it has done so many steps."""
        self.session.place = Place(1, Formation(1, 1, "start", (1,)), build_group("", 1, 0, 1, 1.0, CPU), 1)
        self.session.position.step = step
        self.checkpoints.note_training(FINGERPRINT)

    def save(self, step: int) -> list[dict[str, Any]]:
        """Saves after a step; returns what it told of that."""
        self.session.position.step = step
        self.checkpoints.agree(Agreement(8.0, 0.5, None, 0, 0, 1, 0, 0, same_position=True, same_check=True))
        self.checkpoints.after_step()
        return until(lambda: [one for one in self.member.told if one["step"] == step], "it tells of it")


def test_a_copy_for_which_there_is_no_memory_is_told_and_tried_again_later(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.train(20)
    rank.state.user["large"] = torch.zeros(1).expand(1 << 50)
    (told,) = rank.save(20)
    assert told["kind"] == "save_failed" and "memory" in told["message"], told
    del rank.state.user["large"]
    assert [told["kind"] for told in rank.save(25)] == ["saved"]
