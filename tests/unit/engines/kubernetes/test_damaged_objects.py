"""Whatever other clients do to a job's objects, what is read from them raises nothing: it ends no training."""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from elastic_launcher.engines.kubernetes.access.job_key import key_in, key_of, mounts_key, new_secret
from elastic_launcher.engines.kubernetes.leadership.owner_state import grace_of, judge
from elastic_launcher.engines.kubernetes.nodes.pod_status import Gone, Leaving, Running, Waiting, standing, turned_away
from elastic_launcher.engines.kubernetes.nodes.taints import notice_of
from elastic_launcher.engines.kubernetes.objects.job import node_job, node_of, spec_of
from elastic_launcher.engines.kubernetes.objects.names import Names
from elastic_launcher.engines.kubernetes.objects.service import STATUS, TERM, new_service, read_record
from elastic_launcher.engines.kubernetes.objects.template import live_container
from tests.support.pod_templates import OWNER, SPEC, plan, template

NAMES = Names("digits-x")
WORDS = st.sampled_from(["", "x", "-1", "3", "{}", "[", "True", "Failed", "9" * 30])

_JOB = node_job(plan(template()), SPEC)
JOB: dict[str, Any] = {
    **_JOB,
    "metadata": {**_JOB["metadata"], "uid": "uid-3", "resourceVersion": "7", "deletionTimestamp": "2026-11-21"},
    "status": {"failed": 1, "conditions": [{"type": "Failed", "status": "True", "reason": "x", "message": "y"}]},
}
STATE = {"terminated": {"exitCode": 128, "reason": "StartError", "message": 'exec: "python3"'}, "waiting": {}}
POD: dict[str, Any] = {
    "metadata": {
        **_JOB["spec"]["template"]["metadata"],
        "name": "digits-x-3-abcde",
        "uid": "uid-4",
        "ownerReferences": [{"kind": "Job", "name": "digits-x-3", "uid": "uid-3", "controller": True}],
        "deletionTimestamp": "2026-11-21T18:00:30Z",
        "deletionGracePeriodSeconds": 30,
    },
    "spec": {
        **_JOB["spec"]["template"]["spec"],
        "nodeName": "node-1",
        "initContainers": [{"name": "data", "command": ["sh"]}],
        "terminationGracePeriodSeconds": 30,
    },
    "status": {
        "phase": "Failed",
        "reason": "OutOfcpu",
        "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "x", "message": "y"}],
        "initContainerStatuses": [{"name": "data", "restartCount": 0, "state": STATE}],
        "containerStatuses": [{"name": "node", "restartCount": 1, "state": STATE}],
    },
}
EVENTS = [{"reason": "FailedCreate", "message": "no"}, {"reason": "FailedMount"}, {"reason": "Pulling"}]
WORKFLOW = {
    "kind": "Workflow",
    "metadata": {"name": "train", "uid": "uid-1", "deletionTimestamp": "2026-11-21"},
    "spec": {"shutdown": "Stop", "activeDeadlineSeconds": 0},
    "status": {"phase": "Failed"},
}
MACHINE = {"metadata": {"name": "node-1"}, "spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "x"}]}}
SERVICE = new_service(NAMES, OWNER, {"control": 8080})
SERVICE["metadata"] |= {"resourceVersion": "7", "annotations": {TERM: "3", STATUS: '{"numbers": {"node": 4}}'}}


def paths(whole: Any) -> Iterator[tuple[str | int, ...]]:
    """Yields the ways to all fields and entries of a document."""
    if isinstance(whole, dict | list):
        for key, value in whole.items() if isinstance(whole, dict) else enumerate(whole):
            yield (key,)
            yield from ((key, *rest) for rest in paths(value))


def damage(whole: Any, blows: list[tuple[tuple[Any, ...], str | None]]) -> Any:
    """Returns a document without some fields and entries (None), and with other texts in some."""
    left = copy.deepcopy(whole)
    for (*way, last), text in blows:
        with contextlib.suppress(LookupError):  # another blow has hit what it was in
            part = functools.reduce(operator.getitem, way, left)
            if text is None:
                del part[last]
            elif isinstance(part[last], str):
                part[last] = text
    return left


def damaged(whole: Any) -> st.SearchStrategy[Any]:
    """Draws what others may have made of a document."""
    blow = st.tuples(st.sampled_from(list(paths(whole))), st.none() | WORDS)
    return st.lists(blow, max_size=5).map(functools.partial(damage, whole))


@given(st.none() | damaged(JOB), st.none() | damaged(POD), damaged(EVENTS))
def test_a_node_stands_somehow(job: Any, pod: Any, events: Any) -> None:
    assert isinstance(standing(job, pod, events), Waiting | Running | Leaving | Gone)


@given(damaged(POD))
def test_a_pod_is_some_nodes_or_none(pod: Any) -> None:
    assert turned_away(pod) in (True, False)
    assert node_of(NAMES, pod) in (None, 3)
    assert spec_of(pod) is None or spec_of(pod).node in (3, 9)
    assert grace_of(pod) >= 0
    assert isinstance(live_container(pod).get("name", ""), str)


@given(damaged(JOB))
def test_a_job_tells_a_node_and_a_key_or_none(job: Any) -> None:
    assert node_of(NAMES, job) in (None, 3)
    found = spec_of(job)
    assert found is None or found.first_member >= 1
    assert isinstance(key_in(job), str) and mounts_key(NAMES, job) in (True, False)


@given(st.none() | damaged(POD), st.none() | damaged(WORKFLOW) | damaged({**JOB, "kind": "Job"}), st.booleans())
def test_what_is_to_be_done_is_known_whatever_the_owner_says(pod: Any, owner: Any, signalled: bool) -> None:
    assert judge(pod, owner, signalled).order in ("nothing", "stop", "hand over")


@given(damaged(MACHINE))
def test_a_machine_says_that_it_goes_or_nothing(machine: Any) -> None:
    assert isinstance(notice_of(machine), str)


@given(damaged(SERVICE))
@example(SERVICE | {"metadata": {"resourceVersion": "7", "annotations": {TERM: "9" * 5000, STATUS: "[" * 100_000}}})
def test_a_service_tells_a_term_and_a_status_or_none(service: Any) -> None:
    found = read_record(service)
    assert found.term >= 0 and min(found.numbers) >= 1 and isinstance(found.status, dict)


@given(damaged(new_secret(NAMES, OWNER, "ab" * 32)))
def test_a_secret_holds_a_key_or_none(secret: Any) -> None:
    assert key_of(secret) in ("", "ab" * 32)


def test_a_job_whose_annotations_were_stripped_is_known_by_its_template() -> None:
    stripped = {**JOB, "metadata": {key: value for key, value in JOB["metadata"].items() if key != "annotations"}}
    assert spec_of(stripped) == SPEC


@pytest.mark.parametrize("value", ["", "x", "0", "-1", "1.5"])
def test_a_node_whose_numbers_are_none_is_nobodys(value: str) -> None:
    notes = dict.fromkeys(JOB["metadata"]["annotations"], value)
    assert spec_of({"metadata": {**JOB["metadata"], "annotations": notes}}) is None
