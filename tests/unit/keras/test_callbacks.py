"""What a callback remembers goes to the callback in its place, and what the script has made that with stays."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_launcher.keras.backend import keras
from elastic_launcher.keras.callbacks import CallbackState
from elastic_launcher.keras.fit import Carried


class Counts(keras.callbacks.Callback):  # type: ignore[misc] # Keras has no types
    """Keeps how often it is called, in a number and a list that it is made with."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.count = 0
        self.seen: list[int] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.count += 1
        self.seen.append(epoch)


def test_a_job_that_resumes_keeps_what_its_script_makes_callbacks_with() -> None:
    """Else it would go on to write to the path of the first attempt."""
    before, now = Counts("first"), Counts("second")
    carried, resumed = CallbackState(before), CallbackState(now)
    before.on_epoch_end(7)
    resumed.load_state_dict(carried.state_dict())
    assert (now.name, now.count, now.seen) == ("second", 1, [7])


def test_what_is_again_as_it_was_made_is_carried_too() -> None:
    before, now = Counts("one"), Counts("one")
    carried, resumed = CallbackState(before), CallbackState(now)
    now.on_epoch_end(0)
    resumed.load_state_dict(carried.state_dict())
    assert now.count == 0


def test_a_later_fit_carries_what_an_earlier_one_has_left() -> None:
    before, now = Counts("one"), Counts("one")
    CallbackState(before)
    before.on_epoch_end(7)
    CallbackState(now).load_state_dict(CallbackState(before).state_dict())
    assert now.count == 1


def test_the_state_of_another_callback_is_refused() -> None:
    state = CallbackState(keras.callbacks.EarlyStopping("loss")).state_dict()
    with pytest.raises(ValueError, match="the callback ReduceLROnPlateau here where it has EarlyStopping there"):
        CallbackState(keras.callbacks.ReduceLROnPlateau("loss")).load_state_dict(state)


def carried(*numbered: tuple[int, Any]) -> Carried:
    """Carries callbacks that have these numbers among all of `fit`."""
    job: Any = None
    return Carried(job, {f"callback{number}": CallbackState(callback) for number, callback in numbered})


def test_callbacks_are_taken_by_their_order_and_not_by_how_many_loggers_are_before_them() -> None:
    before, now, last = Counts("one"), Counts("one"), Counts("one")
    first = carried((2, before), (10, keras.callbacks.History()))
    before.on_epoch_end(7)
    state = first.state_dict()
    carried((0, now), (1, keras.callbacks.History())).load_state_dict(state)
    assert now.count == 1
    state = carried((0, now), (1, keras.callbacks.History())).state_dict()
    carried((9, last), (10, keras.callbacks.History())).load_state_dict(state)
    assert last.count == 1


def test_other_callbacks_are_refused_by_their_classes() -> None:
    with_history = (5, keras.callbacks.History())
    state = carried((0, Counts("one")), (1, keras.callbacks.EarlyStopping("loss")), with_history).state_dict()
    with pytest.raises(
        ValueError, match="fit has the callbacks Counts here, and the callbacks Counts, EarlyStopping t"
    ):
        carried((0, Counts("one")), with_history).load_state_dict(state)
    with pytest.raises(ValueError, match="fit has no callbacks here, and the callbacks Counts, EarlyStopping there"):
        carried(with_history).load_state_dict(state)
