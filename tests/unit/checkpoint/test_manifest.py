"""A manifest comes back as it was written, or is refused with the reason."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.batch_schedule import BatchSchedule
from elastic_launcher.checkpoint import CheckpointDamaged, CheckpointError, Manifest, Mark, differences
from tests.support.checkpoints import EMPTY, JOB

TEXT = EMPTY.to_text()


@given(st.lists(st.text()), st.tuples(*[st.integers(0, 2**40)] * 3), st.dictionaries(st.text(), st.text()))
def test_a_manifest_comes_back_as_it_was_written(
    arguments: list[str], numbers: tuple[int, int, int], aliases: dict[str, str]
) -> None:
    one = replace(EMPTY, job=replace(JOB, arguments=tuple(arguments)), mark=Mark(*numbers), aliases=aliases)
    assert Manifest.from_text(one.to_text()) == one


@given(st.integers(0, len(TEXT.encode()) * 8 - 1))
def test_a_flipped_bit_is_refused_or_changes_nothing(bit: int) -> None:
    damaged = bytearray(TEXT.encode())
    damaged[bit // 8] ^= 1 << bit % 8
    try:
        found = Manifest.from_text(damaged.decode())
    except (CheckpointError, UnicodeDecodeError):
        return
    assert found == EMPTY, "in the white space between two values"


@given(st.integers(0, len(TEXT) - 3))
def test_a_manifest_that_is_cut_short_is_refused(length: int) -> None:
    with pytest.raises(CheckpointDamaged, match="cut short"):
        Manifest.from_text(TEXT[:length])


def test_a_later_version_is_told_from_damage() -> None:
    text = json.dumps(json.loads(TEXT) | {"v": 2, "layout": "of tomorrow"})
    with pytest.raises(CheckpointError, match="version 2, and this elastic-launcher reads up to 1") as refused:
        Manifest.from_text(text)
    assert not isinstance(refused.value, CheckpointDamaged)


def test_other_documents_are_no_manifests() -> None:
    for text in ("[]", "{}", '{"format": "something else", "v": 1}'):
        with pytest.raises(CheckpointDamaged, match="not the manifest of a checkpoint"):
            Manifest.from_text(text)


def test_a_manifest_of_before_code_and_data_were_written_is_read() -> None:
    document = json.loads(TEXT)
    job = {name: value for name, value in document["job"].items() if name not in ("code", "data")}
    document |= {"job": job}
    del document["crc32"]
    text = json.dumps(
        document | {"crc32": zlib.crc32(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())}
    )
    assert Manifest.from_text(text).job == replace(JOB, code=(), data="")


def sealed(**changes: object) -> str:
    """Returns the text of a manifest with other parts, whose checksum is right."""
    document = json.loads(TEXT) | changes
    del document["crc32"]
    crc32 = zlib.crc32(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())
    return json.dumps(document | {"crc32": crc32})


def test_the_batch_schedule_comes_back_as_it_was_written() -> None:
    one = replace(EMPTY, entries=((0, JOB.global_batch_size), (7, 99)))
    assert Manifest.from_text(one.to_text()) == one
    assert one.schedule == BatchSchedule(one.entries)
    assert EMPTY.schedule == BatchSchedule.fixed(JOB.global_batch_size)


def test_a_manifest_of_before_batch_schedules_were_written_has_a_fixed_batch() -> None:
    document = json.loads(TEXT)
    del document["schedule"], document["crc32"]
    crc32 = zlib.crc32(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())
    assert Manifest.from_text(json.dumps(document | {"crc32": crc32})) == EMPTY


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        (
            {"v": 2, "curve": "x"},
            "its batch schedule is of version 2, and this elastic-launcher reads 1: use the .* 0.1",
        ),
        ({"v": 1, "entries": [[0, 5]]}, "begins with 5 samples from step 0 on, and its job has a global batch of"),
        (
            {"v": 1, "entries": [[3, JOB.global_batch_size]]},
            "from step 3 on.*: remove it to resume from the checkpoint",
        ),
    ],
)
def test_a_batch_schedule_that_can_not_be_used_is_refused_with_what_to_do(schedule: object, why: str) -> None:
    with pytest.raises(CheckpointError, match=why) as refused:
        Manifest.from_text(sealed(schedule=schedule))
    assert not isinstance(refused.value, CheckpointDamaged)


def test_marks_follow_terms_then_generations_then_steps() -> None:
    assert Mark(1, 3, 100) < Mark(1, 4, 99) < Mark(2, 1, 1) < Mark(2, 1, 2)


def test_what_differs_between_two_jobs_is_named() -> None:
    other = replace(JOB, seed=8, arguments=())
    assert differences(JOB, JOB) == []
    assert differences(JOB, other) == [
        "the script's arguments is '--lr' '0.1' there and none here",
        "the seed is 7 there and 8 here",
    ]
    assert differences(JOB, other, ["script", "global_batch_size"]) == []
