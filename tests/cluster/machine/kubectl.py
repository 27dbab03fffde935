"""Questions to the API server and waits for what it tells, as the administrator."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.machine.places import Places
from tests.cluster.machine.processes import ClusterError, run


class Kubectl:
    """kubectl with the administrator's rights.

    Args:
        places: The cluster's.
        programs: The folder of the built binaries.
    """

    def __init__(self, places: Places, programs: Path) -> None:
        self._command = [str(programs / "kubectl"), f"--kubeconfig={places.kubeconfig}"]

    def __call__(self, *args: str, stdin: str | None = None) -> str:
        """Runs kubectl and returns what it printed; a failure raises ClusterError."""
        return run(*self._command, *args, stdin=stdin)

    def apply(self, *objects: dict[str, Any]) -> None:
        """Creates objects or brings them to what is given; what admission refuses raises ClusterError."""
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        # A busy API server takes longer to hand out the schemas, by which kubectl would check, than kubectl waits.
        self("apply", "--server-side", "--validate=false", "-f", "-", stdin=items)

    def ready(self) -> bool:
        """Whether the API server answers, and all of it is up."""
        try:
            return self("get", "--raw", "/readyz", "--request-timeout=5s") == "ok"
        except ClusterError:
            return False

    def watch(self, *args: str, line: str, good: Callable[[str], bool], what: str, seconds: float) -> str:
        """Waits until an object is as wanted, being told of each of its changes.

        Args:
            *args: Which objects, as for ``kubectl get``.
            line: A JSONPath template of what is looked at.
            good: Whether such a line is what is waited for.
            what: The wish, for the message.
            seconds: How long to wait.

        Returns:
            The line.
        """
        command = [*self._command, "get", "--watch", "-o", f'jsonpath={line}{{"\\n"}}', *args]
        end = time.monotonic() + seconds
        rest, seen = b"", "nothing"
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as watcher:
            assert watcher.stdout is not None
            try:
                while select.select([watcher.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                    if not (data := os.read(watcher.stdout.fileno(), 1 << 16)):
                        raise ClusterError(f"kubectl ended while it waited for this: {what}; it said {seen}")
                    *lines, rest = (rest + data).split(b"\n")
                    for seen in (text.decode() for text in lines):
                        if good(seen):
                            return seen
            finally:
                watcher.kill()
        raise ClusterError(f"not within {seconds:.0f} s: {what}; last seen: {seen}")
