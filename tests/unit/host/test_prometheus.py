"""A port for Prometheus answers while a block runs, and a port that is taken is named."""

from __future__ import annotations

import socket
import urllib.error
from collections.abc import Iterator

import pytest
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from elastic_launcher.host.prometheus import PREFIX, serving
from elastic_launcher.options import ConfigError
from tests.support.scrapes import free_port, scraped


class One(Collector):
    """A metric that is always 1."""

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(f"{PREFIX}one", "It is 1.", 1)


def test_it_answers_while_the_block_runs() -> None:
    port = free_port()
    with serving(port, One()):
        assert scraped(port) == {("one",): 1}
    with pytest.raises(urllib.error.URLError):
        scraped(port)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = f"--metrics-port {port} can't be listened at .*: choose another"
        with pytest.raises(ConfigError, match=said), serving(port, One()):
            pass
