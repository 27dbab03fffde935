from __future__ import annotations

from elastic_launcher.coordinator.api.rejections import LONGEST, MOST, PERIOD_SECONDS, Refusals


class Told:
    """What was told, by a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.lines: list[str] = []
        self.refusals = Refusals(self.lines.append, lambda: self.now)

    def take(self, times: int = 1, request: str = "POST /v1/stop", sender: str = "cli") -> None:
        for _ in range(times):
            self.refusals.take("10.0.0.7", request, sender, "the signature is not this job's")


def test_a_line_says_who_asked_for_what_and_what_was_wrong() -> None:
    told = Told()
    told.take()
    (line,) = told.lines
    assert line.startswith(
        "refused POST /v1/stop from 10.0.0.7, which calls itself cli: the signature is not this job's. "
    )


def test_a_few_are_told_in_a_minute_and_the_others_counted() -> None:
    told = Told()
    told.take(MOST + 7)
    assert len(told.lines) == MOST
    told.now += PERIOD_SECONDS
    told.take()
    assert len(told.lines) == MOST + 1
    assert "; 7 more before it. " in told.lines[-1]
    told.take()
    assert "more before it" not in told.lines[-1]


def test_what_a_stranger_writes_does_nothing_to_a_terminal_and_is_cut() -> None:
    told = Told()
    told.take(request="GET /\x1b[2J\n" + "x" * 1000, sender="ü")
    (line,) = told.lines
    assert line.isascii() and line.isprintable()
    assert len(line) < 4 * LONGEST
