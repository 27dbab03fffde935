"""What rank 0 alone writes is there although it is lost: its peers remember it until they have met it again."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_launcher.torch.membership.main_writes import MOST, MainWrites
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job


def test_rank_0_writes_at_once_and_nothing_is_left() -> None:
    writes, written = MainWrites(lambda: 0), list[str]()
    assert writes.write(True, "a model", lambda: written.append("model") or "path") == "path"  # type: ignore[func-returns-value]
    writes.make_up()
    assert written == ["model"]


def test_the_next_rank_0_writes_in_order_what_was_left_to_the_one_before() -> None:
    writes, written = MainWrites(lambda: 0), list[str]()
    for name in ("model", "state"):
        assert writes.write(False, f"saving the {name}", lambda name=name: written.append(name)) is None  # type: ignore[misc]
    assert not written
    with pytest.warns(UserWarning, match="saving the (model|state): this process has done it again") as warned:
        writes.make_up()
    writes.make_up()
    assert len(warned) == 2 and written == ["model", "state"]


def test_what_has_changed_since_is_not_written_under_its_name() -> None:
    trained, written = [1], list[str]()
    writes = MainWrites(lambda: trained[0])
    writes.write(False, "saving the average", lambda: written.append("average"))
    trained[0] = 2
    writes.write(False, "saving the model", lambda: written.append("model"))
    with pytest.warns(UserWarning, match="saving the average; the model has changed since"):
        writes.make_up()
    assert written == ["model"]


@pytest.mark.parametrize(
    ("write", "said"),
    [
        pytest.param(lambda: torch.save(torch.zeros(3), "/missing/model.pt"), "does not exist", id="an error of torch"),
        pytest.param(lambda: Path("/dev/full").write_text("model"), "No space left", id="a full disk"),
    ],
)
def test_a_place_that_takes_nothing_ends_no_rank(write: Callable[[], Any], said: str) -> None:
    writes = MainWrites(lambda: 0)
    writes.write(False, "saving the model", write)
    with pytest.warns(UserWarning, match=f"saving the model; this process can't do it again: .*{said}"):
        writes.make_up()


def test_of_many_writes_the_last_ones_are_remembered() -> None:
    writes, written = MainWrites(lambda: 0), list[int]()
    for number in range(3 * MOST):
        writes.write(False, "saving an object", partial(written.append, number))
    with pytest.warns(UserWarning, match="this process has done it again"):
        writes.make_up()
    assert written == list(range(2 * MOST, 3 * MOST))


def test_ranks_that_have_met_since_have_nothing_left_of_it() -> None:
    def body(group: ThreadGroup) -> list[str]:
        job, written = thread_job(group, 4, 4), list[str]()
        job._write_on_main("saving the model", lambda: written.append("first"), 3)
        job.reduce(1.0)
        job._write_on_main("saving the model", lambda: written.append("second"), 3)
        if group.rank:
            job._session.writes.make_up()
        return written

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run_ranks(2, body) == [["first", "second"], ["second"]]
