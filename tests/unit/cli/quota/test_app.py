"""``elastic-launcher quota``: what its commands print, and how they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.cli.status import placed
from elastic_launcher.quota.rounds.ledger import Account, Ledger
from tests.support.quota_command import DOCUMENT, quota


def status(name: str, project: str, least: int, most: int, held: int, **more: Any) -> dict[str, Any]:
    demand = {
        "minimum": least, "maximum": most, "per_node": 1, "match": {"id": name, "project": project},
        "submitted": 1000, "reported": 2000, "held": held,
    }  # fmt: skip
    return {"v": 1, "job": name, "state": "running", "demand": demand | more}


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps([status("bert", "nlp", 1, 8, 8), status("resnet", "vision", 4, 4, 0)]))
    return path


def test_check_says_that_a_document_is_good(projects: Path) -> None:
    result = quota("check", projects)
    assert result.exit_code == 0
    assert result.output == f"{projects}: good (3 projects, 8 GPUs guaranteed)\n"
    projects.write_text(DOCUMENT.replace("4", "1").partition("- {name: vision")[0])
    assert quota("check", projects).output == f"{projects}: good (2 projects, 1 GPU guaranteed)\n"


def test_check_says_where_a_document_is_wrong(projects: Path) -> None:
    projects.write_text(DOCUMENT.replace("limit: 6", "limit: 2"))
    result = quota("check", projects)
    assert result.exit_code == 2
    assert f'{projects}: line 5: "guaranteed" is 4' in result.stderr


def test_plan_says_with_how_many_gpus_it_plans_where_machines_come_and_go(
    projects: Path, jobs: Path, tmp_path: Path
) -> None:
    projects.write_text(DOCUMENT.replace("gpus: 8", "autoscale: {max: 64}"))
    result = quota("plan", projects, "--jobs", jobs, "--gpus", "4", "--json")
    found = json.loads(result.stdout)
    assert (found["capacity"], found["planned"]) == (4, 12)
    assert quota("plan", projects, "--jobs", jobs, "--gpus", "4").stdout.startswith("4 GPUs; 12 are planned with\n")
    assert quota("plan", projects, "--jobs", jobs, "--gpus", "1").stdout.startswith("1 GPU; ")
    (tmp_path / "folder").mkdir()
    refused = quota("plan", projects, "--jobs", tmp_path / "folder", "--gpus", "4")
    assert refused.exit_code == 2
    assert '"capacity.autoscale" is for a cluster' in refused.stderr


def test_check_names_the_other_enforcers(projects: Path) -> None:
    projects.write_text("apiVersion: elastic-quota/v1\ncapacity: {kai: {}, resourceQuotas: {}}\n")
    expected = "good (1 project, 0 GPUs guaranteed; on top, what the cluster's resourceQuotas, kai say)"
    assert quota("check", projects).output == f"{projects}: {expected}\n"


@pytest.mark.parametrize("command", ["plan", "serve"])
@pytest.mark.parametrize("key", ["resourceQuotas", "kai", "kueue"])
def test_other_enforcers_are_refused_on_one_machine(projects: Path, tmp_path: Path, command: str, key: str) -> None:
    projects.write_text(DOCUMENT.replace("{gpus: 8}", f"{{gpus: 8, {key}: {{}}}}"))
    result = quota(command, projects, "--jobs", tmp_path)
    assert result.exit_code == 2
    assert (
        f"capacity.{key}: only the controller of a cluster can read that (--kubernetes); leave it out" in result.stderr
    )


def test_plan_shows_who_would_get_what_and_why(projects: Path, jobs: Path) -> None:
    result = quota("plan", projects, "--jobs", jobs, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert [(row["project"], row["demand"], row["fair_share"], row["holds"]) for row in found["projects"]] == [
        ("nlp", 8, 4, 8),
        ("vision", 4, 4, 0),
        ("default", 0, 0, 0),
    ]
    assert [(row["job"], row["holds"], row["allowed"], row["target"]) for row in found["jobs"]] == [
        ("bert", 8, 4, 4),
        ("resnet", 0, 0, 4),
    ]
    table = quota("plan", projects, "--jobs", jobs)
    assert "8 → 4 GPUs: project vision asks for 4 of its 4 guaranteed" in table.stdout


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "it is not JSON"),
        ("{}", "it must be a JSON list of status documents"),
        (
            json.dumps([status("bert", "nlp", 3, 2, 0)]),
            "[0]: the report of job 'bert' can't be used: demand.minimum is 3",
        ),
    ],
)
def test_plan_refuses_jobs_that_it_can_not_read(projects: Path, jobs: Path, content: str, said: str) -> None:
    jobs.write_text(content)
    result = quota("plan", projects, "--jobs", jobs)
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


def test_plan_says_which_jobs_get_nothing_because_they_are_nobodys(projects: Path, jobs: Path) -> None:
    projects.write_text(DOCUMENT.replace("projects:", "unmatched: refuse\nprojects:"))
    jobs.write_text(json.dumps([status("bert", "lab", 1, 8, 8)]))
    why = "no project matches it, and jobs of no project are refused"
    assert json.loads(quota("plan", projects, "--jobs", jobs, "--json").stdout)["refused"] == {"bert": why}
    assert f"bert gets no hint: {why}\n" in quota("plan", projects, "--jobs", jobs).stdout


def test_plan_takes_the_status_of_older_jobs_of_a_cluster_and_leaves_out_what_is_not_reported_yet(
    projects: Path, jobs: Path
) -> None:
    projects.write_text(DOCUMENT.replace("{name: nlp,", "{name: nlp, match: {namespace: alice},"))
    old = {"v": 1, "job": "bert", "state": "running", "started": 1000.0, "seconds": 60.0, "step": 7}
    nodes = [{"node": 1, "phase": "training", "members": [1, 2], "ranks": [0, 1]}]
    jobs.write_text(json.dumps([placed(old | {"nodes": nodes}, "alice"), placed({}, "alice")]))
    result = quota("plan", projects, "--jobs", jobs, "--json")
    found = json.loads(result.stdout)
    assert (found["jobs"], list(found["refused"])) == ([], ["bert"]), "it reads no hint, and keeps what it holds"
    assert result.stderr == f"warning: {jobs}: [1]: its launcher has reported nothing yet; left out\n"


def test_plan_asks_for_the_number_of_gpus_where_nothing_says_it(projects: Path, jobs: Path) -> None:
    projects.write_text(DOCUMENT.replace("capacity: {gpus: 8}\n", ""))
    assert "or give --gpus N" in quota("plan", projects, "--jobs", jobs).stderr
    assert quota("plan", projects, "--jobs", jobs, "--gpus", "8").exit_code == 0


def test_explain_names_the_jobs_that_it_knows(tmp_path: Path) -> None:
    ledger = {"generation": 1, "accounts": {}}
    hints = {"apiVersion": "elastic-hints/v1", "hints": [], "source": {"kind": "elastic-quota", "ledger": ledger}}
    (tmp_path / "hints.json").write_text(json.dumps(hints))
    result = quota("explain", "bert", "--jobs", tmp_path)
    assert (result.exit_code, "known are: none" in result.stderr) == (2, True)


def test_explain_knows_a_job_by_its_name_where_one_has_it(tmp_path: Path) -> None:
    ids = ("bert-20261126-090503-cb91", "gan-20261126-090503-aa01", "gan-20261127-100000-aa02")
    source = {"kind": "elastic-quota", "ledger": Ledger(1, dict.fromkeys(ids, Account("nlp", 1, 1, 1))).as_json()}
    hints = {"apiVersion": "elastic-hints/v1", "hints": [], "source": source}
    (tmp_path / "hints.json").write_text(json.dumps(hints))
    assert quota("explain", "bert", "--jobs", tmp_path).stdout.startswith(f"{ids[0]} (project nlp): allowed 1")
    several = quota("explain", "gan", "--jobs", tmp_path)
    assert (several.exit_code, f"gan may be any of {ids[1]}, {ids[2]}: give the id" in several.stderr) == (2, True)


def test_explain_says_why_a_job_waits(tmp_path: Path) -> None:
    account = Account("nlp", 0, 0, 1, reason="waits: it needs 1 GPU, and no machine matches its node selector (a=b)")
    source = {"kind": "elastic-quota", "ledger": Ledger(1, {"bert": account}).as_json()}
    hints = {"apiVersion": "elastic-hints/v1", "hints": [], "source": source}
    (tmp_path / "hints.json").write_text(json.dumps(hints))
    first, *_ = quota("explain", "bert", "--jobs", tmp_path).stdout.splitlines()
    assert first == f"bert (project nlp): allowed 0, holds 0: {account.reason}"


def test_history_shows_the_last_changes(tmp_path: Path) -> None:
    common = {"v": 1, "project": "nlp", "before": 0, "after": 1, "cause": "free", "reason": "why"}
    rows = [{"time": 1000.0 + number, "job": f"job-{number}", **common} for number in range(3)]
    (tmp_path / "quota-history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"v": 1, "ti')
    assert [
        json.loads(line) for line in quota("history", "--jobs", tmp_path, "--last", "2", "--json").stdout.splitlines()
    ] == rows[1:]
    assert "job-2" in quota("history", "--jobs", tmp_path).stdout


def test_history_of_what_is_no_folder_is_not_an_empty_one(tmp_path: Path, projects: Path) -> None:
    assert quota("history", "--jobs", tmp_path).exit_code == 0
    for path in (tmp_path / "absent", projects):
        result = quota("history", "--jobs", path)
        assert (result.exit_code, f"{path}: it is no folder" in result.stderr) == (2, True)


def test_history_shows_names_with_their_brackets(tmp_path: Path) -> None:
    row = {"v": 1, "time": 1000.0, "job": "a[b]", "project": "p", "cause": "free", "reason": "said [/x]"}
    (tmp_path / "quota-history.jsonl").write_text(json.dumps(row) + "\n")
    shown = quota("history", "--jobs", tmp_path).stdout
    assert ("a[b]" in shown, "said [/x]" in shown) == (True, True)


def test_serve_refuses_a_document_that_is_wrong(projects: Path, tmp_path: Path) -> None:
    projects.write_text("projects: []\n")
    result = quota("serve", projects, "--jobs", tmp_path / "jobs")
    assert (result.exit_code, "apiVersion" in result.stderr) == (2, True)
