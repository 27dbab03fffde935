"""What a rank saves and resumes with: nothing that a disk or the memory refuses for a moment ends its training."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elastic_launcher.adaptive.bounds import Bounds
from elastic_launcher.batch_schedule import BatchSchedule
from elastic_launcher.checkpoint.files import MANIFEST, STATE
from elastic_launcher.config import JobConfig
from elastic_launcher.control.messages import Report, encode
from elastic_launcher.control.requests import Standing
from elastic_launcher.torch.autoscaling import Autoscaling
from elastic_launcher.torch.collectives.consensus import Agreement
from elastic_launcher.torch.collectives.group import build_group
from elastic_launcher.torch.data.training_data import TrainingData
from elastic_launcher.torch.membership.environment import Launch
from elastic_launcher.torch.membership.member import Member
from elastic_launcher.torch.membership.membership import Formation, Membership
from elastic_launcher.torch.membership.reports import Reports
from elastic_launcher.torch.session import Session
from elastic_launcher.torch.state.buffers import ModelBuffers
from elastic_launcher.torch.state.checkpointing import Checkpoints
from elastic_launcher.torch.state.training_state import TrainingState
from elastic_launcher.workdir import Layout
from tests.support.launches import PATIENCE, until
from tests.support.scripts.scripted_policy import ScriptedPolicy

FINGERPRINT = {
    "global_batch_size": 8,
    "seed": 0,
    "dataset": "Digits of 97 samples",
    "shuffle": True,
    "loader_seed": 0,
    "drop_last": False,
}
CPU = torch.device("cpu")


class Kept(Reports):
    """Reports that stay here."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def put(self, report: Report) -> None:
        self.told.append(encode(report))


class Rank:
    """The only rank of a job.

    Attributes:
        layout: Its work directory.
        state: What it trains.
        checkpoints: What it saves with.
    """

    def __init__(
        self, folder: Path, resumes: str = "", orphan_timeout: float = 60.0, accepted: tuple[str, ...] = ()
    ) -> None:
        self.layout = Layout(folder)
        document = {
            "id": "job",
            "config": JobConfig(script="train.py", accept_changes=",".join(accepted) or None).to_dict(),
        }
        self.layout.job.write_text(json.dumps(document))
        launch = Launch("control.json", 1, 1, torchrun=False, local_rank=0)
        self.member, self.reports = Member(launch, CPU, orphan_timeout), Kept()
        self.member.reports, self.member.standing = self.reports, Standing(checkpoint=resumes)
        self.state = TrainingState([nn.Linear(2, 1)], [], [], [], {}, {})
        self.session = Session(BatchSchedule.fixed(8), 8, 0, CPU, launch, self.member, ModelBuffers(), self.state)
        self.checkpoints = self.session.checkpoints = Checkpoints(self.session, self.member, folder)

    def adapt(self) -> None:
        """Lets its batch adapt."""
        data = TrainingData("data", 100)
        self.session.autoscaling = Autoscaling(data, Bounds(8, 100, 8), ScriptedPolicy({}))

    def train(self, step: int) -> None:
        """Takes its place, in which it has done so many steps."""
        self.session.membership = Membership(1, Formation(1, 1, "start", (1,)), build_group("", 1, 0, 1, 1.0, CPU), 1)
        self.session.move_to(replace(self.session.position, step=step))
        self.checkpoints.note_training(FINGERPRINT)

    def save(self, step: int) -> list[dict[str, Any]]:
        """Saves after a step; returns what it told of that."""
        self.session.move_to(replace(self.session.position, step=step))
        self.checkpoints.agree(Agreement(8.0, 0.5, None, 0, 0, 1, 0, 0, same_position=True, same_check=True))
        self.checkpoints.after_step()
        return until(lambda: [one for one in self.reports.told if one["step"] == step], "it tells of it")


@pytest.fixture(autouse=True)
def told_by_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")


def test_a_copy_for_which_there_is_no_memory_is_told_and_tried_again_later(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.train(20)
    rank.state.user["large"] = torch.zeros(1).expand(1 << 50)
    (told,) = rank.save(20)
    assert told["kind"] == "save_failed" and "memory" in told["message"], told
    del rank.state.user["large"]
    assert [told["kind"] for told in rank.save(25)] == ["saved"]


def test_a_job_file_that_can_not_be_read_any_more_stops_no_save(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.train(20)
    rank.layout.job.unlink()
    assert [told["kind"] for told in rank.save(20)] == ["saved"]


def test_a_job_file_that_can_not_be_read_yet_is_told_and_tried_again_later(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    aside = rank.layout.job.rename(tmp_path / "aside")
    rank.checkpoints = rank.session.checkpoints = Checkpoints(rank.session, rank.member, tmp_path)
    rank.train(20)
    (told,) = rank.save(20)
    assert told["kind"] == "save_failed" and "job.json" in told["message"], told
    aside.rename(rank.layout.job)
    assert [told["kind"] for told in rank.save(25)] == ["saved"]


@pytest.mark.parametrize("name", [MANIFEST, STATE])
def test_a_checkpoint_that_the_disk_does_not_give_for_a_moment_is_read_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    folder, aside = saved(tmp_path), tmp_path / "aside"
    (folder / name).rename(aside)
    (folder / name).symlink_to("/proc/self/mem")  # an input/output error to whoever reads it
    rank = Rank(tmp_path, resumes=str(folder))
    reader = threading.Thread(target=rank.checkpoints.resume, args=(FINGERPRINT,))
    reader.start()
    until(lambda: "Input/output error; that is tried again" in capfd.readouterr().err, "it says so")
    aside.replace(folder / name)
    reader.join(PATIENCE)
    assert rank.session.position.step == 20


def test_a_checkpoint_that_the_disk_never_gives_has_the_rank_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def left(reason: str) -> None:
        raise SystemExit(reason)

    monkeypatch.setattr("elastic_launcher.torch.state.checkpointing.leave", left)
    folder = saved(tmp_path)
    (folder / STATE).unlink()
    (folder / STATE).symlink_to("/proc/self/mem")
    rank = Rank(tmp_path, resumes=str(folder), orphan_timeout=0.1)
    with pytest.raises(SystemExit, match="step-00000020: .*Input/output error; that was tried for 0.1 s"):
        rank.checkpoints.resume(FINGERPRINT)


def test_a_checkpoint_of_which_a_file_is_missing_is_an_error_at_once(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    (folder / STATE).unlink()
    rank = Rank(tmp_path, resumes=str(folder))
    with pytest.raises(RuntimeError, match="can't go on from .*state.json can't be read"):
        rank.checkpoints.resume(FINGERPRINT)


def test_the_batch_schedule_is_saved_and_resumed_up_to_the_step_that_comes_next(tmp_path: Path) -> None:
    folder = saved(tmp_path, ((0, 8), (7, 12), (20, 6), (21, 30)))
    rank = Rank(tmp_path, resumes=str(folder))
    rank.adapt()
    rank.checkpoints.resume(FINGERPRINT)
    assert rank.session.schedule.entries == ((0, 8), (7, 12), (20, 6))
    assert rank.session.position.step == 20


def test_a_job_whose_batch_adapted_is_not_resumed_with_a_fixed_one(tmp_path: Path) -> None:
    folder = saved(tmp_path, ((0, 8), (7, 12)))
    rank = Rank(tmp_path, resumes=str(folder))
    with pytest.raises(
        RuntimeError, match=r"adapted there, and is 12 samples by now; call loader.autoscale_batch_size"
    ):
        rank.checkpoints.resume(FINGERPRINT)


def test_a_job_that_begins_with_another_batch_by_its_users_wish_forgets_the_schedule(tmp_path: Path) -> None:
    folder = saved(tmp_path, ((0, 8), (7, 12)))
    rank = Rank(tmp_path, resumes=str(folder), accepted=("global-batch-size",))
    rank.session.take_schedule(BatchSchedule.fixed(5))
    rank.checkpoints.resume({**FINGERPRINT, "global_batch_size": 5})
    assert rank.session.schedule == BatchSchedule.fixed(5)


def saved(folder: Path, entries: tuple[tuple[int, int], ...] = ((0, 8),)) -> Path:
    """Returns a checkpoint of 20 steps in a work directory."""
    rank = Rank(folder)
    rank.session.take_schedule(BatchSchedule(entries))
    rank.train(20)
    (told,) = rank.save(20)
    return Path(told["path"])
