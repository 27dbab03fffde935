"""Who should have how many GPUs: one small cluster for each rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic_launcher.quota.jobs import Job
from elastic_launcher.quota.projects import Project, Projects
from elastic_launcher.quota.rounds import targets
from elastic_launcher.quota.rounds.ledger import Account, Ledger
from elastic_launcher.quota.rounds.round import Decision, decide
from elastic_launcher.quota.rounds.world import Bound, World
from tests.support.quota_jobs import job

TWO = Projects((Project("nlp", guaranteed=4), Project("vision", guaranteed=4)))
OWNED = Projects((Project("nlp"), Project("vision", guaranteed=4)))
NOW = 10_000.0


def holding(jobs: dict[str, int], **fields: Any) -> Ledger:
    """Returns the ledger of jobs that have held their GPUs for long."""
    return Ledger(3, {name: Account("nlp", gpus, gpus, 3, held=gpus, **fields) for name, gpus in jobs.items()})


def held(name: str, gpus: int, project: str = "nlp", **fields: Any) -> Job:
    return job(name, project, held=gpus, following=gpus, following_generation=3, **fields)


def play(world: World, ledger: Ledger, projects: Projects = TWO) -> tuple[dict[str, int], dict[str, str], Decision]:
    decision = decide(world, projects, ledger, NOW)
    allowed = {grant.job: grant.allowed for grant in decision.grants}
    return allowed, {grant.job: grant.reason for grant in decision.grants}, decision


def test_minimums_come_by_priority_and_then_by_age() -> None:
    young, old = job("young", least=3, submitted_at=2.0), job("old", least=3, submitted_at=1.0)
    urgent = job("urgent", least=3, submitted_at=3.0, priority=1)
    allowed, why, _ = play(World(7, (young, old, urgent)), Ledger())
    assert allowed == {"urgent": 4, "old": 3, "young": 0}
    assert why["young"] == "waits: it needs 3 GPUs; the fair share of project nlp is 7, and other jobs come first"


@pytest.mark.parametrize(
    ("gpus", "parts"), [(24, (12, 12)), (25, (13, 12)), (24, (8, 8, 8)), (25, (4, 4, 4, 4, 3, 3, 3))]
)
def test_equal_jobs_that_report_no_speeds_get_equal_parts(gpus: int, parts: tuple[int, ...]) -> None:
    jobs = [job(f"job-{number}", most=24, submitted_at=float(number)) for number in range(len(parts))]
    allowed = play(World(gpus, tuple(jobs)), Ledger())[0]
    assert tuple(allowed[one.id] for one in jobs) == parts


@pytest.mark.parametrize(("fairness", "parts"), [(0.0, {"short": 15, "long": 1}), (1.0, {"short": 8, "long": 8})])
def test_a_project_serves_jobs_that_end_soon_or_all_alike(fairness: float, parts: dict[str, int]) -> None:
    speeds = {gpus: gpus**0.9 for gpus in range(1, 17)}
    short = job("short", most=16, speeds=speeds, steps_left=10**7)
    long = job("long", most=16, speeds=speeds, steps_left=10**8)
    projects = Projects((Project("nlp"),), fairness=fairness)
    assert play(World(16, (short, long)), Ledger(), projects)[0] == parts


def test_a_goodput_counts_for_more_than_steps_a_second() -> None:
    speeds = {1: 1.0, 2: 1.9, 4: 3.6}
    flat = job("flat", most=16, speeds=speeds, steps_left=10**5)
    adaptive = replace(flat, id="adaptive", match={**flat.match, "id": "adaptive"})
    adaptive = replace(adaptive, goodput={gpus: 100.0 * gpus for gpus in range(1, 17)})
    flat = replace(flat, goodput={1: 100.0, 2: 110.0, 4: 111.0})
    allowed = play(World(16, (flat, adaptive)), Ledger())[0]
    assert allowed["adaptive"] >= 12 and sum(allowed.values()) == 16


@pytest.mark.parametrize("held_by_first", [12, 24])
def test_the_parts_of_such_jobs_do_not_depend_on_what_they_had_before(held_by_first: int) -> None:
    other = 24 - held_by_first
    first, second = held("first", held_by_first, most=24, service=1e6), held("second", other, most=24, service=50.0)
    decision = play(World(24, (first, second)), holding({"first": held_by_first, "second": other}))[2]
    assert decision.targets.gpus == {"first": 12, "second": 12}


def test_a_job_that_has_begun_lately_keeps_its_minimum_but_not_more() -> None:
    projects = Projects((Project("nlp", min_run_seconds=600.0), Project("vision", guaranteed=4)))
    running = held("running", 4, training_since=NOW - 500)
    owner = job("owner", "vision", 3, 3)
    allowed, why, _ = play(World(4, (running, owner)), holding({"running": 4}), projects)
    assert allowed == {"running": 1, "owner": 0}
    later = held("running", 4, training_since=NOW - 700)
    owner = job("owner", "vision", 4, 4)
    allowed, why, _ = play(World(4, (running, owner)), holding({"running": 4}), projects)
    assert (allowed["running"], why["owner"]) == (4, "waits: minRunSeconds protects running until 02:48:20Z")
    assert play(World(4, (later, owner)), holding({"running": 4}), projects)[0]["running"] == 0


def test_a_job_that_has_begun_before_the_clock_was_set_back_is_protected_once_more_and_no_longer() -> None:
    projects = Projects((Project("nlp", min_run_seconds=600.0), Project("vision", guaranteed=4)))
    day = 86400.0
    world = World(4, (held("running", 4, training_since=NOW + day), job("owner", "vision", 4, 4)))
    began = holding({"running": 4}, grown_at=NOW + day, reported_at=NOW + day)
    first = decide(world, projects, began, NOW)
    assert not first.changes
    assert not decide(world, projects, first.ledger, NOW + 599.0).changes
    (change,) = decide(world, projects, first.ledger, NOW + 600.0).changes
    assert (change.job, change.after) == ("running", 0)


def test_a_job_that_has_no_time_to_give_gpus_back_is_not_late_before_it_knows_its_hint() -> None:
    projects = Projects((Project("nlp", grace_period=0.0), Project("vision", guaranteed=2)), grow_after=0.0)
    jobs = held("old", 2, submitted_at=1.0, least=2), held("young", 2, submitted_at=2.0, least=2)
    world = World(4, (*jobs, job("owner", "vision", 2, 2)))
    first = decide(world, projects, holding({"old": 2, "young": 2}), NOW)
    assert [(change.job, change.after) for change in first.changes] == [("young", 0)]
    assert not decide(world, projects, first.ledger, NOW + 1.0).changes, "nobody is cut in its place"


def test_nothing_grows_while_the_cluster_can_not_be_read() -> None:
    world = World(8, (held("running", 2), job("new", "vision", 1, 2)), stale=True)
    allowed, why, _ = play(world, holding({"running": 2}))
    assert allowed == {"running": 2, "new": 0}
    assert why["new"] == "waits: what the cluster holds could not be read, and nothing grows before it can"


def test_what_pods_hold_that_end_is_planned_with_and_given_to_nobody_yet() -> None:
    allowed, why, decision = play(World(8, (job("new", most=8),), leaving=8), Ledger())
    assert (allowed, decision.targets.gpus) == ({"new": 0}, {"new": 8})
    assert why["new"] == "waits: it needs 1 GPU; pods that are about to end still hold 8"
    assert play(World(8, (job("new", most=8),), leaving=5), Ledger())[0] == {"new": 3}
    assert play(World(8, (held("running", 4, most=8),), leaving=5), holding({"running": 4}))[0] == {"running": 4}


def test_a_job_with_an_entry_written_by_hand_gets_that_and_the_others_the_rest() -> None:
    world = World(4, (held("fixed", 4), job("other")), fixed={"fixed": 1})
    allowed, why, _ = play(world, holding({"fixed": 4}))
    assert allowed == {"fixed": 1, "other": 0}
    assert why["fixed"] == "4 → 1 GPU: an entry written by hand gives it 1"


def test_pods_that_are_not_elastic_count_as_their_project_and_are_never_taken() -> None:
    world = World(8, (job("nlp-job", most=8), job("vision-job", "vision", 1, 8)), rigid={"nlp": 6})
    assert play(world, Ledger())[0] == {"nlp-job": 0, "vision-job": 2}


def test_a_job_of_no_project_gets_nothing_and_what_it_holds_is_nobody_elses() -> None:
    stranger = held("stranger", 3, "unknown")
    allowed, _, decision = play(World(8, (stranger, job("known", most=8))), Ledger())
    assert allowed == {"known": 5}
    assert decision.refused == {"stranger": "no project matches it, and jobs of no project are refused"}


def test_what_a_job_may_still_follow_is_promised_to_nobody_else() -> None:
    ledger = Ledger(4, {"shrinks": Account("nlp", 1, 4, 4, held=4, reclaim_by=NOW + 20.0, shrunk_at=NOW - 10.0)})
    late = job("shrinks", held=2, following=4, following_generation=3)
    allowed, why, _ = play(World(4, (late, job("owner", "vision", 3, 3))), ledger, OWNED)
    assert allowed == {"shrinks": 1, "owner": 0}
    assert why["owner"] == "waits: GPUs are being taken back for it, by 02:47:00Z"


def test_a_job_that_ignores_its_hints_is_named() -> None:
    ledger = Ledger(4, {"deaf": Account("nlp", 1, 4, 4, held=4, reclaim_by=NOW - 20.0, shrunk_at=NOW - 50.0)})
    deaf = job("deaf", held=4, following=4, following_generation=3)
    owner = job("owner", "vision", 3, 3)
    _, why, _ = play(World(4, (deaf, owner)), ledger, OWNED)
    assert why["owner"] == "waits: deaf still holds GPUs that were to be free by now"


def test_gpus_that_a_job_keeps_from_another_one_do_not_leave_the_free_ones_idle() -> None:
    deaf = job("deaf", held=3, following=3, following_generation=3)
    owner, small = job("owner", "vision", 4, 4), held("small", 1, most=2, priority=1)
    jobs = {"deaf": (0, 3, NOW - 20.0), "small": (1, 1, None)}
    for late, allowed in ((0.0, 1), (60.0, 2)):
        accounts = {
            name: Account("nlp", gpus, most, 4, held=most, reclaim_by=by and by - late)
            for name, (gpus, most, by) in jobs.items()
        }
        found, why, _ = play(World(5, (deaf, owner, small)), Ledger(4, accounts), OWNED)
        assert found == {"deaf": 0, "owner": 0, "small": allowed}
        assert why["owner"] == "waits: deaf still holds GPUs that were to be free by now"
    assert why["deaf"] == "waits: it still holds 3 GPUs that were to be free by now"


def test_a_large_job_is_served_although_small_ones_keep_coming() -> None:
    small = {f"small-{number}": 1 for number in range(4)}
    jobs = [held(name, 1, most=1, submitted_at=100.0) for name in small]
    allowed, _, decision = play(World(4, (*jobs, job("large", least=4, submitted_at=50.0))), holding(small))
    assert decision.targets.gpus["large"] == 4
    assert allowed == {"large": 0, **dict.fromkeys(small, 0)}


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (job("large", least=9, most=9), "waits: it needs 9 GPUs, and the capacity is 8 GPUs now"),
        (job("large", "guest", 3, 3), "waits: it needs 3 GPUs, and the limit of project guest is 2"),
    ],
)
def test_a_job_that_can_never_run_says_why(one: Job, reason: str) -> None:
    projects = Projects((*TWO.projects, Project("guest", limit=2)))
    assert play(World(8, (one,)), Ledger(), projects)[1] == {"large": reason}


def test_what_others_than_elastic_jobs_have_of_the_capacity_is_named() -> None:
    bert, late = held("bert", 4, least=2), job("late", least=3)
    _, why, decision = play(World(4, (bert,), rigid={"vision": 1, "nlp": 1}), holding({"bert": 4}))
    others = "the capacity is 4 GPUs now, and others than elastic jobs have 2 of them (projects nlp, vision)"
    assert (why["bert"], decision.changes[0].cause) == (f"4 → 2 GPUs: {others}", "capacity")
    assert play(World(4, (late,), rigid={"nlp": 1, "vision": 1}), Ledger())[1]["late"] == (
        f"waits: it needs 3 GPUs; {others}"
    )


def test_what_is_held_beside_the_capacity_is_named() -> None:
    strangers = held("stranger", 2, "unknown"), held("other", 1, "unknown")
    world = World(7, (*strangers, job("large", least=5, most=5)), foreign=3)
    assert play(world, Ledger())[1]["large"] == (
        "waits: it needs 5 GPUs, and the capacity is 4 GPUs now (6 more are held, by what is of no project)"
    )


def quota(gpus: int, *jobs: str) -> tuple[Bound, ...]:
    return (Bound("ResourceQuota ml/gpus", frozenset(jobs), gpus),)


def test_jobs_of_a_bound_share_what_it_leaves_and_others_get_the_rest() -> None:
    world = World(8, (job("a"), job("b"), job("free", "vision", most=8)), bounds=quota(3, "a", "b"))
    allowed, _, decision = play(world, Ledger())
    assert sorted((allowed["a"], allowed["b"])) == [1, 2]
    assert allowed["free"] == 5
    assert (decision.targets.demands["nlp"], decision.targets.entitled["nlp"]) == (3, 3)


def test_a_project_whose_jobs_are_under_different_bounds_divides_its_share_by_jobs() -> None:
    jobs = (job("a", most=8), job("b", most=8), job("free", most=8))
    assert play(World(9, jobs, bounds=quota(15, "a", "b")), Ledger())[0]["free"] == 3
    assert play(World(9, jobs, bounds=quota(3, "a", "b")), Ledger())[0]["free"] == 6


def test_a_running_job_above_a_bound_shrinks_and_below_its_minimum_it_is_paused() -> None:
    running = held("running", 4, "nlp", least=2)
    allowed, why, decision = play(World(8, (running,), bounds=quota(3, "running")), holding({"running": 4}))
    assert (allowed["running"], why["running"]) == (3, "4 → 3 GPUs: ResourceQuota ml/gpus leaves 3")
    assert decision.grants[0].reclaim_by == NOW + 30.0
    allowed, why, _ = play(World(8, (running,), bounds=quota(1, "running")), holding({"running": 4}))
    assert (allowed["running"], why["running"]) == (0, "waits: it needs 2 GPUs, and ResourceQuota ml/gpus leaves 1")


def test_a_job_waits_for_a_bound_that_other_jobs_fill() -> None:
    jobs = (held("first", 2, least=2, most=2), job("late", least=2, submitted_at=5.0))
    allowed, why, _ = play(World(8, jobs, bounds=quota(3, "first", "late")), holding({"first": 2}))
    assert allowed == {"first": 2, "late": 0}
    assert why["late"] == "waits: it needs 2 GPUs; ResourceQuota ml/gpus leaves 3, and other jobs come first"


def test_nothing_grows_into_what_jobs_of_a_bound_have_not_given_back() -> None:
    ledger = Ledger(4, {"shrinks": Account("nlp", 1, 4, 4, held=4, reclaim_by=NOW + 20.0, shrunk_at=NOW - 10.0)})
    jobs = (job("shrinks", held=4, following=4, following_generation=3), job("other"))
    allowed, _, decision = play(World(8, jobs, bounds=quota(4, "shrinks", "other")), ledger)
    assert (allowed["other"], decision.targets.gpus["other"]) == (0, 3)


def test_what_a_job_of_no_project_holds_is_taken_off_its_bounds() -> None:
    jobs = (held("stranger", 3, "unknown"), job("known", most=8))
    assert play(World(8, jobs, bounds=quota(5, "stranger", "known")), Ledger())[0] == {"known": 2}


def test_projects_that_share_a_bound_count_on_their_fair_shares_of_it() -> None:
    projects = Projects((Project("nlp", guaranteed=1), Project("vision", guaranteed=3)))
    jobs = (job("nlp-job", most=8), job("vision-job", "vision", most=8))
    allowed, _, decision = play(World(8, jobs, bounds=quota(4, "nlp-job", "vision-job")), Ledger(), projects)
    assert allowed == {"nlp-job": 1, "vision-job": 3}
    assert decision.targets.demands == {"nlp": 1, "vision": 3}


@pytest.mark.parametrize("capacity", [24, 32, 40])
def test_no_gpu_idles_beside_jobs_that_can_use_any_number(capacity: int) -> None:
    allowed, _, _ = play(World(capacity, (held("bert", capacity, most=64),)), holding({"bert": capacity}))
    assert allowed == {"bert": capacity}
    allowed, _, _ = play(World(capacity, (job("bert", most=64), job("gpt", least=3, most=50))), Ledger())
    assert sum(allowed.values()) == capacity


def test_a_gpu_that_is_stuck_keeps_a_job_from_nothing_but_growth() -> None:
    guest = job("guest", most=8, held=8, following=7, following_generation=3)
    world = World(8, (guest, job("owner", "vision", least=1, most=8)))
    ledger = Ledger(3, {"guest": Account("nlp", 7, 8, 3, held=8, reclaim_by=NOW - 500.0, overdue=1)})
    projects = Projects((Project("nlp"), Project("vision", guaranteed=8)))
    allowed, _, decision = play(world, ledger, projects)
    assert allowed == {"guest": 0, "owner": 0}
    assert decision.targets.gpus["owner"] == 7, "all but the one that is stuck"
    assert decide(world, projects, decision.ledger, NOW).changes == ()


def test_a_job_that_does_not_follow_its_hints_is_not_waited_for_again_and_the_others_are_cut_once() -> None:
    deaf, guest = held("deaf", 4), job("guest", held=2, following=2, following_generation=4)
    accounts = {
        "deaf": Account("nlp", 2, 4, 4, held=4, reclaim_by=NOW - 60.0, shrunk_at=NOW - 90.0),
        "guest": Account("nlp", 2, 2, 4, held=2, shrunk_at=NOW - 90.0),
    }
    owner = job("owner", "vision", least=4)
    allowed, _, decision = play(World(8, (deaf, guest, owner)), Ledger(4, accounts), OWNED)
    assert allowed == {"deaf": 2, "guest": 0, "owner": 0}
    assert decision.changes[0].reason == (
        "2 → 0 GPUs, paused by quota: project vision asks for 4 of its 4 guaranteed; "
        "deaf still holds GPUs that were to be free by now"
    )
    gone = job("guest", following=0, following_generation=5, reported_at=NOW)
    allowed, _, _ = play(World(8, (deaf, gone, owner)), decision.ledger, OWNED)
    assert allowed == {"deaf": 2, "guest": 0, "owner": 4}


def test_overdue_jobs_are_within_the_limits_too() -> None:
    world = World(8, (held("first", 4), held("second", 4), job("third")))
    late = Account("nlp", 3, 4, 3, held=4, reclaim_by=NOW - 500.0, overdue=1)
    projects = Projects((Project("nlp", limit=4),))
    allowed, _, decision = play(world, Ledger(3, {"first": late, "second": late}), projects)
    assert allowed == {"first": 3, "second": 1, "third": 0}
    assert decide(world, projects, decision.ledger, NOW + 500.0).changes == ()


@pytest.mark.parametrize(("capacity", "limit"), [(4, None), (8, 4)])
def test_a_job_that_does_not_follow_its_hints_is_not_cut_for_what_it_keeps_itself(
    capacity: int, limit: int | None
) -> None:
    world, projects = World(capacity, (held("deaf", 5, most=5),)), Projects((Project("nlp", limit=limit),))
    ledger = Ledger(4, {"deaf": Account("nlp", 2, 5, 4, held=5, reclaim_by=NOW - 500.0, overdue=5)})
    for later in (0.0, 100.0, 200.0):
        decision = decide(world, projects, ledger, NOW + later)
        assert (decision.changes, decision.targets.gpus) == ((), {"deaf": 2})
        ledger = decision.ledger


def test_what_a_job_has_kept_does_not_grow_with_the_next_cut() -> None:
    stuck = job("stuck", most=8, held=8, following=6, following_generation=3)
    projects = Projects((Project("nlp", limit=7),))
    ledger = Ledger(3, {"stuck": Account("nlp", 6, 6, 3, held=8, reclaim_by=NOW - 80.0, overdue=8)})
    first = decide(World(8, (stuck,)), projects, ledger, NOW)
    assert first.targets.gpus == {"stuck": 5}, "two more are stuck, and the limit is 7"
    assert decide(World(8, (stuck,)), projects, first.ledger, NOW).changes == ()


def test_what_protects_a_job_is_a_number_that_it_can_use() -> None:
    account = Account("nlp", 1, 4, 4, held=4, grown_at=NOW - 10.0)
    projects = Projects((Project("nlp", min_run_seconds=600.0),))
    running = held("running", 4, least=2, training_since=NOW - 100)
    assert play(World(1, (running,)), Ledger(4, {"running": account}), projects)[0] == {"running": 0}


def test_a_round_does_not_divide_anew_what_the_one_before_has_divided_and_could_not_give_yet() -> None:
    jobs = (
        job("new", most=5, priority=5, submitted_at=NOW - 60.0),
        job("old", least=2, most=6, held=6, following=6, following_generation=2, submitted_at=NOW - 180.0),
    )
    ledger = Ledger(3, {"old": Account("nlp", 3, 6, 3, held=6, reclaim_by=NOW + 20.0)})
    first = decide(World(10, jobs), TWO, ledger, NOW)
    assert first.targets.gpus == {"new": 5, "old": 5}
    assert {grant.job: grant.allowed for grant in first.grants} == {"new": 4, "old": 5}
    assert first.ledger.accounts["new"].awaited == 5
    again = decide(World(10, jobs), TWO, first.ledger, NOW)
    assert (again.changes, again.targets.gpus) == ((), first.targets.gpus)


def test_a_wait_that_is_kept_anyway_changes_nothing_for_other_jobs() -> None:
    """Else vit would have its part of the share first in the second round, and bert be cut for it."""
    projects = Projects((*TWO.projects, Project("rest")))
    jobs = job("gpt", "rest", most=3), held("bert", 2, "vision", most=3), held("llama", 3), job("vit", "vision")
    world = World(9, jobs, bounds=(Bound("machines", frozenset({"bert", "llama"}), 5, per_node=1),))
    paused = Account("rest", 0, 0, 3, shrunk_at=NOW - 20.0)
    ledger = Ledger(3, {"gpt": paused, "bert": Account("vision", 2, 2, 3), "llama": Account("nlp", 3, 3, 3)})
    first = play(world, ledger, projects)[2]
    assert first.targets.gpus == {"gpt": 0, "bert": 2, "llama": 3, "vit": 4}
    assert play(world, first.ledger, projects)[2].changes == ()


def test_waits_are_kept_also_where_there_are_too_many_jobs_to_try_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "MOST", 1)
    ledger = Ledger(3, {"bert": Account("nlp", 1, 1, 3, shrunk_at=NOW - 20.0)})
    assert play(World(4, (held("bert", 1),)), ledger, OWNED)[0] == {"bert": 1}


def test_a_paused_job_says_why_it_was_paused() -> None:
    world = World(4, (held("guest", 4, least=4), job("owner", "vision", 4, 4)))
    _, why, decision = play(world, holding({"guest": 4}), OWNED)
    assert why["guest"] == "4 → 0 GPUs, paused by quota: project vision asks for 4 of its 4 guaranteed"
    later = decide(world, OWNED, decision.ledger, NOW + 20.0)
    assert {grant.job: grant.reason for grant in later.grants}["guest"] == why["guest"]


def test_what_a_paused_job_waits_for_meanwhile_does_not_replace_why_it_was_paused() -> None:
    world = World(4, (held("guest", 4, least=4), job("owner", "vision", 4, 4)))
    _, why, paused = play(world, holding({"guest": 4}), OWNED)
    late = decide(world, OWNED, paused.ledger, NOW + 40.0)
    (guest,) = (grant for grant in late.grants if grant.job == "guest")
    assert guest.reason == "waits: it still holds 4 GPUs that were to be free by now"
    assert late.ledger.accounts["guest"].reason == why["guest"]
    obeys = job("guest", following=0, following_generation=late.ledger.generation, least=4, reported_at=NOW + 41.0)
    world = World(4, (obeys, job("owner", "vision", 4, 4)))
    for seconds, reason in (
        (45.0, why["guest"]),
        (70.0, "waits: it needs 4 GPUs; the fair share of project nlp is 0, and other jobs come first"),
    ):
        later = decide(world, OWNED, late.ledger, NOW + seconds)
        assert {grant.job: grant.reason for grant in later.grants}["guest"] == reason
        assert later.ledger.accounts["guest"].reason == reason


def test_a_job_that_has_ended_and_comes_back_does_not_wait_because_it_has_ended() -> None:
    account = Account("nlp", 0, 0, 3, shrunk_at=NOW - 10.0, reason="2 → 0 GPUs, paused by quota")
    over = play(World(4, (job("guest", finished=True),)), Ledger(3, {"guest": account}))[2]
    world = World(4, (job("guest", least=4), held("owner", 4, "vision", least=4)))
    accounts = {**over.ledger.accounts, "owner": Account("vision", 4, 4, 3, held=4)}
    reason = play(world, Ledger(4, accounts), OWNED)[1]["guest"]
    assert reason == "waits: it needs 4 GPUs; the fair share of project nlp is 0, and other jobs come first"


def test_a_job_of_a_project_whose_gpus_another_one_keeps_names_that() -> None:
    accounts = {
        "deaf": Account("nlp", 0, 6, 3, held=6, reclaim_by=NOW - 500.0, overdue=6),
        "small": Account("nlp", 0, 0, 3, shrunk_at=NOW - 10.0, reason="1 → 0 GPUs, paused by quota"),
        "owner": Account("vision", 2, 2, 3, held=2),
    }
    jobs = held("deaf", 6, most=6), job("small"), held("owner", 2, "vision", most=2)
    projects = Projects((Project("nlp", guaranteed=3, priority=1), Project("vision", guaranteed=2)))
    _, why, _ = play(World(8, jobs), Ledger(3, accounts), projects)
    assert why["small"] == "waits: deaf still holds GPUs that were to be free by now"


def test_what_is_guaranteed_to_jobs_is_without_what_pods_and_projects_below_have_of_it() -> None:
    projects = Projects((Project("org", guaranteed=8), Project("nlp", guaranteed=3, parent="org")))
    world = World(16, (job("top", "org", most=8), job("low", "nlp", most=8)), rigid={"org": 2})
    _, _, decision = play(world, Ledger(), projects)
    assert {grant.job: grant.guaranteed for grant in decision.grants} == {"top": 3, "low": 3}


def test_sizes_beyond_what_there_is_cost_nothing() -> None:
    jobs = tuple(job(f"job-{number}", most=100_000) for number in range(6))
    assert sum(play(World(8, jobs), Ledger())[0].values()) == 8
