"""Less work left weighs more, changes have a price, and jobs may grow a few times beyond what they have tried."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from elastic_launcher.quota.allocation.worth import Settings, options, weights
from tests.support.allocation_jobs import candidate

JOB = candidate("job", work=1e4)


@pytest.mark.parametrize(("fairness", "weighs"), [(0.0, 7 / 8), (0.5, 11 / 16), (1.0, 1 / 2)])
def test_the_fairer_the_less_a_job_weighs_more_for_having_less_to_do(fairness: float, weighs: float) -> None:
    jobs = [candidate("long", work=1e5), candidate("short", work=1e2)]
    assert weights(jobs, Settings(fairness=fairness)) == pytest.approx({"short": weighs, "long": 1 - weighs})
    assert weights([], Settings(fairness=fairness)) == {}


def test_weights_add_up_and_rise_with_less_work_left() -> None:
    jobs = [candidate(f"{work:g}", work=work) for work in (1e3, 1e6, 1e2)]
    found = weights(jobs, Settings())
    assert sum(found.values()) == pytest.approx(1.0)
    assert sorted(found, key=found.__getitem__) == ["1e+06", "1000", "100"]
    assert found == weights(jobs[::-1], Settings())
    assert weights([], Settings()) == {}


def test_a_job_that_understates_its_work_does_not_stay_in_front() -> None:
    understates = candidate("understates", work=1.0, service=1e6)
    found = weights([understates, candidate("honest", work=1e4)], Settings())
    assert found["honest"] > found["understates"]


def test_jobs_of_unknown_work_weigh_the_same_between_those_of_known_work() -> None:
    unknown = [candidate("new"), candidate("old", service=1e5)]
    found = weights([candidate("short", work=1e2), *unknown, candidate("long", work=1e6)], Settings())
    assert found["long"] < found["new"] == found["old"] < found["short"]
    assert sum(found.values()) == pytest.approx(1.0)


def test_equal_jobs_do_not_change_places_while_their_service_grows() -> None:
    one, other = candidate("one", service=5000.0, work=1.0), candidate("other", service=5200.0, work=1.0)
    found = weights([one, other], Settings())
    grown = weights([replace(one, service=5300.0), other], Settings())
    assert (found["one"] < found["other"]) == (grown["one"] < grown["other"])


@pytest.mark.parametrize(
    ("fields", "sizes"),
    [
        ({"limit": 10}, [1, 2, 3, 4, 6, 8, 10]),
        ({"limit": 8, "minimum": 5}, [5, 6, 8]),
        ({"limit": 20, "node_gpus": 4, "minimum": 4}, [4, 8, 12, 16, 20]),
        ({"limit": 9, "sizes": (1, 4, 9, 16)}, [1, 4, 9]),
        ({"limit": 9, "sizes": (1, 4, 9), "minimum": 2, "node_gpus": 2}, [4]),
        ({"limit": 0}, []),
    ],
)
def test_sizes_are_legal(fields: dict[str, object], sizes: list[int]) -> None:
    assert candidate("job", **fields).considered() == sizes


def test_a_job_starts_on_what_it_asks_for_and_grows_by_what_it_has_tried() -> None:
    def most(**fields: object) -> int:
        return max(options(candidate("job", **fields), 0, 0.0, 64, 0, Settings()).values)

    assert most(profiled=0, request=1) == 1
    assert most(profiled=0, request=6) == 6
    assert most(profiled=2, request=1) == 8
    assert most(profiled=0, request=1, minimum=4) == 4


def test_staying_has_no_price_and_a_change_has_one() -> None:
    found = options(JOB, 2, 2.0, 8, 0, Settings())
    assert found.values[2] == found.staying == math.log1p(2.0)
    assert found.values[1] == math.log1p(1.0)  # who shrinks in-process goes on
    assert math.log1p(2.0) < found.values[4] < math.log1p(4.0)
    assert found.values[0] < 0
    restarts = options(JOB, 2, 2.0, 8, 0, Settings(in_process=False))
    assert restarts.values[2] == math.log1p(2.0)
    assert restarts.values[1] < math.log1p(1.0)
    assert restarts.values[4] < found.values[4]


@pytest.mark.parametrize("cheaper", [{"changes": 1}, {"age": 1e6}, {"work": 1e6}, {"delay": 1.0}])
def test_a_change_costs_less_for_who_is_old_has_much_to_do_and_changed_rarely(cheaper: dict[str, float]) -> None:
    job = candidate("job", work=1e3, age=600.0, changes=3, delay=30.0)
    one = options(job, 1, 1.0, 8, 0, Settings())
    other = options(replace(job, **cheaper), 1, 1.0, 8, 0, Settings())
    assert one.values[8] < other.values[8]


def test_a_floor_takes_the_options_below() -> None:
    assert sorted(options(JOB, 0, 0.0, 8, 3, Settings()).values) == [3, 4, 6, 8]
    assert sorted(options(JOB, 0, 0.0, 8, 5, Settings()).values) == [5, 6, 8]
    with pytest.raises(ValueError, match="no legal number of GPUs between its floor, 9, and 8"):
        options(JOB, 0, 0.0, 8, 9, Settings())
