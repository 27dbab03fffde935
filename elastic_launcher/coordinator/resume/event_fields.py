"""The fields of the events that record the start of a job, and a takeover."""

from __future__ import annotations

import os
import socket
from typing import Any

from elastic_launcher import __version__
from elastic_launcher.config import JobConfig
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.resume.resume_point import Origin
from elastic_launcher.workdir import Layout, job_id


def account_of_job(config: JobConfig, layout: Layout, origin: Origin) -> dict[str, Any]:
    """Returns the fields of ``job_started``."""
    optional = {
        "global_batch_size": config.global_batch_size,
        "max_batch_per_gpu": config.max_batch_per_gpu,
        "hints": config.hints,
        "resumed_step": None if origin.manifest is None else origin.manifest.step,
        "resumed_path": None if origin.manifest is None else origin.where,
    }
    return {
        "job_id": job_id(layout),
        "name": config.name,
        "command": list(config.command),
        "min_nodes": config.min_nodes,
        "max_nodes": config.max_nodes,
        "nproc_per_node": config.nproc_per_node,
        **{name: value for name, value in optional.items() if value is not None},
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "version": __version__,
        "term": origin.past.term,
    }


def account_of_takeover(state: State, term: int) -> dict[str, Any]:
    """Returns the fields of ``coordinator_adopted``."""
    members = [state.members[number] for number in state.group]
    return {
        "term": term,
        "step": state.step,
        "members": [{"member": one.number, "node": one.node, "pid": one.pid} for one in members],
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "version": __version__,
    }
