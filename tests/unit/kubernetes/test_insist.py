"""A launcher that starts while the cluster's API server is away."""

from __future__ import annotations

import pytest

from elastic_launcher.cli.cluster_place import PAUSES, insist
from elastic_launcher.engines import EngineAway
from elastic_launcher.kube.api import ApiError
from elastic_launcher.options import ConfigError

AWAY = ApiError(0, "Unreachable", "connection refused")


class Cluster:
    """Gives these answers, one after another."""

    def __init__(self, *answers: ApiError | str) -> None:
        self.answers = list(answers)
        self.pauses: list[float] = []

    def ask(self) -> str:
        answer = self.answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return answer


def test_it_waits_for_one_that_comes_back() -> None:
    cluster = Cluster(AWAY, ApiError(503, "", "starting"), ApiError(429, "", "busy"), "a seat")
    assert insist(cluster.ask, cluster.pauses.append) == "a seat"
    assert cluster.pauses == list(PAUSES[:3])


def test_one_that_stays_away_is_no_mistake_of_the_command() -> None:
    cluster = Cluster(*[AWAY] * 9)
    with pytest.raises(EngineAway, match="connection refused; nothing was started, so try again later"):
        insist(cluster.ask, cluster.pauses.append)
    assert cluster.pauses == list(PAUSES)


def test_a_refusal_is_told_at_once() -> None:
    cluster = Cluster(ApiError(403, "Forbidden", "services is forbidden"))
    with pytest.raises(ConfigError, match="--engine kubernetes: services is forbidden"):
        insist(cluster.ask, cluster.pauses.append)
    assert cluster.pauses == []
