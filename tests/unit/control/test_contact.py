"""The coordinator's silence is what passes without a word from it while this process runs."""

from __future__ import annotations

import pytest

from elastic_launcher.control.contact import Contact


class Clock:
    """Monotonic seconds, by the test's word."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def ask(contact: Contact, clock: Clock, times: int, every: float) -> float:
    """Asks again and again; returns the last answer."""
    silence = 0.0
    for _ in range(times):
        clock.now += every
        silence = contact.silence()
    return silence


def test_silence_is_counted_from_the_last_word(clock: Clock) -> None:
    contact = Contact(7.0, clock)
    assert ask(contact, clock, 10, 6.0) == 60.0
    contact.hear()
    assert ask(contact, clock, 3, 0.5) == 1.5


def test_a_standstill_of_this_process_counts_as_one_pause(clock: Clock) -> None:
    contact = Contact(7.0, clock)
    assert ask(contact, clock, 2, 5.0) == 10.0
    assert ask(contact, clock, 1, 3600.0) == 17.0
    assert ask(contact, clock, 1, 5.0) == 22.0


def test_a_standstill_since_the_last_word_counts_as_one_pause(clock: Clock) -> None:
    contact = Contact(1.0, clock)
    clock.now += 50.0
    contact.hear()
    assert ask(contact, clock, 1, 3600.0) == 1.0
