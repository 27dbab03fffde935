"""Plays a schedule on the cluster: what is done to a job's pods, to its launcher's and to their machines."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import psutil

from elastic_launcher.engines.kubernetes.objects.names import NODE_LABEL
from tests.chaos.lead import LONG, SCRIPT, Lead
from tests.chaos.schedule import Act, Schedule
from tests.cluster.machine import cluster
from tests.cluster.machine.node import Node
from tests.support.cluster.stage import HINTS, PLACES, Stage
from tests.support.cluster.taken_gpus import LATER, fill
from tests.support.launches import until

FIRST, SECOND = 0, 1
ADOPTED = "coordinator_adopted"


class ClusterConductor(Lead):
    """Leads a job of pods.

    Args:
        stage: Where it runs.
        schedule: What is to happen.
        say: Takes a line about each act.
    """

    hints = f"configmap/{HINTS}"
    silence_seconds = 60
    heartbeat_seconds = 10  # pods that start leave those that train little of the machine

    def __init__(self, stage: Stage, schedule: Schedule, say: Callable[[str], None]) -> None:
        folder = stage.folder / "out"
        folder.mkdir()
        folder.chmod(0o777)  # pods have users of their own
        super().__init__(stage.work_dir, folder, schedule, say)
        self._stage = stage

    def play(self) -> int:
        """Plays the whole schedule; returns the launcher's exit code.

        Raises:
            AssertionError: If something that was to come did not, or something is left of the job.
        """
        self._make_room()
        self._hint(self._schedule.nodes)
        self._lead()
        on_first = {"nodeSelector": {"kubernetes.io/hostname": f"node-{FIRST}"}}
        self._stage.launch(*self._options(), script=SCRIPT, argument=self._arguments(), launcher=on_first)
        self._act_out()
        code = self._stage.wait()
        with contextlib.suppress(AssertionError):
            until(lambda: not self._left(), "nothing is left", LONG)
        assert not (left := self._left()), f"left: {left}"
        return code

    def _make_room(self) -> None:
        """Leaves room for one node on the second machine, for the others on the first, and for more there later."""
        nproc = self._schedule.nproc
        first = (self._schedule.nodes - 1) * nproc
        more = cluster.running(PLACES).gpus - first
        fill(self._stage.kubectl, self._stage.space, first, nproc, later=more)

    def _act_out(self) -> None:
        nodes = self._schedule.nodes
        self._await(lambda: self._formed() and len(self._formed()[-1]) == nodes, "all nodes")
        self._stage.delete("pod", LATER)
        super()._act_out()

    # -- what happens

    def _tell(self, act: Act, node: int) -> None:
        if act.how == "evicted":
            self._evict(self._pod(node))
        else:
            self._stage.delete("pod", self._pod(node))

    def _forced_deletion(self, act: Act) -> None:
        """Has the API forget a pod, and its machine end it: that leaves it two seconds after SIGTERM."""
        rank = self.rank(act.hit[0])
        self._stage.delete("pod", self._pod(rank.node), "--grace-period=0", "--force")
        self._lead()
        self._settle(gone={rank.node})

    def _cut(self, act: Act) -> None:
        """Cuts the second machine off until its node is lost and the others train; it comes back to nothing."""
        machines = {node: pod["spec"]["nodeName"] for node, pod in self._stage.nodes().items()}
        gone = {node for node in self._nodes if machines[node] == f"node-{SECOND}"}
        assert gone and gone < self._nodes, f"one node is to be on node-{SECOND}: {machines}"
        second = Node(PLACES, cluster.running(PLACES), SECOND)
        second.cut()
        try:
            self._lead()
            self._settle(gone=gone)
        finally:
            second.mend()
            second.start()  # and Ready

    def _launcher(self, act: Act) -> None:
        """Has the launcher's pod go, and waits until another one leads the same processes."""
        adoptions = len(self._of(ADOPTED))
        name = self._stage.launchers()[-1]["metadata"]["name"]
        if act.how == "evicted":
            self._evict(name)
        else:
            self._stage.delete("pod", name, "--grace-period=0", "--force")
        self._lead()
        self._await(lambda: len(self._of(ADOPTED)) > adoptions, "another launcher leads the job")

    def _evict(self, pod: str) -> None:
        """Evicts a pod by the API, as a drain does: with all its grace."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        path = f"/api/v1/namespaces/{self._stage.space}/pods/{pod}/eviction"
        self._stage.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))

    def _pod(self, node: int) -> str:
        return str(self._stage.nodes()[node]["metadata"]["name"])

    # -- where the job runs

    def _write_hints(self, text: str) -> None:
        about: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": HINTS}}
        self._stage.apply({**about, "data": {"hints.json": text}})

    def _remove_hints(self) -> None:
        self._stage.delete("configmap", HINTS)

    def _over(self) -> str | None:
        return next((str(event["message"]) for event in self._of("job_finished")), None)

    def _left(self) -> list[str]:
        """Returns what is left of the nodes, to the API and on the machine that all of the cluster runs on."""
        found = [one["metadata"]["name"] for one in self._stage.get("jobs,pods", "-l", NODE_LABEL)]
        for process in psutil.process_iter(["cmdline"]):
            command = " ".join(process.info["cmdline"] or ())
            found += [f"process {process.pid}: {command}"] if str(self.folder) in command else []
        return found
