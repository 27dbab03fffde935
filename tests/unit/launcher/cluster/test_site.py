"""What a cluster's answers mean for a launcher that starts."""

from __future__ import annotations

import pytest

from elastic_launcher.engines import EngineAway
from elastic_launcher.kube.api import ApiError
from elastic_launcher.launcher.cluster.site import refusals
from elastic_launcher.options import ConfigError


@pytest.mark.parametrize("status", [0, 401, 429, 500, 503])
def test_an_api_server_that_stays_away_is_no_mistake_of_the_command(status: int) -> None:
    with pytest.raises(EngineAway, match="connection refused; nothing was started, so try again later"), refusals():
        raise ApiError(status, "", "connection refused")


def test_a_refusal_is_one() -> None:
    with pytest.raises(ConfigError, match="--engine kubernetes: services is forbidden"), refusals():
        raise ApiError(403, "Forbidden", "services is forbidden")
