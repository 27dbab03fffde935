"""The message about nodes that do not start: one line, with what can be done about it.

Invariant: every node that waits is counted, and the line is the same as long as nothing changes, in any order of the
nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from elastic_launcher.engines.kubernetes.nodes.pod_status import Cause, Waiting

_ADVICE = {
    Cause.ADMISSION: "its queue has to admit it",
    Cause.QUOTA: "raise the ResourceQuota, or lower `allowed` of the hints",
    Cause.ROOM: "free GPUs, add machines, lower `allowed` of the hints, or check --gpu-resource and the pod template",
    Cause.REFUSED: "change the pod template, or what refuses it",
    Cause.RIGHT: "grant the launcher that right",
    Cause.IMAGE: "check the image's name and the pull secrets",
    Cause.CONTAINER: "check the pod template",
    Cause.STARTING: "",
}


def pending_line(waiting: Iterable[Waiting], running: int, trains: bool) -> str:
    """Returns the message about nodes that wait while others run; empty where no node waits."""
    reasons = Counter(waiting)
    count = reasons.total()
    if not count:
        return ""
    ranked = sorted(reasons, key=lambda one: (-reasons[one], one.cause, one.why))
    said = [f"{reasons[one]} × {one.why}" if len(reasons) > 1 else one.why for one in ranked]
    advice = dict.fromkeys(_ADVICE[one.cause] for one in ranked if _ADVICE[one.cause])
    some = f" with {running}" if running else ""
    goes_on = f"Training goes on{some}" if trains and running else f"Nothing trains yet{some}"
    return f"{count} of {count + running} nodes pending: {'; '.join(said)}. {'; '.join((goes_on, *advice))}."
