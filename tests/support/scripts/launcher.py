"""The launcher, with a harness that a test sees through: it writes down what members report, and may withhold a kill.

``HARNESS_REPORTS`` names the file that takes each report, a JSON line; ``HARNESS_SPARES`` the number of a node that
is never killed while the job runs: as if its machine could not be reached.
"""

from __future__ import annotations

import json
import os

from elastic_launcher.cli.main import main
from elastic_launcher.control.messages import Message, encode
from elastic_launcher.coordinator.api.handlers import JobHandlers
from elastic_launcher.engines.local import LocalEngine

take, kill = JobHandlers.report, LocalEngine.kill


def report(self: JobHandlers, member: int, report: Message) -> None:
    with open(os.environ["HARNESS_REPORTS"], "a") as file:
        file.write(json.dumps({"member": member, **encode(report)}) + "\n")
    take(self, member, report)


def spare(self: LocalEngine, node: int) -> None:
    if str(node) != os.environ.get("HARNESS_SPARES"):
        kill(self, node)


if __name__ == "__main__":
    JobHandlers.report, LocalEngine.kill = report, spare  # type: ignore[method-assign]
    main()
