"""The history of one node, from what the API has shown of its Job and its pod so far.

Invariants: a node that was seen to be gone stays so, despite later events, a second pod of its Job included; one
whose pod was not shown is gone only once it was asked for: Jobs and pods are shown apart, either before the other; and
one whose queue has taken its pod back is not gone, but waits for the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from elastic_launcher.engines import NodeSpec
from elastic_launcher.engines.kubernetes.nodes.pod_status import (
    Cause,
    Gone,
    Leaving,
    Standing,
    Waiting,
    standing,
    suspended,
)

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Track:
    """One node.

    Attributes:
        job: Its Job as it was shown last, or None.
        pod: Its pod, likewise.
        events: About both, the oldest first.
        shown: Whether its Job was shown at all.
        gone: How it ended, once it has.
        held: What its Job waits for, which is not made yet.
        recalled: The uid of the pod during which its Job was suspended.
        past: The uids of pods that its queue has taken back.
        put_back: How the last of these ended, until that is reported.
        former: The name of the last of these.
        admission: Why its queue does not admit it, if that is known.
    """

    spec: NodeSpec
    job: Document | None = None
    pod: Document | None = None
    events: Sequence[Document] = ()
    shown: bool = False
    gone: Gone | None = None
    held: Waiting | None = None
    recalled: str = ""
    past: frozenset[str] = frozenset()
    put_back: Gone | None = None
    former: str = ""
    admission: str = ""

    @property
    def standing(self) -> Standing:
        """The node's state."""
        if self.gone is not None:
            return self.gone
        if self.held is not None:
            return self.held
        if not self.shown and self.pod is None:
            return Waiting(Cause.STARTING, "its Job is being made")
        now = standing(self.job, self.pod, self.events, self.admission)
        if not isinstance(now, Leaving) or self.pod is None:
            return now
        again = now.again or (self._recalled and _can_go_on(self.job))  # its Job may have been admitted again already
        return replace(now, again=again, pod=_name(self.pod))

    def show_job(self, job: Document | None) -> Track:
        """The Job was shown, or, with None, that it is not there any more."""
        queued = job is not None and suspended(job)
        recalled = self.pod["metadata"]["uid"] if self.pod and queued else self.recalled
        admission = self.admission if queued else ""
        return replace(self, job=job, shown=True, held=None, recalled=recalled, admission=admission)._latch()

    def show_pod(self, pod: Document, deleted: bool = False) -> Track:
        """The pod was shown; deleted pods are shown as they were last."""
        uid = pod["metadata"]["uid"]
        if uid in self.past or (self.pod is not None and uid != self.pod["metadata"]["uid"]):
            return self
        recalled = uid if self.job and suspended(self.job) else self.recalled
        after = replace(self, pod=pod, recalled=recalled)._latch()
        over = not deleted or after.gone is not None or after.pod is None
        return after if over else after._end(_deleted(after))

    def hold(self, held: Waiting | None) -> Track:
        """Records why its Job can't be made for now; None once it is made."""
        return replace(self, held=held)

    def give_up(self, why: str, taken: bool = False) -> Track:
        """Records that its Job was never made, and will not be."""
        return replace(self, gone=Gone(None, why, taken))

    def show_events(self, events: Sequence[Document]) -> Track:
        """The history of both so far, the oldest first."""
        return replace(self, events=tuple(events))

    def show_admission(self, why: str) -> Track:
        """Records why its queue does not admit it."""
        return replace(self, admission=why if self.job is not None and suspended(self.job) else "")

    @property
    def in_doubt(self) -> bool:
        """Whether it is gone, if it has no pod."""
        return self.gone is None and isinstance(self.standing, Gone)

    def miss_pod(self) -> Track:
        """There is no pod, or not any more."""
        if self.gone is not None:
            return self
        if self.pod is not None:
            return self._end(_deleted(self))
        now = self.standing
        return replace(self, gone=now) if isinstance(now, Gone) else self

    def tell_put_back(self) -> Track:
        """Records that the node's queue has taken its pod back."""
        return replace(self, put_back=None)

    @property
    def _recalled(self) -> bool:
        return self.pod is not None and self.pod["metadata"]["uid"] == self.recalled

    def _latch(self) -> Track:
        now = self.standing
        return self._end(now) if isinstance(now, Gone) and self.pod is not None and self.gone is None else self

    def _end(self, how: Gone) -> Track:
        """Ends the node with its pod, unless its queue has taken the pod back and may admit the Job again."""
        assert self.pod is not None
        uid = self.pod["metadata"]["uid"]
        if not self._recalled or not _can_go_on(self.job):
            return replace(self, gone=how)
        return replace(self, pod=None, events=(), past=self.past | {uid}, put_back=how, former=_name(self.pod))


def _name(pod: Document) -> str:
    return str(pod["metadata"].get("name") or "")


def _can_go_on(job: Document | None) -> bool:
    """Whether a Job may have another pod."""
    return job is not None and not isinstance(standing(job, None), Gone)


def _deleted(track: Track) -> Gone:
    """Returns the end of a node whose pod was removed without a report of its agent."""
    now = track.standing
    return Gone(None, now.why if isinstance(now, Leaving) else "its pod was deleted", taken=True)
