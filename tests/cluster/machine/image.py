"""Images that no registry is needed for: folders, packed as archives that ``ctr images import`` takes."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import tarfile
from pathlib import Path

from tests.cluster.machine.places import Places
from tests.cluster.machine.processes import run

PAUSE = "localhost/pause:1"
TEST = "localhost/elastic-launcher-test:1"
NOBODY = 65532
PLACES = Path(__file__).parents[3] / "container" / "places.sh"
"""A step of the project's own image."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def _layer(root: Path) -> bytes:
    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = 0  # the same folder gives the same image
        return entry

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(root.rglob("*")):
            archive.add(path, arcname=str(path.relative_to(root)), recursive=False, filter=plain)
    return buffer.getvalue()


def pack(root: Path, archive: Path, name: str, entrypoint: tuple[str, ...] = (), user: int | None = None) -> None:
    """Packs a folder as an image of one layer.

    Args:
        root: What the image's root directory is to hold.
        archive: The file to write.
        name: The image's name and tag.
        entrypoint: Its command, for pods that name none.
        user: The number of the user that it runs as; None for root.
    """
    layer = _layer(root)
    config = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
            "Entrypoint": list(entrypoint),
            "User": "" if user is None else f"{user}:{user}",
        },
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    files = {
        "config.json": json.dumps(config).encode(),
        "layer.tar": layer,
        "manifest.json": json.dumps(manifest).encode(),
    }
    with tarfile.open(archive, "w") as written:
        for file, content in files.items():
            entry = tarfile.TarInfo(file)
            entry.size = len(content)
            written.addfile(entry, io.BytesIO(content))


def fill_test_image(root: Path) -> None:
    """Fills the root of the tests' image: what volumes give it, the host's /usr and Python, is left out.

    The Containerfile's other step, which installs Python packages, is left out for the same reason.
    """
    for folder in ("usr", "etc", "proc", "sys", "dev", "root", "home", "run", "var"):
        (root / folder).mkdir(parents=True)
    run("sh", str(PLACES), str(root))
    for folder in ("bin", "lib", "lib64", "sbin"):
        (root / folder).symlink_to(f"usr/{folder}")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/sbin/nologin\n")
    (root / "etc" / "group").write_text("root:x:0:\n")
    (root / "etc" / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")


def provide(places: Places, programs: Path) -> None:
    """Makes the archives of both images again."""
    shutil.rmtree(places.images, ignore_errors=True)
    pause, test = places.images / "pause", places.images / "test"
    pause.mkdir(parents=True)
    shutil.copy2(programs / "pause", pause / "pause")
    pack(pause, places.images / "pause.tar", PAUSE, ("/pause",))
    fill_test_image(test)
    pack(test, places.images / "test.tar", TEST, user=NOBODY)
