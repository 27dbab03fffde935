"""What `job.on_main` gives is there on whoever is rank 0 at the time, and does nothing elsewhere."""

from __future__ import annotations

import warnings

import pytest

from elastic_launcher.torch.data.micro_batches import MicroBatch
from elastic_launcher.torch.on_main import OnMain
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job


class Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.closed = False

    def write(self, line: str) -> int:
        self.lines.append(line)
        return len(line)

    def close(self) -> None:
        self.closed = True


def test_it_is_made_at_its_first_use_on_rank_0_alone() -> None:
    def body(group: ThreadGroup) -> tuple[list[list[str]], int | None]:
        job, made = thread_job(group, 4, 4), list[Writer]()

        def make() -> Writer:
            made.append(Writer())
            return made[-1]

        writer = job.on_main(make)
        assert not made
        writer.write("one")
        told = writer.write("three")
        return [one.lines for one in made], told

    assert run_ranks(3, body) == [([["one", "three"]], 5), ([], None), ([], None)]


def test_it_is_closed_where_rank_0_is_another_process_now_and_made_again_where_it_comes_back() -> None:
    main, made = True, list[Writer]()

    def make() -> Writer:
        made.append(Writer())
        return made[-1]

    writer = OnMain(lambda: main, make)
    writer.write("as rank 0")
    main = False
    writer.write("as another one")
    assert [(one.lines, one.closed) for one in made] == [(["as rank 0"], True)]
    main = True
    writer.write("again")
    assert [(one.lines, one.closed) for one in made] == [(["as rank 0"], True), (["again"], False)]


def test_before_admission_nobody_is_rank_0() -> None:
    def body(group: ThreadGroup) -> None:
        job = thread_job(group, 4, 4)
        job._session.membership = None
        with pytest.warns(
            UserWarning, match="not admitted to the training yet: before the first batch, in all of them"
        ) as told:
            assert job.on_main(lambda: 1 / 0).write("a line") is None
            assert not job.is_main
        assert {one.filename for one in told} == {__file__} and len(told) == 2

    run_ranks(1, body)


def test_in_its_rehearsal_a_script_may_ask_whether_it_is_rank_0() -> None:
    def body(group: ThreadGroup) -> None:
        job = thread_job(group, 4, 4)
        job._session.membership, job._session.micro = None, MicroBatch(0, 4, True, rehearsal=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert not job.is_main

    run_ranks(1, body)
