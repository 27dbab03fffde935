"""The time that a node has until its next boundary after a notice, and a whole job until it is saved."""

from __future__ import annotations

import math

NOTICE_SECONDS = 15.0  # from a notice to the end, where nothing else is known: the shortest that clouds give
NOTICE_GATHER_SECONDS = 0.2  # after a notice: nodes that get notices together leave together
RESERVE_SECONDS = 2.0  # of these, for leaving
SAVE_SECONDS = 2.0  # for a last checkpoint, where it is not known that one takes longer
FORM_SECONDS = 1.0  # that a group takes to form: a boundary that comes sooner is missed
STOP_SECONDS = 60.0  # that a stopping job has for its save at least, where nobody kills its launcher
EXIT_SECONDS = 10.0  # of a launcher's own grace period, for ending its nodes (a machine takes 1 to 3 s) and itself
RECLAIM_SECONDS = RESERVE_SECONDS + FORM_SECONDS  # at least, though its time be over: a boundary that is near serves


def too_far(usual: float, since: float, formed: bool, left: float) -> bool:
    """Returns whether the boundary comes too late.

    Args:
        usual: Seconds that a step usually takes; 0 while that is not known.
        since: Seconds since the last boundary.
        formed: Whether the group in which the others continue is complete.
        left: Seconds until the node may be killed.
    """
    to_end = max(usual - since, 0.0)
    missed = not formed and to_end < FORM_SECONDS
    return left <= RESERVE_SECONDS or to_end + (usual if missed else 0.0) > left - RESERVE_SECONDS


def time_to_save(within: float, lately: float = 0.0) -> float:
    """Returns the seconds that a stopping job may train on until it is saved.

    ``within`` is when its launcher is killed, infinite if it is not; ``lately`` what the last save took, 0 if unknown.
    """
    return max(STOP_SECONDS, 3 * lately) if within == math.inf else max(within - EXIT_SECONDS, within / 2)
