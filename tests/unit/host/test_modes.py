"""Launcher and nodes that are different users share a folder, by rights that the kernel grants: no capabilities."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from elastic_launcher.agent.surroundings import unmet
from elastic_launcher.checkpoint import JobIdentity, Manifest, Mark, find_newest, publish, raise_fence
from elastic_launcher.checkpoint.landmark import Landmark, judge, landmark_of, missed, put, remove, sample
from elastic_launcher.checkpoint.shards import write_shards
from elastic_launcher.config import JobConfig
from elastic_launcher.events import EventLog
from elastic_launcher.host.modes import make_folder, share, share_new, share_tree
from elastic_launcher.report.write import write_atomically
from elastic_launcher.workdir import claim
from tests.support.other_user import User, needs_root, open_folder

ROOT = User(0, 0)
"""A step of Kubeflow: root, of its own group, without any capability."""
NODE = User(65532, 0, (0,))
SPECIFIC = User(1000, 1000, (1000,))
IN_ITS_GROUP = User(2000, 2000, (2000, 1000))
KEY = bytes(32)


@dataclass(frozen=True)
class Volume:
    """How a claim is mounted: its topmost folder."""

    uid: int
    gid: int
    mode: int


VOLUMES = {
    "a folder that all may write to, as hostPath and NFS often are": (Volume(0, 0, 0o777), ROOT, NODE),
    "one of nobody here": (Volume(99, 0, 0o777), ROOT, NODE),
    "root's own": (Volume(0, 0, 0o755), ROOT, NODE),
    "given to the group by fsGroup": (Volume(0, 0, 0o2775), ROOT, NODE),
    "given to the group of a launcher that is not root": (Volume(0, 1000, 0o2775), SPECIFIC, IN_ITS_GROUP),
    "all may write to, launcher and nodes not root": (Volume(0, 0, 0o777), SPECIFIC, IN_ITS_GROUP),
    "of one user": (Volume(1000, 1000, 0o755), SPECIFIC, SPECIFIC),
}


@contextlib.contextmanager
def mounted(volume: Volume) -> Iterator[Path]:
    with open_folder() as folder:
        claim_folder = folder / "claim"
        claim_folder.mkdir()
        os.chown(claim_folder, volume.uid, volume.gid)
        claim_folder.chmod(volume.mode)
        yield claim_folder


def save(folder: Path, mark: Mark) -> None:
    """Saves a checkpoint as rank 0 does."""
    job = JobIdentity("train.py", (), 8, 0, "TensorDataset of 8", False, 0, False)

    def write(draft: Path) -> Manifest:
        tensors, files = write_shards(draft, {"weight": torch.zeros(2)})
        return Manifest(job, mark, 0, mark.step, 8, 1, 0.0, "1", tuple(tensors), (0,), {}, tuple(files))

    publish(folder, write, mark, job="digits")


def resume(folder: Path, term: int, step: int) -> None:
    """Looks for what a job goes on from, as its launcher does, and shuts out who wrote before."""
    found = find_newest(folder)
    assert found.manifest is not None and found.manifest.step == step, found
    raise_fence(folder, term, "digits")


@needs_root
@pytest.mark.parametrize("kind", VOLUMES)
def test_each_side_goes_on_from_what_the_other_one_wrote(kind: str) -> None:
    volume, launcher, node = VOLUMES[kind]
    landmark = landmark_of("digits-x", KEY, shared=launcher.uid != node.uid)
    with mounted(volume) as top:
        folder = top / "digits" / "checkpoints"
        assert launcher.does(lambda: put(folder, landmark)) == ""
        assert node.does(lambda: check(folder, landmark)) == ""
        for term in (1, 2, 3):
            assert node.does(lambda: save(folder, Mark(term, 1, 10 * term))) == ""  # noqa: B023 - called at once
            assert node.does(lambda: (folder / f".tmp-1-t{term}-g1-s99-x").mkdir()) == ""  # noqa: B023 - killed then
            assert launcher.does(lambda: resume(folder, term + 1, 10 * term)) == ""  # noqa: B023
            assert launcher.does(lambda: put(folder, landmark)) == ""  # a launcher that takes over
        assert sorted(one.name for one in folder.iterdir() if one.name.startswith("step")) == [
            "step-00000020",
            "step-00000030",
        ]
        assert launcher.does(lambda: remove(folder, landmark)) == ""
        open_to_all = [path for path in (folder, *folder.rglob("*")) if path.stat().st_mode & stat.S_IWOTH]
        assert not open_to_all


def check(folder: Path, landmark: Landmark) -> None:
    assert missed(folder, landmark) == ""


@needs_root
@pytest.mark.parametrize(
    ("mode", "node"),
    [(0o777, User(65532, 65532)), (0o1777, NODE), (0o1777, User(65532, 65532))],
    ids=["of no group in common", "that only owners remove from", "both"],
)
def test_a_folder_in_which_the_launcher_can_not_go_on_is_found_by_a_sample(mode: int, node: User) -> None:
    landmark = landmark_of("digits-x", KEY)
    launcher = User(1000, 1000)
    with mounted(Volume(0, 0, mode)) as folder, open_folder() as told:
        told.chmod(0o777)
        name = told / "name"
        assert launcher.does(lambda: put(folder, landmark)) == ""

        def stay() -> None:
            with sample(folder, landmark) as made:
                name.write_text(made)
                os._exit(0)  # its launcher looks while the node waits

        node.does(stay)

        def look() -> None:
            assert (found := judge(folder, name.read_text())).startswith("can't read or remove what such a node makes")
            assert f"it is of uid {node.uid}, group {node.gid}" in found
            assert "the launcher of uid 1000, groups 1000" in found

        assert launcher.does(look) == ""


@needs_root
def test_launchers_of_different_users_share_a_work_directory() -> None:
    first, second = User(0, 0), User(1000, 0)
    config = JobConfig(script="train.py", work_dir="job")

    def launch(top: Path, term: int) -> None:
        with claim(config, top) as work_dir:
            assert work_dir.past.term == term
            EventLog(work_dir.layout.events).append("job_finished", 1, exit_code=75)
            write_atomically(work_dir.path / "report.md", "all")

    with mounted(Volume(0, 0, 0o2775)) as top:
        for term, user in enumerate((first, second, first), start=1):
            assert user.does(lambda: launch(top, term)) == ""  # noqa: B023 - called at once


@needs_root
def test_what_a_node_leaves_for_its_launcher_can_be_read() -> None:
    with mounted(Volume(0, 0, 0o755)) as top:
        top.chmod(0o777)

        def leave() -> None:
            (top / "model").mkdir()
            os.close(os.open(top / "model" / "weights.safetensors", os.O_WRONLY | os.O_CREAT, 0o600))
            share_tree(top / "model")

        assert NODE.does(leave) == ""
        assert User(1000, 1000).does(lambda: (top / "model" / "weights.safetensors").read_bytes()) == ""


def test_only_what_a_node_has_written_is_opened_for_its_launcher(tmp_path: Path) -> None:
    def leave(name: str, time: float) -> Path:
        path = top / name
        path.parent.mkdir(exist_ok=True)
        path.parent.chmod(0o700)
        path.write_text("")
        path.chmod(0o600)
        os.utime(path, (time, time))
        return path

    top = tmp_path / "output"
    top.mkdir()
    began = top.stat().st_mtime
    new = [leave(name, began + 1) for name in ("model.safetensors", "made/weights", "mine/weights")]
    kept = [leave("mine/notes", began - 9), leave("mine/control.json", began + 1), leave("job/job.json", began + 1)]
    kept += [leave("job/control.json", began + 1), leave("job/rank.log", began + 1)]
    kept += [outside := leave("../outside", began + 1)]
    (top / "made" / "link").symlink_to(outside)
    for folder in (top.parent, top):
        folder.chmod(0o755)
    share_new(top, began)
    share_new(tmp_path / "none", began)
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    modes = {name: stat.S_IMODE((top / name).stat().st_mode) for name in ("made", "mine", "job")}
    assert modes == {"made": 0o755, "mine": 0o700, "job": 0o700}
    assert [stat.S_IMODE(path.stat().st_mode) for path in new] == [0o644, 0o644, 0o600]


@needs_root
@pytest.mark.parametrize(
    ("option", "place", "mode", "said"),
    [
        ("data", "data", 0o600, "--data is {}: node 1 can't read it (Permission denied); run both as one user"),
        ("data", "data", 0o644, ""),
        ("output", "model", 0o755, "--output is {}: node 1 can't write there; launcher and nodes need"),
        ("output", "to/model", 0o755, "--output is {}: node 1 can't write there; launcher and nodes need"),
        ("output", "model", 0o777, ""),
    ],
)
def test_a_node_finds_before_training_what_it_may_not_use(option: str, place: str, mode: int, said: str) -> None:
    with open_folder() as top:
        path = top / place
        if option == "data":
            path.touch()
            path.chmod(mode)
        else:
            top.chmod(mode)
        config = JobConfig(script="train.py", **{option: str(path)})  # type: ignore[arg-type]

        def look() -> None:
            found = unmet(config, None, "node 1")
            assert found.startswith(said.format(path)) and bool(found) == bool(said), found

        assert NODE.does(look) == ""


@pytest.mark.parametrize(
    ("folder", "made"),
    [(0o700, (0o700, 0o600)), (0o755, (0o755, 0o644)), (0o2775, (0o2775, 0o664)), (0o1777, (0o755, 0o644))],
)
def test_the_folder_says_who_shares_what_is_made_in_it(tmp_path: Path, folder: int, made: tuple[int, int]) -> None:
    top = tmp_path / "top"
    top.mkdir()
    top.chmod(folder)
    umask = os.umask(0o077 if folder == 0o700 else 0o022)
    try:
        make_folder(top / "a" / "b")
        (top / "a" / "private").touch(0o600)
        share(top / "a" / "private", private=True)
    finally:
        os.umask(umask)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (top / "a", top / "a" / "b", top / "a" / "private")]
    assert modes == [made[0], made[0], made[1]]


def test_the_names_of_new_folders_are_put_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    make_folder(tmp_path / "job" / "checkpoints")
    assert synced == [str(tmp_path), str(tmp_path / "job")]
