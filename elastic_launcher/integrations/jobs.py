"""What the adapters ask of a job alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from elastic_launcher.torch import Job
from elastic_launcher.torch.session import NotAdmitted

T = TypeVar("T")


def if_admitted(ask: Callable[[], T], otherwise: T) -> T:
    """Returns what the ranks come to together, or something else in a process that nobody waits for yet.

    Such a process asks all the same: what it skips of the script counts its sums as on its peers.
    """
    try:
        return ask()
    except NotAdmitted:
        return otherwise


def refuse_deterministic(job: Job, framework: str) -> None:
    """Refuses a deterministic job, with which a framework was not tried.

    Raises:
        ValueError: If it is one.
    """
    if job._session.virtual_ranks:
        raise ValueError(
            f"init(deterministic={job._session.virtual_ranks}): {framework} was not tried with it; leave it out, or "
            "train in a loop of the script's own"
        )
