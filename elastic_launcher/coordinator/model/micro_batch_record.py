"""Which members' micro-batches were too large for memory, as a job's events have recorded it.

Invariant: the limit of a kind of device never rises while the job runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import asdict

from elastic_launcher.control.messages import MicroBatchLowered
from elastic_launcher.events import Event


@dataclass(frozen=True, slots=True)
class MicroBatchRecord:
    """The recorded changes.

    Attributes:
        lowered: Member, kind of device and largest micro-batch since then of each.
    """

    lowered: tuple[tuple[int, str, int], ...] = ()

    @staticmethod
    def of(events: Iterable[Event]) -> MicroBatchRecord:
        """Returns the record in a job's events; a job that has ended begins without any."""
        record = MicroBatchRecord()
        for event in events:
            if event.kind == "job_finished":
                record = MicroBatchRecord()
            elif event.kind == "micro_batch_lowered":
                record = MicroBatchRecord((*record.lowered, (event["member"], event["device"], event["new"])))
        return record

    @property
    def limits(self) -> Mapping[str, int]:
        """The largest micro-batch that fits, by kind of device."""
        limits: dict[str, int] = {}
        for _, device, new in self.lowered:
            limits[device] = min(new, limits.get(device, new))
        return limits

    def take(self, member: int, report: MicroBatchLowered) -> tuple[MicroBatchRecord, dict[str, Any] | None]:
        """Returns the record after a member's report, and the fields of the event; None where it was recorded."""
        entry = (member, report.device, report.new)
        if entry in self.lowered:
            return self, None
        fields = asdict(report)
        del fields["leaves"]
        return MicroBatchRecord((*self.lowered, entry)), fields
