"""What a node must find on its own machine before it starts anything: the job's checkpoints and its data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elastic_launcher.checkpoint.landmark import MEND, Landmark, missed
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
    if config.data and not is_url(config.data) and not Path(config.data).exists():
        return f"--data is {config.data}: {whose} has nothing there; mount it in the pod template too, or give a URL"
    return ""
