"""Checks that a node's machine has what the job needs before anything starts: its checkpoints and its data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elastic_launcher.checkpoint.landmark import MEND, ONE_GROUP, Landmark, missed
from elastic_launcher.checkpoint.storage import is_url
from elastic_launcher.config import JobConfig


def unmet(config: JobConfig, landmark: Mapping[str, Any] | None, whose: str) -> str:
    """Returns which option names something that is not here, and what to do about it; "" if all is.

    Args:
        config: The job.
        landmark: What the launcher has put into the folder of checkpoints; None where they are under a URL.
        whose: What this machine is called.
    """
    folder = config.checkpoint_dir
    if folder and landmark and (wrong := missed(Path(folder), Landmark(landmark["name"], landmark["value"]))):
        return f"--checkpoint-dir is {folder}: {whose} {wrong}; {MEND}"
    if config.data and not is_url(config.data) and (wrong := _unread(Path(config.data))):
        return f"--data is {config.data}: {whose} {wrong}"
    if config.output and not is_url(config.output) and not _takes(Path(config.output)):
        return f"--output is {config.output}: {whose} can't write there; {MEND}, and {ONE_GROUP}"
    return ""


def _unread(data: Path) -> str:
    """Returns why data can't be read here; "" if it can."""
    if not data.exists():
        return "has nothing there; mount it in the pod template too, or give a URL"
    if not os.access(data, os.R_OK | (os.X_OK if data.is_dir() else 0)):
        return f"can't read it (Permission denied); {ONE_GROUP}"
    return ""


def _takes(output: Path) -> bool:
    """Whether a path can be written to, by its permissions."""
    there = output if output.exists() else next(one for one in output.parents if one.exists())
    return os.access(there, os.W_OK | (os.X_OK if there.is_dir() else 0))
