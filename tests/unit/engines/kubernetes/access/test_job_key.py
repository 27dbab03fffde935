"""The job's key, whatever its launchers may read: what nodes know is never replaced while they are there."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from elastic_launcher.engines.kubernetes.access.job_key import find_key, new_secret
from elastic_launcher.engines.kubernetes.objects.job import node_job
from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.options import ConfigError
from tests.support.pod_templates import OWNER, SHAPE, SPEC, plan, template

NAMES = plan(template()).names
OLD = "ab" * 32
OTHER = "cd" * 32


def job(key: str | None) -> dict[str, Any]:
    """Returns a node's Job that has a key in its environment, or, with None, mounts its Secret."""
    shape = {name: getattr(SHAPE, name) for name in ("image", "command", "environment")}
    return node_job(plan(template(), type(SHAPE)(**shape, key=key, key_secret=NAMES.secret)), SPEC)


class Cluster:
    """Has these Jobs, and a Secret of this key, if any."""

    def __init__(self, jobs: list[dict[str, Any]], secret: str = "") -> None:
        self.jobs = jobs
        self.secret = new_secret(NAMES, OWNER, secret) if secret else None

    async def request(self, method: str, path: str, body: Any = None, **query: Any) -> dict[str, Any]:
        if path.endswith("/jobs"):
            return {"items": self.jobs}
        if method == "POST":
            self.secret = body
        if self.secret is None:
            raise ApiError(404, "NotFound", "no such Secret")
        return cast(dict[str, Any], self.secret)

    def find(self, may: bool) -> tuple[str, bool]:
        return asyncio.run(find_key(cast(Api, self), "ml", NAMES, OWNER, may))


def test_a_new_key_is_kept_where_it_may_be() -> None:
    cluster = Cluster([])
    key, in_secret = cluster.find(may=True)
    assert in_secret and len(bytes.fromhex(key)) == 32
    assert cluster.find(may=True) == (key, True)
    assert not Cluster([]).find(may=False)[1]


def test_the_right_to_keep_secrets_that_comes_later_changes_no_key() -> None:
    cluster = Cluster([job(OLD)])
    assert cluster.find(may=False) == (OLD, False)
    assert cluster.find(may=True) == (OLD, True)
    assert cluster.secret == new_secret(NAMES, OWNER, OLD)


def test_where_the_secret_has_another_key_than_the_nodes_theirs_counts() -> None:
    assert Cluster([job(OLD)], secret=OTHER).find(may=True) == (OLD, False)


def test_a_key_that_nodes_know_and_the_launcher_may_not_read_is_not_replaced() -> None:
    with pytest.raises(
        ConfigError, match=f"their key is in Secret {NAMES.secret}, and the launcher may not read it: grant"
    ):
        Cluster([job(None)], secret=OLD).find(may=False)


@pytest.mark.parametrize("data", [None, {}, {"key": "%"}, {"key": "bm8ga2V5"}])
def test_a_secret_that_others_have_emptied_is_not_taken_for_a_key(data: Any) -> None:
    cluster = Cluster([], secret=OLD)
    cluster.secret = cast(dict[str, Any], cluster.secret) | {"data": data}
    with pytest.raises(ConfigError, match=f"Secret {NAMES.secret} holds no key of this job: delete it"):
        cluster.find(may=True)
    cluster.jobs = [job(OLD)]
    assert cluster.find(may=True) == (OLD, False)
