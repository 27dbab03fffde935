"""What a group of ranks does next is foretold from what it did, by every rank alike."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import pytest

from elastic_launcher.torch.collectives.prediction import MOST_KNOWN, STRETCHES, Foresight


def missed(operations: list[str]) -> list[int]:
    """Returns where something else was expected."""
    foresight, found = Foresight(), []
    for place, operation in enumerate(operations):
        if foresight.next() != operation:
            found.append(place)
        foresight.note(operation)
    return found


def _sometimes(every: int) -> Iterator[str]:
    for step in itertools.count(1):
        yield "step"
        if step % every == 0:
            yield "evaluation"


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: itertools.repeat("step"), id="one operation"),
        pytest.param(lambda: itertools.cycle(["critic"] * 5 + ["generator"]), id="a generator after five critics"),
        pytest.param(lambda: itertools.cycle(["first", "second", "reduce"]), id="three in each step"),
        pytest.param(lambda: _sometimes(10), id="an evaluation each 10 steps"),
        pytest.param(lambda: _sometimes(300), id="an evaluation each 300 steps"),
    ],
)
def test_what_comes_again_and_again_is_expected(make: Callable[[], Iterator[str]]) -> None:
    operations = list(itertools.islice(make(), 4000))
    assert [place for place in missed(operations) if place > 2 * STRETCHES[0]] == []


def test_in_a_steady_training_only_the_first_operations_are_not_expected() -> None:
    assert missed(["step"] * 1000) == [0, 1]
    assert missed(["step", "evaluation"] * 500) == [0, 1, 2]


def test_nothing_is_expected_before_the_first_operation() -> None:
    assert Foresight().next() is None


def test_equal_pasts_expect_the_same_even_where_they_are_long_and_without_order() -> None:
    past = random.Random(1).choices(["a", "b", "c"], k=3 * MOST_KNOWN)
    assert missed(past) == missed(list(past))
