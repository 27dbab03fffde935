"""The same step is the same job, over all its attempts; another is another; and all names are names."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.engines.kubernetes.objects.names import Names, Owner, job_id, job_id_of, owner_of

SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035, which is what a Service's name must be
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?")
WORKFLOW = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "p", "uid": "wf-1", "controller": True}


def step(node_name: str, pod: str = "p-impl-1", run: str | None = "run-1", workflow: str = "wf-1") -> dict[str, Any]:
    return {
        "metadata": {
            "name": pod,
            "uid": f"uid-of-{pod}",
            "labels": {"pipeline/runid": run} if run else {},
            "annotations": {"workflows.argoproj.io/node-name": node_name},
            "ownerReferences": [WORKFLOW | {"uid": workflow}],
        }
    }


@given(st.text(), st.text(), st.text(), st.text(), st.integers(1, 10**6))
def test_every_name_is_one_that_the_api_takes(run: str, task: str, iteration: str, name: str, node: int) -> None:
    names = Names(job_id(run, task, iteration, name))
    for one in (names.service, names.secret, names.node(node)):
        assert SERVICE_NAME.fullmatch(one)
        assert len(one) <= 63
    assert LABEL_VALUE.fullmatch(names.job_id)


@given(st.lists(st.tuples(st.text(), st.text(), st.text()), min_size=2, max_size=2, unique=True))
def test_what_differs_anywhere_is_another_job(two: list[tuple[str, str, str]]) -> None:
    assert job_id(*two[0]) != job_id(*two[1])


def test_an_id_begins_with_what_people_call_the_job() -> None:
    assert job_id("run", name="Digits_Training v2").startswith("digits-training-v2-")
    assert job_id("run", name="42").startswith("job-")


@pytest.mark.parametrize(
    "again",
    [
        step("p(0).root(0).train(0).executor(1)", pod="p-impl-2"),
        step("p(0).root(1).train(0).executor(0)", pod="p-impl-3"),  # the outer DAG was retried
        step("p(0).root(0).train(0).executor(0)", workflow="wf-2"),  # the run was, after its Workflow had gone
    ],
)
def test_every_attempt_of_a_step_is_the_same_job(again: dict[str, Any]) -> None:
    assert job_id_of(again) == job_id_of(step("p(0).root(0).train(0).executor(0)"))


def test_siblings_are_jobs_of_their_own() -> None:
    names = [
        "p(0).root(0).train(0).executor(0)",
        "p(0).root(0).other(0).executor(0)",
        "p(0).root(0).loop(0).iteration-iterations(0:0).train(0).executor(0)",
        "p(0).root(0).loop(0).iteration-iterations(1:1).train(0).executor(0)",
    ]
    ids = {job_id_of(step(name)) for name in names} | {job_id_of(step(names[0], run="run-2"))}
    assert len(ids) == 5


def test_without_kubeflow_the_workflow_is_the_run() -> None:
    ids = [job_id_of(step("w.train(0)", run=None, workflow=workflow)) for workflow in ("wf-1", "wf-1", "wf-2")]
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ("w(0)", "w(2)"),
        ("w[0].train(0)", "w[0].train(1)"),
        ("w.train(0:lr:0.1)(0)", "w.train(0:lr:0.1)(1)"),
        ("w(0)[0].search(0:a)(0)[1].train(0)", "w(1)[0].search(0:a)(0)[1].train(3)"),
    ],
)
def test_an_attempt_of_argo_is_the_job_of_the_one_before(first: str, again: str) -> None:
    jobs = [job_id_of(step(name, pod=name, run=None)) for name in (first, again)]
    assert jobs[0] == jobs[1]


def test_steps_and_loop_items_of_argo_are_jobs_of_their_own() -> None:
    names = [
        "w[0].train(0)",
        "w[1].train(0)",
        "w[0].other(0)",
        "w.train(0:lr:0.1)(0)",
        "w.train(1:lr:0.2)(0)",
        "w.train(2:x(1))(0)",
        "w.train(3:x(2))(0)",
        "w.outer(0:a)(0).train(0)",
        "w.outer(1:a)(0).train(0)",
    ]
    assert len({job_id_of(step(name, run=None)) for name in names}) == len(names)


def test_what_replaces_a_pod_of_a_job_goes_on_with_its_job() -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "job-1", "controller": True}
    first, second = ({"metadata": {"name": n, "uid": n, "ownerReferences": [owner]}} for n in ("train-a", "train-b"))
    assert job_id_of(first) == job_id_of(second)
    indexed = {"metadata": first["metadata"] | {"labels": {"batch.kubernetes.io/job-completion-index": "1"}}}
    assert job_id_of(indexed) != job_id_of(first)


def test_the_owner_is_what_controls_the_pod_or_else_the_pod() -> None:
    assert owner_of(step("x")) == Owner("argoproj.io/v1alpha1", "Workflow", "p", "wf-1")
    others = [WORKFLOW | {"controller": False}]
    alone = {"metadata": {"name": "alone", "uid": "u", "ownerReferences": others}}
    assert owner_of(alone) == Owner("v1", "Pod", "alone", "u")
    assert owner_of(alone).reference() == {"apiVersion": "v1", "kind": "Pod", "name": "alone", "uid": "u"}
