"""Another job's checkpoint is refused with what differs; what a user accepts is named, with what is given up."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from elastic_launcher import config
from elastic_launcher.checkpoint.changes import CHANGES, Resumed, refusal, step_in_epoch
from tests.support.checkpoints import EMPTY, JOB

OTHERS = {
    "script": "other.py",
    "arguments": (),
    "global_batch_size": 48,
    "seed": 8,
    "dataset": "Digits of 1798 samples",
    "shuffle": False,
    "loader_seed": 8,
    "drop_last": True,
    "code": ("train.py 3c4d",),
    "data": "s3://b",
}


def test_what_can_be_accepted_is_what_the_option_takes() -> None:
    assert tuple(CHANGES) == config.CHANGES


def test_every_part_of_an_identity_is_tried() -> None:
    assert set(OTHERS) == {field.name for field in fields(JOB)}


@pytest.mark.parametrize("field", OTHERS)
def test_what_differs_is_refused_unless_it_is_accepted(field: str) -> None:
    other = replace(JOB, **{field: OTHERS[field]})
    said = refusal(JOB, other, ())
    names = [name for name, change in CHANGES.items() if field in change.fields]
    assert said and refusal(JOB, JOB, ()) == ""
    for name in names:
        assert f"(--accept-changes {name} goes on all the same, and gives up: {CHANGES[name].given_up})" in said
        assert refusal(JOB, other, (name,)) == ""
    assert ("--accept-changes" in said) == bool(names)


@pytest.mark.parametrize(("field", "unknown"), [("code", ()), ("data", "")])
def test_what_is_not_known_of_a_job_is_no_difference(field: str, unknown: object) -> None:
    other = replace(JOB, **{field: unknown})  # type: ignore[arg-type]
    assert refusal(JOB, other, ()) == refusal(other, JOB, ()) == ""


def test_the_flag_that_is_said_holds_what_was_given_already() -> None:
    other = replace(JOB, seed=8, loader_seed=8, global_batch_size=32)
    assert "(--accept-changes seed,global-batch-size goes on" in refusal(JOB, other, ("seed",))


def test_a_rank_says_what_only_it_knows() -> None:
    resumed = Resumed(JOB, ("dataset",), "job/checkpoints/step-00000010")
    assert resumed.refuse({"dataset": "Digits of 3 samples", "max_batch_per_gpu": 3}) == ""
    said = resumed.refuse({"seed": 8, "max_batch_per_gpu": 3})
    assert said.startswith("this job can't go on from job/checkpoints/step-00000010: the seed is 7 there and 8 here")


@pytest.mark.parametrize(
    ("field", "value", "step"), [("seed", 8, 5), ("global_batch_size", 32, 10), ("global_batch_size", 60, 5)]
)
def test_the_epoch_goes_on_where_as_many_samples_were_used(field: str, value: int, step: int) -> None:
    assert step_in_epoch(EMPTY, replace(JOB, **{field: value})) == step


def test_with_another_data_set_the_epoch_starts_over() -> None:
    assert step_in_epoch(EMPTY, replace(JOB, dataset="Digits of 3 samples")) == 0
