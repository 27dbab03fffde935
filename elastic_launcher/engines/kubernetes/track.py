"""What is known of one node, by what the API has shown of its Job and its pod so far.

The laws: a node that was seen to be gone stays so, whatever is shown later, a second pod of its Job included; and one
whose pod was not shown is gone only once it was asked for: Jobs and pods are shown apart, either before the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from elastic_launcher.engines import NodeSpec
from elastic_launcher.engines.kubernetes.pods import Cause, Gone, Leaving, Standing, Waiting, standing

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Track:
    """One node.

    Attributes:
        spec: What it was started as.
        job: Its Job as it was shown last, or None.
        pod: Its pod, likewise.
        events: About both, the oldest first.
        shown: Whether its Job was shown at all.
        gone: How it ended, once it has.
        held: What its Job waits for, which is not made yet.
    """

    spec: NodeSpec
    job: Document | None = None
    pod: Document | None = None
    events: Sequence[Document] = ()
    shown: bool = False
    gone: Gone | None = None
    held: Waiting | None = None

    @property
    def standing(self) -> Standing:
        """How it stands."""
        if self.gone is not None:
            return self.gone
        if self.held is not None:
            return self.held
        if not self.shown and self.pod is None:
            return Waiting(Cause.STARTING, "its Job is being made")
        return standing(self.job, self.pod, self.events)

    def show_job(self, job: Document | None) -> Track:
        """The Job was shown, or, with None, that it is not there any more."""
        return replace(self, job=job, shown=True, held=None)._latch()

    def show_pod(self, pod: Document, deleted: bool = False) -> Track:
        """The pod was shown; deleted pods are shown as they were last."""
        if self.pod is not None and pod["metadata"]["uid"] != self.pod["metadata"]["uid"]:
            return self
        after = replace(self, pod=pod)._latch()
        return after if not deleted or after.gone is not None else replace(after, gone=_deleted(after))

    def hold(self, held: Waiting | None) -> Track:
        """Its Job can't be made for now; or, with None, it is."""
        return replace(self, held=held)

    def give_up(self, why: str, taken: bool = False) -> Track:
        """Its Job was never made, and will not be."""
        return replace(self, gone=Gone(None, why, taken))

    def show_events(self, events: Sequence[Document]) -> Track:
        """What happened to both so far, the oldest first."""
        return replace(self, events=tuple(events))

    @property
    def in_doubt(self) -> bool:
        """Whether it is gone, if it has no pod."""
        return self.gone is None and isinstance(self.standing, Gone)

    def miss_pod(self) -> Track:
        """There is no pod, or not any more."""
        if self.gone is not None:
            return self
        if self.pod is not None:
            return replace(self, gone=_deleted(self))
        now = self.standing
        return replace(self, gone=now) if isinstance(now, Gone) else self

    def _latch(self) -> Track:
        now = self.standing
        return replace(self, gone=now) if isinstance(now, Gone) and self.pod is not None else self


def _deleted(track: Track) -> Gone:
    """Returns how a node ended whose pod went without a word of its agent."""
    now = track.standing
    return Gone(None, now.why if isinstance(now, Leaving) else "its pod was deleted", taken=True)
