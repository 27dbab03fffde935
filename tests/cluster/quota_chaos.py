"""``python -m tests.cluster.quota_chaos --seeds 1-10``: plays histories of `tests.quota_chaos` against the real quota
controllers, with jobs that are no more than their reports, on the cluster that ``make cluster`` has started.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.rounds.round import Decision
from tests.chaos.seeds import seeds
from tests.cluster.machine.processes import ClusterError
from tests.quota_chaos.game import Edit, Game
from tests.quota_chaos.history import IN_CLUSTER, draw
from tests.quota_chaos.judge import Judge
from tests.quota_chaos.players import Player
from tests.support.cluster import pods
from tests.support.cluster.quota import HINTS, Controllers, controllers
from tests.support.cluster.stage import LONG
from tests.support.launches import until
from tests.support.quota_reports import service

MOST = 10
"""Acts of a history: each is followed by a look at what the controllers make of it."""
RESTS = (0, 0, 1)
SETTLED = 2.5
"""Seconds without another document after which the controllers have seen all: they wait for one second at most."""
LOOK = 0.5
EDITS = 5
"""How often an edit is tried again that came between the controller's own."""


class ClusterStage:
    """The controllers of a cluster; see `game.Stage`.

    Args:
        there: The controllers.
        space: The namespace of the jobs.
    """

    grow_after = 2.0
    grace = 10.0
    rest = 2

    def __init__(self, there: Controllers, space: str) -> None:
        self._there = there
        self._space = space
        self._document = there.document()
        self._services: dict[str, dict[str, Any]] = {}

    @property
    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def report(self, player: Player, status: Mapping[str, Any]) -> None:
        """Lets a report arrive with the next round."""
        shown = service(player.name, self._space, dict(status))
        metadata = {key: shown["metadata"][key] for key in ("name", "namespace", "labels", "annotations")}
        self._services[player.name] = {"apiVersion": "v1", "kind": "Service", **shown, "metadata": metadata}

    def end(self, player: Player) -> None:
        """Removes a job."""
        self._services.pop(player.name, None)
        self._there.kubectl("delete", "service", player.name, f"--namespace={self._space}", "--ignore-not-found")

    def write_projects(self, text: str) -> None:
        """Writes the projects document."""
        self._there.projects(text)

    def edit_hints(self, edit: Edit) -> None:
        """Edits the entries of the hints by hand."""
        for tries in range(EDITS):
            where = f"--namespace={self._there.space}"
            found = json.loads(self._there.kubectl("get", "configmap", HINTS, where, "--output=json"))
            document = json.loads(found["data"]["hints.json"])
            rows = edit(document["hints"])
            if rows == document["hints"]:
                return
            found["data"]["hints.json"] = json.dumps({**document, "hints": rows})
            try:
                self._there.kubectl("replace", "-f", "-", stdin=json.dumps(found))
                return
            except ClusterError:
                if tries == EDITS - 1:
                    raise

    def restart(self) -> None:
        """Kills the controller that leads, and waits for the next one."""
        self._there.until_led(self._there.kill_leader())

    def round(self, pods: Mapping[str, int], stale: bool, judge: Judge, projects: Projects) -> Decision | None:
        """Delivers the reports, and waits until the hints no longer change."""
        if self._services:
            self._there.kubectl.apply(*self._services.values())
            self._services.clear()
        until(lambda: self._there.document().get("generation"), "there are hints", LONG)
        seen, since = self._there.document(), time.monotonic()
        end = since + LONG
        while time.monotonic() - since < SETTLED:
            assert time.monotonic() < end, f"the hints change all the time: generation {seen['generation']}"
            time.sleep(LOOK)
            now = self._there.document()
            if now["hints"] != seen["hints"]:
                since = time.monotonic()
            seen = now
        self._document = seen
        return None

    def clear(self) -> None:
        """Removes all jobs, and what was written by hand, and waits until the hints name none."""
        self._there.kubectl("delete", "services", "--all", f"--namespace={self._space}")
        if self._there.document()["hints"]:
            self.edit_hints(lambda rows: [row for row in rows if "priority" not in row])
        until(lambda: not self._there.document()["hints"], "the hints name no job", LONG)

    def document(self) -> str:
        """Returns the hints as they are once they no longer change."""
        return json.dumps(self._document)


def play(there: Controllers, seed: int) -> tuple[bool, str]:
    """Plays one history; returns whether all held, and what was found, in a line."""
    began, told = time.monotonic(), list[str]()
    with pods.namespace(there.kubectl, "fakes") as space:
        stage = ClusterStage(there, space)
        try:
            found = Game(draw(seed, IN_CLUSTER, MOST, RESTS), stage, told.append).play()
        except AssertionError as error:
            return False, f"FAILED: {error}; acts: {'; '.join(told)}"
        finally:
            stage.clear()
    return True, f"{time.monotonic() - began:.0f} s, {found}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.quota_chaos", description=__doc__)
    parser.add_argument("--seeds", type=seeds, default=range(1, 11), help="which are played, one by one (1-10)")
    options = parser.parse_args()
    good = True
    with redirect_stdout(sys.stderr), controllers() as there:
        for seed in options.seeds:
            held, line = play(there, seed)
            print(f"{seed:03d} {line}", file=sys.__stdout__, flush=True)
            good = good and held
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
