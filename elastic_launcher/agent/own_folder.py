"""The work directory of a node that sees none of the launcher's files: its own, filled with what the coordinator hands.

It has the same places as a job's, so that ranks need not know where they run. What they write there for the launcher is
told by `log_sender` and by the agent.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from elastic_launcher.config import JobConfig
from elastic_launcher.control import ControlClient, ControlUnreachable
from elastic_launcher.engines.machine import cores, threads_per_rank
from elastic_launcher.workdir import Layout, write_json

RETRY = 0.5
"""Seconds between tries to reach the coordinator: it is there, but a new pod's network may not be."""


class ToldToGo(Exception):  # noqa: N818 - not an error
    """SIGTERM came before anything was started."""


def make_own_folder(environment: MutableMapping[str, str]) -> Path:
    """Makes the folder, and has the environment name it; SIGTERM must be blocked.

    Args:
        environment: Has the coordinator's URL in ``ELASTIC_CONTROL``, and its key in ``ELASTIC_KEY``, or in the file
            ``ELASTIC_KEY_FILE``. Both are in the folder's ``control.json`` afterwards.

    Raises:
        OSError: If the coordinator can't be reached, or the folder not be written.
        ControlRefused: If the coordinator refuses this node.
        ToldToGo: If the node is not wanted any more.
    """
    url, key = environment["ELASTIC_CONTROL"], _take_key(environment)
    job = _ask(url, key, int(environment["ELASTIC_NODE"]), float(environment.get("ELASTIC_ORPHAN_TIMEOUT", "60")))
    layout = Layout(Path(tempfile.mkdtemp(prefix="elastic-")))
    for folder in (layout.nodes, layout.logs):
        folder.mkdir()
    config: dict[str, Any] = job["config"]
    if job["code"]:
        config["script"] = str(_write_code(layout.path / "code", job["code"]))
    write_json(layout.job, {"id": job["id"], "config": config})
    control = {"v": 1, "url": url, "store": job["store"], "key": key, "term": job["term"]}
    write_json(layout.control, control, mode=0o600)
    size = JobConfig.from_dict(config).nproc_per_node
    environment.setdefault("OMP_NUM_THREADS", str(threads_per_rank(cores(), size)))
    environment["ELASTIC_CONTROL"] = str(layout.control)
    environment["ELASTIC_WORK_DIR"] = str(layout.path)
    return layout.path


def _take_key(environment: MutableMapping[str, str]) -> str:
    """Returns the job's key, in hexadecimal digits; ranks don't find it in their environment."""
    path = environment.get("ELASTIC_KEY_FILE")
    return Path(path).read_text().strip() if path else environment.pop("ELASTIC_KEY")


def _ask(url: str, key: str, node: int, patience: float) -> dict[str, Any]:
    deadline = time.monotonic() + patience
    with ControlClient(url, f"n{node}", key) as client:
        while True:
            if signal.SIGTERM in signal.sigpending():
                raise ToldToGo
            try:
                return client.get(f"/v1/nodes/{node}/job")
            except ControlUnreachable:
                if time.monotonic() > deadline:
                    raise
            signal.sigtimedwait([], RETRY)  # a pause that no handler runs in


def _write_code(folder: Path, code: dict[str, str]) -> Path:
    """Writes what is to be run; returns the script, the first of it."""
    for name, text in code.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise OSError(f"the coordinator names a file outside of the node's folder: {name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / next(iter(code))
