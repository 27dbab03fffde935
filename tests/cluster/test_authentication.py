"""Who can't prove the job's key gets nothing of a job and changes nothing, and the job says who has tried."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_launcher.control.auth import (
    COUNTER_HEADER,
    PROTOCOL_VERSION,
    SENDER_HEADER,
    SIGNATURE_HEADER,
    VERSION_HEADER,
    sign,
)
from elastic_launcher.engines.kubernetes.access.job_key import key_of
from elastic_launcher.engines.kubernetes.leadership.bootstrap import PORTS
from elastic_launcher.engines.kubernetes.objects.names import JOB_LABEL
from tests.support.cluster import pods
from tests.support.cluster.stage import LONG, Stage, staged
from tests.support.launches import until
from tests.support.ledgers import SCRIPT
from tests.support.losses import assert_same_training, options
from tests.support.resizes import formed

STRANGER = "stranger"
# Asks as it is told, and prints each answer's status and text.
ASK = """
import http.client, json, sys
for method, path, body, headers in json.loads(sys.argv[2]):
    connection = http.client.HTTPConnection(sys.argv[1], timeout=60)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    print(json.dumps([answer.status, answer.read().decode()]), flush=True)
"""
Request = tuple[str, str, str, dict[str, str]]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, "strangers") as stage:
        stage.launch("--nodes=1:1", script=SCRIPT, argument=options(tmp_path, pace=0.02))
        formed(stage, 1, 0, LONG)
        yield stage


def signed(key: bytes, method: str, path: str, sender: str, body: str = "") -> Request:
    """Returns a request as one would send it who holds the key."""
    counter = time.time_ns()
    headers = {
        VERSION_HEADER: str(PROTOCOL_VERSION),
        SENDER_HEADER: sender,
        COUNTER_HEADER: str(counter),
        SIGNATURE_HEADER: sign(key, method, path, body.encode(), sender, counter),
    }
    return method, path, body, headers


def ask(stage: Stage, *requests: Request) -> tuple[str, list[tuple[int, str]]]:
    """Has a pod of the namespace ask the job's Service; returns the pod's address and the answers."""
    (service,) = stage.get("services", "-l", JOB_LABEL)
    address = f"{service['spec']['clusterIP']}:{PORTS['control']}"
    stage.apply(pods.python_pod(stage.space, STRANGER, "-c", ASK, address, json.dumps(requests)))
    pods.wait(stage.kubectl, stage.space, STRANGER, "{.status.phase}", ["Succeeded", "Failed"])
    (pod,) = stage.get("pods", "-l", f"app={STRANGER}")
    said = stage.kubectl("logs", STRANGER, f"--namespace={stage.space}")
    return pod["status"]["podIP"], [tuple(json.loads(line)) for line in said.splitlines()]


@pytest.mark.machine
def test_without_the_key_with_another_jobs_or_by_a_replay_nobody_gets_in_and_the_job_says_so(stage: Stage) -> None:
    (secret,) = stage.get("secrets", "-l", JOB_LABEL)
    key = bytes.fromhex(key_of(secret))
    another = secrets.token_bytes(len(key))  # as any other job's
    method, path, body, headers = signed(another, "POST", "/v1/stop", "cli", "{}")
    unsigned = (method, path, body, {name: value for name, value in headers.items() if name != SIGNATURE_HEADER})
    status = signed(key, "GET", "/v1/status", "cli")
    address, answers = ask(
        stage,
        ("GET", "/v1/nodes/1/job", "", {}),
        unsigned,
        signed(another, "POST", "/v1/members/1/join", "m1", '{"pid": 1}'),
        status,
        status,
    )
    assert [code for code, _ in answers] == [409, 401, 401, 200, 401]
    assert all(json.loads(text).keys() == {"error", "used"} for code, text in answers if code != 200)

    def told() -> list[str]:
        return [event["message"] for event in stage.events.of("warning") if "refused" in event["message"]]

    until(lambda: len(told()) == 4, "the job tells of each", LONG)
    for line, *words in zip(
        told(),
        ("GET /v1/nodes/1/job", "POST /v1/stop", "POST /v1/members/1/join", "GET /v1/status"),
        ("control protocol none", "signature is not this job's", "signature is not this job's", "was used before"),
        strict=True,
    ):
        assert all(word in line for word in (address, *words)), line
        until(lambda line=line: line in stage.log(), "the launcher's log has it", LONG)
    (stage.folder / "stop").touch()
    assert stage.wait() == 0
    assert_same_training(stage.folder, stage)
    assert len(stage.events.of("generation_formed")) == 1
