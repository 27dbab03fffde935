"""Which machines pods can be on, by tables of Kubernetes' own rules."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_launcher.quota.scheduling import Scheduling, Taint, scheduling_of

LABELS = {"pool": "a100", "gpus": "8", "zone": "b"}


def required(*terms: Any) -> dict[str, Any]:
    """Returns a pod's spec with required node affinity."""
    return {
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}
        }
    }


def expressions(*given: tuple[str, str, list[str]]) -> dict[str, Any]:
    """Returns a term of requirements on labels."""
    return {
        "matchExpressions": [{"key": key, "operator": operator, "values": values} for key, operator, values in given]
    }


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        ({}, True),
        ({"nodeSelector": None, "tolerations": None, "affinity": None}, True),
        ({"nodeSelector": {"pool": "a100"}}, True),
        ({"nodeSelector": {"pool": "a100", "zone": "a"}}, False),
        ({"nodeSelector": {"disk": ""}}, False),
        (required(expressions(("pool", "In", ["t4", "a100"]))), True),
        (required(expressions(("pool", "In", ["t4"]))), False),
        (required(expressions(("disk", "In", ["ssd"]))), False),
        (required(expressions(("pool", "NotIn", ["t4"]))), True),
        (required(expressions(("pool", "NotIn", ["a100"]))), False),
        (required(expressions(("disk", "NotIn", ["ssd"]))), True),
        (required(expressions(("pool", "Exists", []))), True),
        (required(expressions(("disk", "Exists", []))), False),
        (required(expressions(("disk", "DoesNotExist", []))), True),
        (required(expressions(("pool", "DoesNotExist", []))), False),
        (required(expressions(("gpus", "Gt", ["7"]))), True),
        (required(expressions(("gpus", "Gt", ["8"]))), False),
        (required(expressions(("gpus", "Lt", ["9"]))), True),
        (required(expressions(("pool", "Lt", ["9"]))), False),
        (required(expressions(("disk", "Gt", ["-1"]))), False),
        # all requirements of one term, and one term of several
        (required(expressions(("pool", "Exists", []), ("zone", "In", ["a"]))), False),
        (required(expressions(("zone", "In", ["a"])), expressions(("zone", "In", ["b"]))), True),
        (required({}), False),
        (required({}, expressions(("pool", "Exists", []))), True),
        (required({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m0"]}]}), True),
        (required({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["m0"]}]}), False),
        ({"nodeSelector": {"pool": "a100"}, **required(expressions(("zone", "In", ["a"])))}, False),
        ({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}}, True),
        ({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}}, True),
    ],
)
def test_labels_say_where_pods_can_be(spec: dict[str, Any], fits: bool) -> None:
    found = scheduling_of(spec)
    assert (found.admits("m0", LABELS, ()), found.unclear) == (fits, "")


@pytest.mark.parametrize(
    ("tolerations", "taint", "tolerated"),
    [
        ([], Taint("team"), False),
        ([{"key": "team", "operator": "Exists"}], Taint("team", "nlp"), True),
        ([{"key": "team", "operator": "Exists"}], Taint("other", "nlp"), False),
        ([{"key": "team", "operator": "Equal", "value": "nlp"}], Taint("team", "nlp"), True),
        ([{"key": "team", "value": "nlp"}], Taint("team", "nlp"), True),
        ([{"key": "team", "value": "nlp"}], Taint("team", "vision"), False),
        ([{"key": "team"}], Taint("team"), True),
        ([{"key": "team"}], Taint("team", "nlp"), False),
        ([{"operator": "Exists"}], Taint("team", "nlp", "NoExecute"), True),
        ([{"operator": "Exists", "effect": "NoSchedule"}], Taint("team", "nlp", "NoExecute"), False),
        (
            [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
            Taint("team", "", "NoExecute"),
            True,
        ),
        ([{"key": "team", "operator": "Exists", "effect": "NoSchedule"}], Taint("team", "nlp"), True),
        ([{"key": "", "operator": "Equal", "value": ""}], Taint("team"), False),
        ([{"key": "other", "operator": "Exists"}, {"key": "team", "operator": "Exists"}], Taint("team"), True),
    ],
)
def test_tolerations_put_up_with_taints(tolerations: list[dict[str, Any]], taint: Taint, tolerated: bool) -> None:
    found = scheduling_of({"tolerations": tolerations})
    assert (found.admits("m0", {}, (taint,)), found.unclear) == (tolerated, "")


def test_each_taint_must_be_tolerated() -> None:
    found = scheduling_of({"tolerations": [{"key": "team", "operator": "Exists"}]})
    assert not found.admits("m0", {}, (Taint("team"), Taint("spot")))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("pool=a100", "it is no object"),
        ({"nodeSelector": {"pool": 100}}, "`nodeSelector[...]`"),
        ({"tolerations": [{"operator": "Gt", "key": "team", "value": "7"}]}, "`tolerations[0].operator`"),
        ({"tolerations": {"key": "team"}}, "Expected `array | null`, got `object` - at `tolerations`"),
        (required(expressions(("pool", "Near", ["a100"]))), "operator`"),
        (required(expressions(("pool", "In", []))), "In has no values"),
        (required({"matchFields": [{"key": "spec.unschedulable", "operator": "Exists"}]}), "metadata.name is the only"),
        (required(), "nodeSelectorTerms`"),
        ({"affinity": {"nodeAffinity": []}}, "`affinity.nodeAffinity`"),
    ],
)
def test_what_is_not_clear_excludes_no_machine_and_is_said(spec: Any, said: str) -> None:
    found = scheduling_of(spec)
    assert said in found.unclear
    taints = (Taint("team"),) if "tolerations" in spec else ()
    assert found.admits("m0", {}, taints)


def test_what_is_clear_counts_beside_what_is_not() -> None:
    found = scheduling_of({"nodeSelector": {"pool": "t4"}, "affinity": 7})
    assert found.unclear and not found.admits("m0", LABELS, ())
    assert not found.admits("m0", {"pool": "t4"}, (Taint("team"),))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "tolerations"),
        ({"nodeSelector": {"pool": "a100"}}, "node selector (pool=a100)"),
        ({"nodeSelector": dict.fromkeys("dbca", "x")}, "node selector (a=x, b=x, c=x, …)"),
        (required(expressions(("pool", "Exists", []))), "node affinity"),
        (
            {"nodeSelector": {"a": "x"}, **required(expressions(("pool", "Exists", [])))},
            "node selector (a=x) and node affinity",
        ),
    ],
)
def test_reasons_name_what_machines_must_match(spec: dict[str, Any], words: str) -> None:
    assert scheduling_of(spec).words == words


def test_what_asks_for_the_same_is_the_same() -> None:
    one = {"nodeSelector": {"a": "x", "b": "y"}, "tolerations": [], "schedulerName": "kai"}
    assert scheduling_of(one) == scheduling_of({"nodeSelector": {"b": "y", "a": "x"}})
    assert scheduling_of({}) == Scheduling()
