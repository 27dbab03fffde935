"""What is on the wire, recorded before its messages were types: `wire.json` has to be read and written as it stands."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import asdict

from elastic_launcher.control import requests
from elastic_launcher.control.introduction import Introduction
from elastic_launcher.control.messages import Log, Order, Report, Warm, decode, encode
from elastic_launcher.control.requests import (
    Heartbeat,
    HeartbeatAnswer,
    Join,
    Life,
    NodeJob,
    NodeMessage,
    Notice,
    Orders,
    RankEnded,
    Refused,
    Reports,
    Sample,
    SampleAnswer,
    Standing,
    Unfit,
    Welcome,
)
from elastic_launcher.control.vitals import Vitals
from tests.support.message_examples import EXAMPLES, FULL

WIRE: dict[str, list[Any]] = json.loads(Path(__file__).with_name("wire.json").read_text(encoding="utf-8"))
AGENT: dict[str, type[NodeMessage]] = {
    kind.path(): kind for kind in (Heartbeat, Life, requests.Log, Notice, RankEnded, Sample, Unfit)
}
KINDS: dict[str, Any] = {
    "orders": Order,
    "reports": Report,
    "introductions": Introduction,
    "join": Join,
    "joined": Standing,
    "introduced": Welcome,
    "ordered": Orders,
    "told": Reports,
    "beats": HeartbeatAnswer,
    "sampled": SampleAnswer,
    "job": NodeJob,
}
RECORDED = [(content, kind) for name, kind in KINDS.items() for content in WIRE[name]]
RECORDED += [(content, AGENT[path]) for path, content in WIRE["agent"]]


@pytest.mark.parametrize(("content", "kind"), RECORDED)
def test_what_was_on_the_wire_is_read_and_written_as_it_was(content: dict[str, Any], kind: Any) -> None:
    written = encode(decode(json.loads(json.dumps(content)), kind, "it"))
    assert json.dumps(written, sort_keys=True) == json.dumps(content, sort_keys=True)  # as text: one value is NaN


def test_each_value_is_written_as_it_was() -> None:
    assert [json.loads(json.dumps(encode(one))) for one in EXAMPLES] == [*WIRE["orders"], *WIRE["reports"]]
    assert [json.loads(json.dumps(encode(one))) for one in (FULL, Introduction(7))] == WIRE["introductions"]


def test_each_message_of_an_agent_was_recorded() -> None:
    assert {path for path, _ in WIRE["agent"]} == AGENT.keys()
    assert set(AGENT.values()) == set(NodeMessage.__subclasses__())


def test_reports_without_their_defaults_are_read_as_with_them() -> None:
    """As members sent them."""
    warm, log = (decode(one, Report, "it") for told in WIRE["told"] for one in told["reports"])
    assert warm == Warm({"dataset": 9}, 1)
    assert isinstance(log, Log) and math.isnan(log.values["loss"])


@pytest.mark.parametrize("query", WIRE["vitals"])
def test_vitals_are_read_from_a_query_as_they_were(query: dict[str, str]) -> None:
    found = decode({**query, "after": "3"}, Vitals, "it", texts=True)
    assert {name: str(value) for name, value in asdict(found).items()} == query


@pytest.mark.parametrize("content", WIRE["refused"])
def test_a_refusal_is_read_as_it_was(content: dict[str, Any]) -> None:
    refused = decode(content, Refused, "it")
    assert {"used": UNSET, "term": None, **content} == asdict(refused)
    assert encode(refused) == content
