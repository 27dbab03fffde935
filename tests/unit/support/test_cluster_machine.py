"""What the tests' cluster is made with, as far as it needs no cluster."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.cluster.machine import cluster, image, volumes
from tests.cluster.machine.places import Places, Settings
from tests.cluster.machine.processes import ClusterError, Daemon, Process, run


@pytest.mark.parametrize(
    ("checkout", "prefix", "base", "folders"),
    [
        ("/src", "/src/.venv", "/usr", ["/src", "/usr"]),
        ("/src", "/venv", "/opt/python", ["/opt/python", "/src", "/usr", "/venv"]),
        ("/src", "/src-venv", "/usr/local", ["/src", "/src-venv", "/usr"]),
    ],
)
def test_pods_see_each_folder_once(checkout: str, prefix: str, base: str, folders: list[str]) -> None:
    assert volumes.python_folders(Path(checkout), prefix, base) == [Path(folder) for folder in folders]


def test_a_volume_belongs_to_its_claim_and_to_no_other() -> None:
    volume, claim = volumes.volumes("ml", [Path("/root/.pyenv/3.11")])
    assert volume["spec"]["claimRef"] == {key: claim["metadata"][key] for key in ("namespace", "name")}
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]


def test_claims_of_different_folders_have_different_names_that_pods_may_use() -> None:
    folders = [Path("/a/b"), Path("/a-b"), Path("/A/b"), Path("/" + "deep/" * 40), Path("/deeper/" + "deep/" * 40)]
    names = {volumes.claim_name(folder) for folder in folders}
    assert len(names) == len(folders)
    assert all(re.fullmatch("[a-z0-9][a-z0-9-]{0,61}[a-z0-9]", name) for name in names)


def test_the_same_folder_gives_the_same_image(tmp_path: Path) -> None:
    archives = [tmp_path / "first.tar", tmp_path / "second.tar"]
    for archive in archives:
        image.fill_test_image(tmp_path / archive.stem)
        image.pack(tmp_path / archive.stem, archive, image.TEST, user=image.NOBODY)
    assert archives[0].read_bytes() == archives[1].read_bytes()


def test_an_image_names_its_layer_by_its_content(tmp_path: Path) -> None:
    image.fill_test_image(tmp_path / "root")
    image.pack(tmp_path / "root", tmp_path / "image.tar", image.TEST)
    with tarfile.open(tmp_path / "image.tar") as archive:
        content = {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
    (manifest,) = json.loads(content["manifest.json"])
    layers = [hashlib.sha256(content[layer]).hexdigest() for layer in manifest["Layers"]]
    assert [f"sha256:{layer}" for layer in layers] == json.loads(content[manifest["Config"]])["rootfs"]["diff_ids"]


def test_settings_are_read_as_they_were_saved(tmp_path: Path) -> None:
    places, settings = Places(tmp_path / "state"), Settings(Path("/programs"), nodes=3, gpus=4, grace=10)
    assert places.settings() is None
    places.save(settings)
    assert places.settings() == settings


def test_what_is_not_up_is_taken_down_without_a_word(tmp_path: Path) -> None:
    cluster.down(Places(tmp_path / "state"))
    assert not list(tmp_path.iterdir())


def test_a_daemon_is_started_once_and_ended(tmp_path: Path) -> None:
    daemon = Daemon("sleeper", tmp_path / "sleeper.process", tmp_path / "sleeper.log")
    daemon.start(["sleep", "1000"])
    first = daemon.pid
    daemon.start(["sleep", "1000"])
    assert daemon.pid == first is not None
    daemon.end()
    assert daemon.pid is None


def test_another_process_of_the_same_number_is_not_taken_for_it(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        process = Process("noted", tmp_path / "noted.process")
        process.note(other.pid)
        assert process.pid == other.pid
        noted = json.loads(process.file.read_text())
        process.file.write_text(json.dumps({**noted, "started": noted["started"] - 1}))
        assert process.pid is None
        process.end()
        assert other.poll() is None
        other.kill()


def test_a_command_that_fails_is_told_with_what_it_said() -> None:
    with pytest.raises(ClusterError, match=r"^sh -c .*: exit 3: no such luck$"):
        run("sh", "-c", "echo no such luck >&2; exit 3")
    with pytest.raises(ClusterError, match="^no-such-command cannot be run: No such file"):
        run("no-such-command")
