"""The work directory of a node that can't see the launcher's files, filled with what the coordinator sends.

It has the same places as a job's, so that ranks need not know where they run. What they write there for the launcher is
sent by `log_sender` and by the agent.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from elastic_launcher import variables
from elastic_launcher.agent.surroundings import unmet
from elastic_launcher.checkpoint.landmark import Landmark, sample
from elastic_launcher.config import JobConfig
from elastic_launcher.control import ControlClient, ControlUnreachable, requests
from elastic_launcher.control.messages import decode
from elastic_launcher.control.requests import NodeJob, NodeMessage, Sample, SampleAnswer
from elastic_launcher.host.machine import cores, threads_per_rank
from elastic_launcher.workdir import Layout, write_json

RETRY = 0.5
"""Seconds between tries to reach the coordinator: it is there, but a new pod's network may not be."""


class ToldToGo(Exception):
    """SIGTERM came before anything was started."""


class Unfit(Exception):
    """This machine lacks what the job needs; the message says what."""


def make_own_folder(environment: MutableMapping[str, str]) -> Path:
    """Makes the folder, and has the environment name it; SIGTERM must be blocked.

    Args:
        environment: Has the coordinator's URL in ``ELASTIC_CONTROL``, and its key in ``ELASTIC_KEY``, or in the file
            ``ELASTIC_KEY_FILE``. Both are in the folder's ``control.json`` afterwards. ``ELASTIC_FIRST_MEMBER`` is what
            the coordinator says afterwards: a node's second pod has other members than its first.

    Raises:
        OSError: If the coordinator can't be reached, or the folder not be written.
        ControlRefused: If the coordinator refuses this node.
        ToldToGo: If the node is not wanted any more.
        Unfit: If checkpoints or data are not here as the coordinator sees them, to which this was reported.
    """
    url, key, node = environment[variables.CONTROL], _take_key(environment), environment[variables.NODE]
    patience = float(environment.get(variables.ORPHAN_TIMEOUT, "60"))
    with ControlClient(url, f"n{node}", key) as client:
        pod = environment.get(variables.POD, "")
        asked = f"/v1/nodes/{node}/job?{urlencode({'pod': pod})}"
        job = decode(_insist(lambda: client.get(asked), patience), NodeJob, "job")

        def tell(message: NodeMessage) -> dict[str, Any]:
            return _insist(lambda: client.post(f"/v1/nodes/{node}/{message.path()}", message), patience)

        whose = f"node {node} (pod {pod})" if pod else f"node {node}"
        config = JobConfig.from_dict(job.config)
        lack = unmet(config, job.landmark, whose)
        if not lack and config.checkpoint_dir and (mark := job.landmark):
            with sample(Path(config.checkpoint_dir), Landmark(mark["name"], mark["value"])) as name:
                lack = decode(tell(Sample(name=name)), SampleAnswer, "sample").lack
        if lack:
            tell(requests.Unfit(message=lack, first_member=job.first_member))
            raise Unfit(lack)
    layout = Layout(Path(tempfile.mkdtemp(prefix="elastic-")))
    for folder in (layout.nodes, layout.logs):
        folder.mkdir()
    if job.code:
        job.config["script"] = str(_write_code(layout.path / "code", job.code))
    write_json(layout.job, {"id": job.id, "config": job.config, "content": job.content})
    control = {"v": 1, "url": url, "store": job.store, "key": key, "term": job.term}
    write_json(layout.control, control, mode=0o600)
    environment.setdefault("OMP_NUM_THREADS", str(threads_per_rank(cores(), config.nproc_per_node)))
    environment[variables.CONTROL] = str(layout.control)
    environment[variables.WORK_DIR] = str(layout.path)
    environment[variables.FIRST_MEMBER] = str(job.first_member)
    return layout.path


def _take_key(environment: MutableMapping[str, str]) -> str:
    """Returns the job's key, in hexadecimal digits; ranks don't find it in their environment."""
    path = environment.get(variables.KEY_FILE)
    return Path(path).read_text().strip() if path else environment.pop(variables.KEY)


def _insist(ask: Callable[[], dict[str, Any]], patience: float) -> dict[str, Any]:
    """Returns what the coordinator answers, which is asked again for so many seconds where it does not."""
    deadline = time.monotonic() + patience
    while True:
        if signal.SIGTERM in signal.sigpending():
            raise ToldToGo
        try:
            return ask()
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
