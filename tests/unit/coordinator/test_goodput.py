from __future__ import annotations

import pytest

from elastic_launcher.coordinator.goodput import Goodput


def test_a_job_that_never_trained_has_none() -> None:
    assert Goodput(100.0).value(200.0) == 0.0


def test_start_pauses_and_what_follows_the_training_do_not_count() -> None:
    goodput = Goodput(100.0).formed(120.0, 0.0).formed(150.0, 2.0).formed(160.0, 3.0).ended(180.0).ended(190.0)
    assert goodput.value(200.0) == pytest.approx((60 - 5) / 100)


def test_a_job_that_is_cut_off_counts_until_then() -> None:
    assert Goodput(0.0).formed(50.0, 0.0).value(100.0) == 0.5


def test_waiting_for_quota_does_not_count() -> None:
    goodput = Goodput(0.0).formed(10.0, 0.0).halt(50.0).halt(55.0)
    assert goodput.value(80.0) == 40 / 80
    assert goodput.formed(90.0, 0.0).value(100.0) == 50 / 100


def test_what_lies_between_the_end_of_a_loop_and_its_beginning_anew_does_not_count() -> None:
    goodput = Goodput(0.0).formed(10.0, 0.0).begun_anew(20.0).ended(50.0).begun_anew(60.0).formed(70.0, 10.0)
    assert goodput.ended(90.0).value(100.0) == pytest.approx((80 - 10 - 10) / 100)
