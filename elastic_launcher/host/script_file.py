"""Chooses the file for a script that is given as a text, beside the job's folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

from elastic_launcher.host.files import replacing
from elastic_launcher.host.modes import make_folder


def script_path(work_dir: Path, name: str, text: str) -> Path:
    """Returns where a job keeps a script that is given as a text: all attempts at one place, beside no other code.

    Another text is at another place: who brings one to a job that runs does not change what its next nodes run.
    """
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Path(f"{work_dir}.code") / digest / f"{Path(name).name}.py"


def write_script(text: str, path: Path) -> None:
    """Writes a script's text, whole or not at all.

    Raises:
        OSError: If it can't be written.
    """
    make_folder(path.parent)
    with replacing(path) as file:
        file.write(text.encode())
