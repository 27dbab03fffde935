"""Where micro-batches were too large for memory: each is recorded once, and a kind of device has the lowest limit."""

from __future__ import annotations

from elastic_launcher.control.messages import MicroBatchLowered
from elastic_launcher.coordinator.model.micro_batch_record import MicroBatchRecord
from elastic_launcher.events import Event

REPORTS = [
    (1, MicroBatchLowered(4, "T4", 64, 32)),
    (2, MicroBatchLowered(4, "A100", 256, 128)),
    (3, MicroBatchLowered(9, "T4", 32, 16, leaves=True)),
    (4, MicroBatchLowered(9, "T4", 64, 32)),
]


def recorded() -> tuple[MicroBatchRecord, list[Event]]:
    record, events = MicroBatchRecord(), []
    for member, report in REPORTS:
        record, fields = record.take(member, report)
        assert fields is not None
        events.append(Event("micro_batch_lowered", 0, 1, {"member": member, "node": 1, **fields}))
    return record, events


def test_a_kind_of_device_has_the_lowest_limit_of_all_members() -> None:
    record, _ = recorded()
    assert record.limits == {"T4": 16, "A100": 128}
    assert MicroBatchRecord().limits == {}


def test_a_report_that_comes_again_is_not_recorded_again() -> None:
    record, _ = recorded()
    for member, report in REPORTS:
        assert record.take(member, report) == (record, None)


def test_events_give_the_same_record_and_a_job_that_has_ended_begins_anew() -> None:
    record, events = recorded()
    assert events[2]["old"] == 32 and "leaves" not in events[2]
    assert MicroBatchRecord.of([Event("job_started", 0, 0, {}), *events]) == record
    assert MicroBatchRecord.of([*events, Event("job_finished", 0, 1, {})]) == MicroBatchRecord()
