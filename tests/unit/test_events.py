"""Events: what is written is read again, whatever happens to the file, and writing never raises on a full disk."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.events import (
    KINDS,
    Event,
    EventError,
    EventFollower,
    EventLog,
    EventVersionError,
    finite,
    read_events,
    steady_clock,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def ticking() -> Any:
    """Returns a clock that goes on by a second at each look."""
    return itertools.count(1000).__next__


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@given(fields=st.dictionaries(st.text(max_size=12), JSON, max_size=5))
def test_what_is_written_is_read_again(fields: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    for taken in ("self", "kind", "generation", "v", "time"):
        fields.pop(taken, None)
    log = EventLog(path, ticking())
    returned = log.append("of_a_later_version", 3, **fields)  # the types of known kinds' fields are checked
    log.close()
    assert read_events(path) == [returned]
    assert json.loads(path.read_text()).keys() == {"v", "time", "kind", "generation", *fields}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_head(kind: str, path: Path) -> None:
    log = EventLog(path, ticking())
    log.append(kind, 7, node=2)
    log.close()
    document = json.loads(path.read_text())
    assert list(document) == ["v", "time", "kind", "generation", "node"]
    assert document == {"v": 1, "time": 1000, "kind": kind, "generation": 7, "node": 2}


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_wall_clock_that_is_set_changes_nothing(jump: float) -> None:
    wall = iter([1000.0, 1000.0 + jump, 1000.0 + jump])
    clock = steady_clock(0.0, wall.__next__, iter([5.0, 6.0, 8.0]).__next__)
    assert [clock(), clock()] == [1001.0, 1003.0]


def test_a_log_that_is_continued_never_runs_backwards(path: Path) -> None:
    ahead = time.time() + 3600.0
    for clock in (lambda: ahead, None):
        log = EventLog(path, clock)
        log.append("warning")
        log.close()
    first, second = read_events(path)
    assert first.time == ahead <= second.time


def test_numbers_that_json_lacks_are_written_by_name(path: Path) -> None:
    log = EventLog(path)
    event = log.append("progress", 1, loss=math.nan, values={"a": math.inf, "b": [-math.inf, 1.5]})
    log.close()
    strict = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert strict["loss"] == "nan"
    assert strict["values"] == {"a": "inf", "b": ["-inf", 1.5]}
    assert event["loss"] == "nan"


@pytest.mark.parametrize(
    ("value", "number"),
    [(1, 1.0), (0.5, 0.5), ("nan", None), (math.nan, None), (None, None), (True, None), ("1", None), (10**400, None)],
)
def test_finite_takes_numbers_only(value: object, number: float | None) -> None:
    assert finite(value) == number


@pytest.mark.parametrize(("time", "generation"), [("NaN", "1"), ("1e999", "1"), ("5.0", "1e999")])
def test_a_head_that_is_not_finite_is_no_event(time: str, generation: str) -> None:
    with pytest.raises(EventError, match="no event"):
        Event.from_line(f'{{"v":1,"time":{time},"kind":"warning","generation":{generation}}}')


def test_no_field_takes_the_place_of_the_head() -> None:
    event = Event("warning", 5.0, 2, {"time": 1.0, "v": 99, "kind": "x", "message": "m"})
    assert Event.from_line(event.to_line()) == Event("warning", 5.0, 2, {"message": "m"})


def test_a_line_is_written_whole_beside_other_writers(path: Path) -> None:
    def write(name: str) -> None:
        log = EventLog(path)
        for number in range(300):
            log.append("warning", 0, message=name * 3000, number=number)
        log.close()

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = read_events(path)
    assert len(events) == 900
    assert all(len(set(event["message"])) == 1 for event in events)


def test_unknown_kinds_and_fields_are_kept(path: Path) -> None:
    path.write_text('{"v":1,"time":1,"kind":"checkpoint_saved","generation":2,"bytes":7}\n')
    assert read_events(path) == [Event("checkpoint_saved", 1.0, 2, {"bytes": 7})]


@pytest.mark.parametrize("read", [read_events, lambda path: EventFollower(path).poll()])
def test_a_later_version_is_refused_with_what_to_do(path: Path, read: Any) -> None:
    path.write_text('{"v":2,"time":1,"kind":"x","generation":0}\n')
    with pytest.raises(EventVersionError, match="version 2, and this elastic-launcher reads 1: use a newer one"):
        read(path)


@pytest.mark.parametrize(
    "tail", ['{"v":1,"time":1,"ki', "{", '{"v":1,"version":2', '"version"', "null", "17", "\x00\x00"]
)
def test_torn_lines_are_left_out(path: Path, tail: str) -> None:
    log = EventLog(path)
    first = log.append("warning", 1, message="before")
    log.close()
    path.write_text(path.read_text() + tail)
    assert read_events(path) == [first]
    log = EventLog(path)
    second = log.append("warning", 1, message="after")
    log.close()
    assert read_events(path) == [first, second]


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        ("progress", {"step": "9"}, "progress: \"step\" is '9'; it must be a whole number, 0 or more"),
        ("progress", {"step": 10**400}, "it must be a whole number, 0 or more"),
        ("progress", {"adaptive": {"batch": None}}, "\"adaptive\" is {'batch': None}; it must be an object of numbers"),
        ("generation_formed", {"members": [1]}, 'it must be a list of objects with "member" and "node"'),
        ("node_left", {"node": None}, '"node" is None; it must be a whole number, 0 or more'),
        ("job_started", {"min_nodes": 0}, '"min_nodes" is 0; it must be a whole number, 1 to 1,000,000'),
        ("batch_changed", {"new": 3}, 'batch_changed: "old" is missing'),
    ],
)
def test_an_event_with_a_field_of_another_type_is_left_out_and_told(
    path: Path, kind: str, fields: dict[str, Any], said: str
) -> None:
    wrong = json.dumps({"v": 1, "time": 2.0, "kind": kind, "generation": 0, **fields})
    fine = Event("job_started", 1.0, 0).to_line()
    path.write_text(f'{fine}{wrong}\n[]\n{fine}{{"v":1,"ti')
    told: list[str] = []
    assert [event.time for event in read_events(path, told.append)] == [1.0, 1.0]
    assert len(told) == 1 and told[0].startswith(f"{path}, line 2: ") and said in told[0]
    assert told[0].endswith("; this line is left out, with 1 more of the kind")


def test_a_file_of_something_else_is_no_file_of_events(path: Path) -> None:
    path.write_text("Dear diary\n")
    with pytest.raises(EventError, match="holds no events"):
        read_events(path)


def test_an_empty_file_is_a_job_that_did_nothing_yet(path: Path) -> None:
    path.touch()
    assert read_events(path) == []


def test_a_follower_gives_each_event_once_and_whole(path: Path) -> None:
    follower = EventFollower(path)
    assert follower.poll() == []
    one, two, three = (Event("warning", float(n), n, {"message": "ü" * n}) for n in (1, 2, 3))
    data = (one.to_line() + two.to_line()).encode()
    path.write_bytes(data[:-9])
    assert follower.poll() == [one]
    assert follower.poll() == []
    with open(path, "ab") as file:
        file.write(data[-9:] + three.to_line().encode())
    assert follower.poll() == [two, three]
    assert follower.poll() == []


def test_a_follower_reads_a_file_in_its_files_place_from_the_beginning(path: Path) -> None:
    """Another job in a work directory puts aside what the one before it has left."""
    with contextlib.closing(EventLog(path)) as log:
        log.append("generation_formed", 1, nodes=1)
        log.append("generation_formed", 2, nodes=2)
    follower = EventFollower(path)
    assert [event.generation for event in follower.poll()] == [1, 2]
    path.rename(path.with_name("earlier"))
    with contextlib.closing(EventLog(path)) as log:
        log.append("generation_formed", 1, nodes=3)
    assert [event["nodes"] for event in follower.poll()] == [3]
    assert follower.poll() == []


def test_a_follower_leaves_out_what_was_there_before(path: Path) -> None:
    one, two = (Event("warning", float(n), n, {"message": "x"}) for n in (1, 2))
    path.write_text(one.to_line())
    follower = EventFollower(path, offset=path.stat().st_size)
    assert follower.poll() == []
    with open(path, "a") as file:
        file.write(two.to_line())
    assert follower.poll() == [two]


@given(cuts=st.lists(st.integers(0, 400), max_size=6))
def test_a_follower_gives_what_a_reader_gives(cuts: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    data = b"".join(Event("log", float(n), n, {"values": {"ä": n}}).to_line().encode() for n in range(6))
    follower, found, written = EventFollower(path), [], 0
    for cut in (*sorted(min(cut, len(data)) for cut in cuts), len(data)):
        with open(path, "ab") as file:
            file.write(data[written:cut])
        written = cut
        found += follower.poll()
    assert found == read_events(path)


def test_closing_twice_is_fine_and_writing_then_is_not(path: Path) -> None:
    log = EventLog(path)
    log.close()
    log.close()
    with pytest.raises(ValueError, match="closed"):
        log.append("warning", 0, message="too late")


# a disk that is full


def test_a_device_that_is_always_full_raises_nothing() -> None:
    log = EventLog(Path("/dev/full"))
    event = log.append("warning", 1, message="nobody will read this")
    log.append("warning", 1)
    log.close()
    assert event["message"] == "nobody will read this"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one page."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a tmpfs; the same is tested with a limit on file sizes")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_raises_nothing_and_its_gap_is_marked(small_disk: Path) -> None:
    ballast, path = small_disk / "ballast", small_disk / "events.jsonl"
    log = EventLog(path, ticking())
    log.append("warning", 1, message="there is room")
    with open(ballast, "wb", buffering=0) as file:
        file.write(bytes(4096))
    for number in range(200):
        log.append("progress", 1, step=number, loss=0.1)
    kept = [event["step"] for event in read_events(path) if event.kind == "progress"]
    assert 0 < len(kept) < 200
    ballast.unlink()
    log.append("warning", 2, message="there is room again")
    log.close()
    events = read_events(path)
    assert [event.kind for event in events[-2:]] == ["events_gap", "warning"]
    assert events[-2]["lost"] == 200 - len(kept)
    assert events[-2].generation == 2


LIMITED = """
import resource, sys
from pathlib import Path
from elastic_launcher.events import EventLog
log = EventLog(Path(sys.argv[1]), lambda: 1000.0)
log.append("warning", 1, message="before")
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
size = Path(sys.argv[1]).stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + int(sys.argv[2]), hard))
for number in range(3):
    log.append("warning", 1, message=f"lost {number}")
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
if sys.argv[3] == "more":
    log.append("warning", 1, message="after")
log.close()
"""


@pytest.mark.parametrize("room", [0, 1, 20])
@pytest.mark.parametrize("end", ["more", "close"])
def test_a_file_that_may_not_grow_raises_nothing_and_its_gap_is_marked(path: Path, room: int, end: str) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY, "this test needs room itself"
    subprocess.run([sys.executable, "-c", LIMITED, str(path), str(room), end], check=True)
    told = [event.get("message") or event["lost"] for event in read_events(path)]
    assert told == ["before", 3, *(["after"] if end == "more" else [])]


def test_a_line_that_lacks_only_its_end_is_not_lost(path: Path) -> None:
    room = len(Event("warning", 1000.0, 1, {"message": "lost 0"}).to_line()) - 1
    subprocess.run([sys.executable, "-c", LIMITED, str(path), str(room), "more"], check=True)
    told = [event.get("message") or event["lost"] for event in read_events(path)]
    assert told == ["before", "lost 0", 2, "after"]
