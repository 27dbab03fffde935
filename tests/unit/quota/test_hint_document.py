"""The hints document of a round: what jobs read in it, what the next controller does, and what people wrote by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from elastic_launcher.hints import Demand, HintError, parse, resolve
from elastic_launcher.quota.hint_document import hint_document, read_written, with_entries_by_hand
from elastic_launcher.quota.projects import Autoscale, Capacity, Project, Projects
from elastic_launcher.quota.rounds.ledger import Plan
from elastic_launcher.quota.rounds.round import Decision, decide
from elastic_launcher.quota.rounds.world import World
from tests.support.quota_jobs import job

PROJECTS = Projects((Project("nlp", guaranteed=2), Project("vision", guaranteed=2, limit=3)), ttl_seconds=60.0)
NOW = 1000.0


def made(text: str, *jobs: Any, now: float = NOW, projects: Projects = PROJECTS) -> tuple[Decision, str]:
    written = read_written(text)
    world = with_entries_by_hand(World(4, jobs), written.by_hand, now)
    decision = decide(world, projects, written.ledger, now)
    return decision, json.dumps(hint_document(written, decision, projects, now=now))


def allowed(text: str, name: str, *, starting: bool = False, now: float = NOW) -> tuple[int | None, int | None]:
    found = resolve(parse(text), Demand({"id": name, "job": name}, 1, 8), now=now, starting=starting)
    return found.guaranteed, found.allowed


def test_each_job_reads_its_own_numbers_and_a_job_that_is_not_known_may_hold_nothing() -> None:
    _, text = made("", job("bert"), job("resnet", "vision", 1, 2))
    assert allowed(text, "bert") == (2, 2)
    assert allowed(text, "resnet") == (2, 2)
    assert allowed(text, "other") == (None, 0)


def test_a_job_that_must_shrink_reads_until_when() -> None:
    _, text = made("", job("bert"))
    _, text = made(text, job("bert", held=4, following=4, following_generation=1, reported_at=NOW), now=NOW + 100)
    decision, text = made(
        text,
        job("bert", held=4, following=4, following_generation=1, reported_at=NOW),
        job("resnet", "vision", 2, 2),
        now=NOW + 100,
    )
    assert [change.after for change in decision.changes] == [2]
    found = resolve(parse(text), Demand({"id": "bert"}, 1, 8), now=NOW + 100, starting=False)
    assert (found.allowed, found.reclaim_by) == (2, NOW + 130)


@pytest.mark.parametrize(("allowed", "leave"), [(2, {3, 4}), (0, set())])
def test_a_job_reads_which_nodes_go_first_unless_all_of_them_go(allowed: int, leave: set[int]) -> None:
    decision, _ = made("", job("bert"))
    (grant,) = decision.grants
    grant = replace(grant, allowed=allowed, holds=4, reclaim_by=NOW, leave=(3, 4))
    text = json.dumps(hint_document(read_written(""), replace(decision, grants=(grant,)), PROJECTS, now=NOW))
    found = resolve(parse(text), Demand({"id": "bert"}, 1, 8), now=NOW, starting=False)
    assert (found.allowed, found.leave) == (allowed, leave)


def test_the_next_controller_goes_on_from_the_document_alone() -> None:
    first, text = made("", job("bert"))
    again = read_written(text).ledger
    assert (again.generation, dict(again.accounts)) == (first.ledger.generation, dict(first.ledger.accounts))


def test_the_jobs_of_a_project_read_how_long_they_wait_and_a_job_that_is_not_known_waits_for_its_first_hint() -> None:
    projects = Projects(
        (Project("nlp", wait_seconds=60.0), Project("vision", wait_seconds=0.0), Project("default", wait_seconds=30.0))
    )
    _, text = made("", job("bert"), job("resnet", "vision"), job("gpt", "default"), projects=projects)
    waits = [resolve(parse(text), Demand({"id": name}, 1, 8), now=NOW, starting=True).wait for name in ("bert", "gpt")]
    assert waits == [60.0, 30.0]
    assert [row.get("waitSeconds") for row in json.loads(text)["hints"]] == [60.0, 30.0, 0.0]
    assert json.loads(text)["defaults"] == {"gpus": {"allowed": 0}, "waitSeconds": 60.0}
    _, text = made(text, job("bert"))
    assert json.loads(text)["defaults"] == {"gpus": {"allowed": 0}, "waitSeconds": 86_400.0}


@pytest.mark.parametrize("gpus", [{"allowed": 2}, {"allowed": 0, "limit": 0}])
def test_defaults_written_by_hand_stay(gpus: dict[str, int]) -> None:
    defaults = {"gpus": gpus, "waitSeconds": 5}
    text = json.dumps({"apiVersion": "elastic-hints/v1", "generation": 41, "defaults": defaults})
    projects = Projects((Project("nlp", wait_seconds=60.0),))
    assert json.loads(made(text, job("bert"), projects=projects)[1])["defaults"] == defaults


def test_the_next_controller_knows_since_when_machines_are_waited_for() -> None:
    projects = replace(PROJECTS, capacity=Capacity(autoscale=Autoscale(8)))
    decision = decide(World(0, (job("bert", held=2),)), projects, read_written("").ledger, NOW)
    text = json.dumps(hint_document(read_written(""), decision, projects, now=NOW))
    assert read_written(text).ledger.plan == decision.ledger.plan == Plan(3, 0, NOW)
    broken = text.replace('"there"', '"near"')
    with pytest.raises(HintError, match='"ledger" can\'t be read'):
        read_written(broken)


def test_entries_written_by_hand_stay_and_win_if_they_name_the_job_with_a_priority() -> None:
    by_hand = {"match": {"id": "bert"}, "priority": 10, "gpus": {"allowed": 1}}
    other = {"match": {"pipeline": "p*"}, "gpus": {"allowed": 7}}
    text = json.dumps({"apiVersion": "elastic-hints/v1", "generation": 41, "hints": [by_hand, other]})
    decision, text = made(text, job("bert"), job("gpt"))
    assert allowed(text, "bert")[1] == 1
    assert {grant.job: grant.allowed for grant in decision.grants} == {"bert": 1, "gpt": 3}
    found = json.loads(text)
    assert (found["generation"], found["hints"][:2]) == (42, [by_hand, other])


@pytest.mark.parametrize(
    ("entry", "gets"),
    [
        ({"match": {"id": "bert", "project": "nlp"}, "gpus": {"allowed": 3}}, 3),
        ({"match": {"id": "bert", "project": "*"}, "priority": 0, "gpus": {"allowed": 3}}, 3),
        ({"match": {"id": "bert"}, "priority": 0, "gpus": {"allowed": 3}}, 3),
        ({"match": {"id": "bert"}, "priority": -1, "gpus": {"allowed": 3}}, 2),
        ({"match": {"id": "bert"}, "gpus": {"allowed": 3}}, 2),
        ({"match": {"project": "nlp"}, "priority": 9, "gpus": {"allowed": 3}}, 2),
        ({"match": {"project": "nlp"}, "gpus": {"allowed": 1, "limit": 1}}, 1),
    ],
)
def test_the_controller_counts_what_a_job_makes_of_entries_written_by_hand(entry: dict[str, Any], gets: int) -> None:
    jobs = job("bert"), job("resnet", "vision")
    decision, text = made(json.dumps({"apiVersion": "elastic-hints/v1", "hints": [entry]}), *jobs)
    follows = {one.id: resolve(parse(text), Demand(one.match, 1, 4), now=NOW, starting=False).nodes for one in jobs}
    assert follows == {grant.job: grant.allowed for grant in decision.grants}
    assert follows == {"bert": gets, "resnet": min(3, 4 - gets)}


def test_a_stale_document_gives_a_job_that_starts_what_is_guaranteed() -> None:
    _, text = made("", job("bert"))
    assert resolve(parse(text), Demand({"id": "bert"}, 1, 8), now=NOW + 61, starting=True).nodes == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"job.bert": "4"}', "the document has the flat form"),
        (
            '{"apiVersion": "elastic-hints/v1", "hints": [], "source": '
            '{"kind": "elastic-quota", "ledger": {"accounts": {"a": {"x": 1}}}}}',
            '"ledger" can\'t be read',
        ),
        *(
            (
                '{"apiVersion": "elastic-hints/v1", "hints": [], "source": {"kind": "elastic-quota", "ledger": '
                '{"accounts": {"a": {"project": "nlp", "outstanding": 1, "generation": 1, ' + field + "}}}}}",
                '"ledger" can\'t be read',
            )
            for field in ('"allowed": null', '"allowed": "4"', '"allowed": -1', '"allowed": 1, "leave": 5')
        ),
    ],
)
def test_a_document_that_the_controller_can_not_go_on_from_is_refused(text: str, message: str) -> None:
    with pytest.raises(HintError, match=message):
        read_written(text)


def test_of_more_jobs_than_entries_those_that_wait_go_by_the_defaults() -> None:
    jobs = [job(f"job-{number:04}", least=2) for number in range(1001)]
    _, text = made("", *jobs)
    rows = json.loads(text)["hints"]
    assert len(rows) == 1000
    assert {"job-0000", "job-0001"} <= {row["match"]["id"] for row in rows if row["gpus"]["allowed"]}
    assert read_written(text).ledger.generation == json.loads(text)["generation"]
