"""A real Prometheus: built from its released Go module, once, and run for a test."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError

from tests.cluster.machine.build import provide_program
from tests.support.launches import PATIENCE, until
from tests.support.scrapes import free_port

VERSION = "v0.316.0"
"""Of the Go module: Prometheus 3.16."""
EVERY = "2s"
"""Between scrapes, and the most that one may take; between evaluations of rules."""


def program() -> Path:
    """Returns Prometheus without what discovers targets in clouds; builds it where it is not in the cache.

    Raises:
        ClusterError: If there is no Go, or the build fails.
    """
    return provide_program(
        "prometheus", "github.com/prometheus/prometheus/cmd/prometheus", VERSION, "-tags=remove_all_sd"
    )


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that runs, by its HTTP API.

    Attributes:
        url: Where it answers.
    """

    url: str

    def ask(self, path: str, **parameters: str) -> Any:
        """Returns the data of an answer."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=PATIENCE) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> dict[tuple[str, ...], float]:
        """Returns what an expression comes to, by the values of labels but the instance, in order of their names."""
        found: dict[tuple[str, ...], float] = {}
        for row in self.ask("query", query=expression)["result"]:
            key = tuple(value for name, value in sorted(row["metric"].items()) if name not in ("__name__", "instance"))
            assert key not in found, f"{expression}: {key} has several values"
            found[key] = float(row["value"][1])
        return found

    def value(self, expression: str) -> float | None:
        """Returns the one value of an expression, or None."""
        found = self.query(expression)
        assert len(found) < 2, f"{expression}: {found}"
        return next(iter(found.values()), None)

    def wait_up(self, *jobs: str) -> None:
        """Waits until the last scrape of each job's target went well; fails with what is wrong with them."""

        def scrapes() -> dict[str, tuple[str, str]]:
            targets = self.ask("targets")["activeTargets"]
            return {one["labels"]["job"]: (one["health"], one["lastError"]) for one in targets}

        try:
            until(lambda: scrapes() == dict.fromkeys(jobs, ("up", "")), f"{', '.join(jobs)}: scraped")
        except AssertionError as error:
            error.add_note(str(scrapes()))
            raise

    def alerts(self) -> dict[str, str]:
        """Returns the state of each alerting rule by its name, once all of them were evaluated."""
        rules = [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]
        assert {(rule["health"], rule.get("lastError")) for rule in rules} <= {("ok", None), ("unknown", None)}, rules
        ready = all(rule["health"] == "ok" for rule in rules)
        return {rule["name"]: rule["state"] for rule in rules} if ready else {}


@contextmanager
def prometheus(
    folder: Path,
    ports: Mapping[str, int],
    protocols: Mapping[str, Sequence[str]] | None = None,
    rules: Mapping[str, Any] | None = None,
) -> Iterator[Prometheus]:
    """Runs Prometheus while a block runs.

    Args:
        folder: For its files; the test's.
        ports: Of this machine, at which targets answer, by the names of their jobs.
        protocols: Formats that are asked for, by the name of a job; without, those that Prometheus asks for.
        rules: The document with groups of rules.
    """
    executable, port = program(), free_port()
    configuration: dict[str, Any] = {
        "global": {"scrape_interval": EVERY, "scrape_timeout": EVERY, "evaluation_interval": EVERY},
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{number}"]}]}
            | ({"scrape_protocols": list(protocols[name])} if protocols and name in protocols else {})
            for name, number in ports.items()
        ],
    }
    if rules is not None:
        (folder / "rules.json").write_text(json.dumps(rules))
        configuration["rule_files"] = ["rules.json"]
    (folder / "prometheus.json").write_text(json.dumps(configuration))
    with open(folder / "prometheus.log", "wb") as log:
        process = subprocess.Popen(
            [
                executable,
                f"--config.file={folder / 'prometheus.json'}",
                f"--storage.tsdb.path={folder / 'prometheus'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=PATIENCE) as answer:
                return bool(answer.status == 200)
        except URLError:
            return False

    try:
        until(ready, "Prometheus is ready")
        yield Prometheus(url)
    finally:
        process.terminate()
        process.wait(PATIENCE)
