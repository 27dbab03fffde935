"""A job's Service: an address, a term, a status."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_launcher.engines.kubernetes.objects.names import Names, Owner
from elastic_launcher.engines.kubernetes.objects.service import (
    TERM,
    Record,
    coordinator_labels,
    new_service,
    read_record,
    same_service,
    take_over,
    tell_status,
)

NAMES = Names("digits-x")
OWNER = Owner("batch/v1", "Job", "train", "uid-1")


def served(change: dict[str, Any], service: dict[str, Any], version: str) -> dict[str, Any]:
    """Returns a Service after a change, as the API merges it."""
    metadata = service["metadata"] | {"resourceVersion": version}
    metadata["annotations"] = metadata["annotations"] | change.get("metadata", {}).get("annotations", {})
    return {"metadata": metadata, "spec": service["spec"] | change.get("spec", {}) | {"clusterIP": "10.96.0.7"}}


def test_before_anybody_governs_nodes_are_led_to_nobody() -> None:
    service = new_service(NAMES, OWNER, {"control": 8080, "store": 8081})
    assert service["spec"]["selector"] == coordinator_labels(NAMES, 0)
    assert service["spec"]["ports"] == [{"name": "control", "port": 8080}, {"name": "store", "port": 8081}]
    assert read_record(served({}, service, "1")) == Record("1", 0, "10.96.0.7", {}, "")


def test_each_term_leads_to_its_own_pod_and_keeps_what_was_told() -> None:
    service = served({}, new_service(NAMES, OWNER, {"control": 8080}), "1")
    service = served(tell_status(read_record(service), {"step": 7}), service, "2")
    for term in (1, 2, 3):
        service = served(take_over(NAMES, read_record(service)), service, str(term + 2))
        found = read_record(service)
        assert (found.term, found.status) == (term, {"step": 7})
        assert service["spec"]["selector"] == coordinator_labels(NAMES, term)


def test_one_that_was_deleted_is_made_again_as_it_was() -> None:
    service = served({}, new_service(NAMES, OWNER, {"control": 8080}), "1")
    service = served(take_over(NAMES, read_record(service)), service, "2")
    service = served(tell_status(read_record(service), {"step": 7}), service, "3")
    again = same_service(NAMES, OWNER, {"control": 8080}, read_record(service))
    assert (again["spec"], again["metadata"]["ownerReferences"]) == (service["spec"], [OWNER.reference()])
    assert read_record(served({}, again, "3")) == read_record(service)


@pytest.mark.parametrize("notes", [{}, {TERM: ""}, {TERM: "third"}, {TERM: "9" * 5000}])
def test_a_term_whose_annotation_was_taken_is_known_by_the_pod_that_it_leads_to(notes: dict[str, str]) -> None:
    service = served({}, new_service(NAMES, OWNER, {"control": 8080}), "1")
    service = served(take_over(NAMES, read_record(service)), service, "2")
    service["metadata"]["annotations"] = notes
    assert read_record(service).term == 1


def test_every_change_is_bound_to_what_was_read() -> None:
    found = Record("41", 2, "10.96.0.7", {}, "")
    assert take_over(NAMES, found)["metadata"]["resourceVersion"] == "41"
    assert tell_status(found, {})["metadata"]["resourceVersion"] == "41"


def test_a_status_that_nobody_can_read_is_none() -> None:
    service = served({}, new_service(NAMES, OWNER, {"control": 8080}), "1")
    for text in ("{", "[]", ""):
        service["metadata"]["annotations"]["elastic-launcher/status"] = text
        assert read_record(service).status == {}


@pytest.mark.parametrize("text", ["x", "", "-1", "1.5"])
def test_a_term_that_nobody_can_read_is_none(text: str) -> None:
    service = served({}, new_service(NAMES, OWNER, {"control": 8080}), "1")
    service["metadata"]["annotations"]["elastic-launcher/term"] = text
    assert read_record(service).term == 0


@pytest.mark.parametrize(
    ("status", "numbers"),
    [
        ({"numbers": {"node": 8, "member": 15}}, (8, 15)),
        ({}, (1, 1)),
        ({"numbers": {"node": "8", "member": 15}}, (1, 1)),
        ({"numbers": [8, 15]}, (1, 1)),
    ],
)
def test_the_status_says_which_numbers_are_used_or_nothing_of_them(status: Any, numbers: tuple[int, int]) -> None:
    assert Record("1", 1, "10.96.0.7", status, "").numbers == numbers
