"""A large import is nothing that the garbage collector looks at."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from elastic_launcher.host.imports import uncollected


@pytest.fixture(autouse=True)
def _nothing_stays_frozen() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def _is_looked_at(made: object) -> bool:
    return any(one is made for one in gc.get_objects())


def test_what_is_made_within_is_not_looked_at_again() -> None:
    with uncollected():
        assert not gc.isenabled()
        made: list[object] = [[]]
    assert gc.isenabled()
    assert not _is_looked_at(made)
    later: list[object] = [[]]
    assert _is_looked_at(later)


def test_an_import_that_fails_leaves_the_collector_on() -> None:
    with pytest.raises(ImportError), uncollected():
        raise ImportError
    assert gc.isenabled()


def test_who_had_turned_the_collector_off_finds_it_off() -> None:
    gc.disable()
    with uncollected():
        pass
    assert not gc.isenabled()
