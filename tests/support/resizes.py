"""How a test makes a job change its size: by hints, as an administrator would, and waiting for what comes of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.support.launches import Launcher

LONG = 150.0
"""Seconds to wait for a joiner: it imports torch twice, on a machine that is busy training."""


def allow(path: Path, gpus: int, *entries: dict[str, Any]) -> None:
    """Edits the hints file as an administrator would: aside, then in one move.

    Args:
        path: The file.
        gpus: What jobs are allowed that no entry matches.
        entries: What else it says.
    """
    document = {
        "apiVersion": "elastic-hints/v1",
        "hints": list(entries),
        "defaults": {"gpus": {"guaranteed": 1, "allowed": gpus, "limit": max(4, gpus)}, "growAfterSeconds": 0},
    }
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps(document))
    os.replace(aside, path)


def formed(job: Launcher, world_size: int, after: int, timeout: float = LONG) -> dict[str, Any]:
    """Waits for the generation of that size that comes after a number of others, and for progress in it."""
    job.events.wait("generation_formed", lambda e: e["generation"] > after and e["world_size"] == world_size, timeout)
    found = [e for e in job.events.of("generation_formed") if e["generation"] > after and e["world_size"] == world_size]
    job.events.wait("progress", lambda e: e["step"] > found[0]["first_step"] + 1, timeout)
    return found[0]
