"""Each test begins without what Accelerate knows of its process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState

import elastic_launcher.integrations.accelerate as elastic
from tests.support.accelerate_loop import BATCH, MICRO


def forget() -> None:
    for state in (AcceleratorState, PartialState, GradientState):
        state._shared_state.clear()


@pytest.fixture(autouse=True)
def no_state() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.fixture
def job() -> Any:
    return elastic.init(BATCH, MICRO)


@pytest.fixture
def plain() -> Callable[..., Accelerator]:
    """Makes an Accelerator of Accelerate's own."""

    def make(**options: Any) -> Accelerator:
        forget()
        return Accelerator(cpu=True, **options)

    return make
