"""Which document is in force: generations, new objects, and what can't be used."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.hints import HintPolicy, HintRead
from tests.support.hint_documents import OBSERVED, hint, text

NAME = "ConfigMap ml/gpu-hints, key hints.json"
OBSERVED_AT = "2026-11-18T11:06:40Z"


class Played:
    """A policy that is given one read after another."""

    def __init__(self) -> None:
        self.policy = HintPolicy(NAME)

    def read(self, found: str | None, identity: str = "1", error: str = "", now: float | None = OBSERVED) -> str:
        self.policy, outcome = self.policy.read(HintRead(found, identity, error), now)
        self.message = outcome.message
        return outcome.kind

    @property
    def allowed(self) -> int | None:
        document = self.policy.document
        return None if document is None else document.entries[0].allowed


def good(allowed: int, generation: int | None = None, **more: object) -> str:
    return text(hint(allowed), **({} if generation is None else {"generation": generation}), **more)


def test_generations_only_grow() -> None:
    job = Played()
    assert job.read(good(1, 41)) == "applied"
    assert job.read(good(2, 40)) == "older"
    assert "generation 40 is older than 41, and ignored. The last good document (generation 41" in job.message
    assert job.read(good(2, 40)) == "same"
    assert job.read(good(3, 42)) == "applied"
    assert job.allowed == 3


def test_the_same_generation_with_other_content_is_refused() -> None:
    job = Played()
    job.read(good(1, 41))
    assert job.read(good(2, 41)) == "rejected"
    assert 'generation 41 is there again with other content; "generation" must grow with each change.' in job.message
    assert job.allowed == 1
    assert job.read(good(1, 41) + "\n") == "same"


def test_without_a_generation_each_new_content_is_newer() -> None:
    job = Played()
    assert [job.read(good(allowed)) for allowed in (1, 2, 2, 1)] == ["applied", "applied", "same", "applied"]
    assert job.allowed == 1


def test_an_edit_without_a_generation_does_not_restart_the_count() -> None:
    job = Played()
    kinds = [job.read(one) for one in (good(1, 41), good(2), good(3, 40), good(4, 42))]
    assert kinds == ["applied", "applied", "older", "applied"]


def test_a_new_object_restarts_the_count() -> None:
    job = Played()
    job.read(good(1, 41), identity="1")
    assert job.read(good(2, 7), identity="2") == "applied"
    assert job.read(good(3, 6), identity="2") == "older"


def test_an_object_that_vanished_and_came_back_restarts_the_count() -> None:
    job = Played()
    job.read(good(1, 41))
    assert job.read(None) == "missing"
    assert (
        job.message
        == f"hints: {NAME}: it is not there. The last good document (generation 41, 0 s old) stays in force."
    )
    assert job.read(None) == "same"
    assert job.allowed == 1
    assert job.read(good(2, 7)) == "applied"


def test_an_object_that_cannot_be_read_for_a_while_is_the_same() -> None:
    job = Played()
    job.read(good(1, 41))
    assert job.read(None, error="it can't be read: Permission denied") == "missing"
    assert "it can't be read: Permission denied. The last good" in job.message
    assert job.read(good(2, 7)) == "older"


def test_what_is_broken_keeps_the_last_good_and_is_said_once_for_each_content() -> None:
    job = Played()
    job.read(text(hint(1), generation=41, observedAt=OBSERVED_AT))
    broken = text(*[hint(1)] * 3, hint(-2), generation=42)
    assert job.read(broken, now=OBSERVED + 180) == "rejected"
    assert job.message == (
        f'hints: {NAME}: "allowed" is -2 (hints[3].gpus.allowed); it must be a whole number of GPUs, 0 or more. '
        "The last good document (generation 41, 3 min old) stays in force."
    )
    assert job.read(broken) == "same"
    assert job.read("{") == "rejected"
    assert job.allowed == 1


def test_what_is_broken_first_leaves_nothing_in_force() -> None:
    job = Played()
    assert job.read("{") == "rejected"
    assert job.message.startswith(f"hints: {NAME}: not JSON: ")
    assert "stays in force" not in job.message
    assert job.policy.document is None
    assert job.read(good(1, 1)) == "applied"


def test_what_is_absent_first_is_said() -> None:
    job = Played()
    assert job.read(None, identity="") == "missing"
    assert job.message == f"hints: {NAME}: it is not there"
    assert job.read(good(1)) == "applied"


def test_a_good_document_that_is_put_back_is_the_same() -> None:
    job = Played()
    kinds = [job.read(one) for one in (good(1, 41), "{", good(1, 41), "{")]
    assert kinds == ["applied", "rejected", "same", "rejected"]


def test_warnings_are_told_when_they_are_new() -> None:
    job = Played()
    for generation, expected in ((1, "a is unknown, and ignored"), (2, "")):
        assert job.read(good(1, generation, a=1)) == "applied"
        assert job.message == expected
    job.read(good(1, 3, a=1, b=1))
    assert job.message == "b is unknown, and ignored"


def test_a_document_from_the_future_is_taken_as_observed_now() -> None:
    job = Played()
    job.read(good(1, observedAt=OBSERVED_AT), now=OBSERVED - 61)
    assert job.policy.document is not None
    assert job.policy.document.observed_at == OBSERVED - 61
    assert '"observedAt" is in the future' in job.message
    job.read(good(2, observedAt=OBSERVED_AT), now=OBSERVED - 60)
    assert (job.policy.document.observed_at, job.message) == (OBSERVED, "")


def test_a_document_from_the_future_that_is_laid_out_in_another_way_is_the_same() -> None:
    job = Played()
    document = good(1, 5, observedAt=OBSERVED_AT, ttlSeconds=100)
    assert job.read(document, now=OBSERVED - 100.0) == "applied"
    assert job.read(document + "\n", now=OBSERVED - 90.0) == "same"
    assert job.policy.document is not None and job.policy.document.observed_at == OBSERVED - 100.0


def test_the_age_in_messages_is_since_the_read_where_the_document_does_not_say() -> None:
    job = Played()
    job.read(good(1), now=OBSERVED)
    job.read("{", now=OBSERVED + 7200)
    assert "The last good document (2 h old) stays" in job.message
    job.read("[", now=None)
    assert "The last good document stays" in job.message


Reads = st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 9), st.integers(0, 3))


@given(st.lists(Reads, max_size=20))
def test_of_one_object_the_applied_generations_only_grow(reads: list[tuple[str, int | None, int]]) -> None:
    job, highest, last = Played(), None, ""
    for identity, generation, allowed in reads:
        highest = highest if identity == last else None
        kind = job.read(good(allowed, generation), identity)
        if kind == "applied":
            assert highest is None or generation is None or generation > highest
            highest = highest if generation is None else generation
            last = identity
        assert job.allowed is not None
