"""What is made of the API server's word about a node's Job, before there is any."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from elastic_launcher.engines.kubernetes.nodes.dry_run import DRY, try_out
from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.options import ConfigError
from tests.support.pod_templates import plan, template

INVALID = 'Job.batch "x-1" is invalid: spec.template.spec.containers[0].image: Invalid value: " a"'
UNKNOWN = 'Job in version "v1" cannot be handled as a Job: strict decoding error: unknown field "spec.template.spec.x"'


class Server:
    """Gives one answer."""

    def __init__(self, answer: ApiError | None) -> None:
        self.answer = answer
        self.asked: list[Any] = []
        self.classes: list[Any] = []

    async def request(self, method: str, path: str, body: Any, query: Any) -> dict[str, Any]:
        self.asked.append((method, query))
        self.classes.append(body["spec"]["template"]["spec"].get("priorityClassName"))
        if self.answer is not None:
            raise self.answer
        return {}


def tried(answer: ApiError | None, **spec: Any) -> list[Any]:
    server = Server(answer)
    asyncio.run(try_out(cast(Api, server), "ml", plan(template(**spec)), "--pod-template pod.yaml"))
    return server.asked


def test_it_is_only_asked() -> None:
    assert tried(None) == [("POST", DRY)]


@pytest.mark.parametrize(
    ("status", "said", "told"),
    [
        (422, INVALID, r'spec\.containers\[0\]\.image: Invalid value: " a"$'),
        (400, UNKNOWN, r'unknown field "spec\.x"$'),
    ],
)
def test_what_is_wrong_with_a_template_is_told_with_its_file_and_the_path_in_it(
    status: int, said: str, told: str
) -> None:
    with pytest.raises(
        ConfigError, match=rf"^--pod-template pod.yaml: the API server refuses the nodes' pods: .*{told}"
    ):
        tried(ApiError(status, "", said))


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (403, 'jobs.batch "x-1" is forbidden: exceeded quota: jobs, requested: count/jobs.batch=1'),
        (422, 'jobs.batch "x-1" is forbidden: ValidatingAdmissionPolicy "p" with binding "b" denied request: not now'),
        (400, 'admission webhook "queue.example" denied the request: not now'),
        (400, 'admission webhook "queue.example" does not support dry run'),
        (500, 'failed calling webhook "queue.example": connection refused'),
        (409, 'jobs.batch "x-1" already exists'),
    ],
)
def test_what_others_refuse_for_now_is_no_mistake_of_the_template(status: int, said: str) -> None:
    assert tried(ApiError(status, "", said))


def test_each_kind_of_nodes_is_tried_and_its_section_is_named() -> None:
    kinds = template() | {"overQuota": {"priorityClassName": "spot"}}
    server = Server(None)
    asyncio.run(try_out(cast(Api, server), "ml", plan(kinds), "--pod-template pod.yaml"))
    assert server.classes == [None, "spot"]
    server = Server(ApiError(422, "", INVALID))
    with pytest.raises(ConfigError, match=r"^--pod-template pod.yaml, with its section guaranteed: the API server "):
        asyncio.run(try_out(cast(Api, server), "ml", plan(kinds), "--pod-template pod.yaml"))


def test_an_api_server_that_is_away_says_nothing_about_it() -> None:
    with pytest.raises(ApiError, match="starting"):
        tried(ApiError(503, "ServiceUnavailable", "starting"))


def test_what_ours_can_not_stand_beside_is_told_with_the_file() -> None:
    with pytest.raises(ConfigError, match=r"^--pod-template pod.yaml: volume elastic-launcher-x of the pod template"):
        tried(None, volumes=[{"name": "elastic-launcher-x", "emptyDir": {}}])
