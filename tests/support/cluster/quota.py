"""The quota controller of ``manifests/`` on the cluster, jobs that follow it, and jobs that are no more than their
reports.

What is replaced in the overlays `quota-controller` and `quota-kueue`, as for the sample (`digits.py`): the image, and
with it the command and the user; the namespaces, and the names of what has none; the projects document.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic_launcher.engines.kubernetes.objects.names import JOB_LABEL
from elastic_launcher.kube.lease import LEASE_SECONDS
from tests.cluster.machine import cluster
from tests.cluster.machine.kubectl import Kubectl
from tests.cluster.machine.processes import ClusterError
from tests.support.cluster import digits, pods
from tests.support.cluster.stage import LONG, NAME, PLACES, Stage, staged
from tests.support.launches import until
from tests.support.ledgers import SCRIPT
from tests.support.losses import options
from tests.support.manifests import MANIFESTS, objects
from tests.support.quota_reports import report, service

OVERLAY = MANIFESTS / "overlays" / "quota-controller"
FOR_KUEUE = MANIFESTS / "overlays" / "quota-kueue"
HINTS, HISTORY, PROJECTS, LEASE = "gpu-hints", "gpu-hints-history", "gpu-projects", "gpu-hints-controller"
LABEL = "elastic-launcher/quota-controller"
POD = "POD_NAME"
"""The variable by which this machine finds the processes of a controller's pod."""
NEXT_LEADS_WITHIN = LEASE_SECONDS + 60.0
"""Seconds: a Lease's time, and what a busy machine adds to it."""
PACE = 0.1  # seconds that a micro-batch takes at least: who trains leaves the machine to those that start
EMPTY = "{apiVersion: elastic-quota/v1, capacity: {gpus: 0}, projects: [{name: nobody}]}"


@dataclass
class Controllers:
    """The controllers, two of them, and what they have written.

    Attributes:
        kubectl: The cluster.
        space: Their namespace.
    """

    kubectl: Kubectl
    space: str

    @property
    def hints_option(self) -> str:
        """The launcher's option to follow the hints."""
        return f"--hints=configmap/{self.space}/{HINTS}"

    def projects(self, text: str) -> None:
        """Writes the projects document."""
        self.kubectl.apply(_configmap(self.space, PROJECTS, {"projects.yaml": text}))

    def let_read(self, *spaces: str) -> None:
        """Lets the launchers of namespaces read the hints."""
        rbac = "rbac.authorization.k8s.io"
        for name in spaces:
            self.kubectl.apply(
                {
                    "apiVersion": f"{rbac}/v1",
                    "kind": "RoleBinding",
                    "metadata": {"name": f"read-{name}", "namespace": self.space},
                    "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "read-gpu-hints"},
                    "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": name}],
                }
            )

    def document(self) -> dict[str, Any]:
        """Returns the hints."""
        return dict(json.loads(self._data(HINTS).get("hints.json", '{"hints": []}')))

    def allowed(self) -> dict[str, int]:
        """Returns what the hints allow each job to keep, by its id."""
        return allowed(self.document())

    def until(self, what: str, wanted: Mapping[str, int], seconds: float = LONG) -> None:
        """Waits until the hints allow jobs this, whatever others may have."""

        def so() -> bool:
            now = self.allowed()
            return all(now.get(job) == gpus for job, gpus in wanted.items())

        until(so, f"{what}: {dict(wanted)}", seconds)

    def history(self) -> list[dict[str, Any]]:
        """Returns the changes that were recorded, oldest first."""
        return [json.loads(line) for line in self._data(HISTORY).get("history.jsonl", "").splitlines()]

    def changes(self, job: str) -> list[tuple[int, int]]:
        """Returns what changed for a job, oldest first: GPUs before and after."""
        return [(row["before"], row["after"]) for row in self.history() if row["job"] == job]

    def holder(self) -> str:
        """Returns who has the Lease; "" for nobody."""
        return self.kubectl(
            "get", "lease", LEASE, "--ignore-not-found", "--output=jsonpath={.spec.holderIdentity}", *self._here
        )

    def kill_leader(self) -> str:
        """Kills the process that leads, as the kernel would, and returns its identity."""
        holder = self.holder()
        pod = holder.rpartition("_")[0]
        assert _kill(f"{POD}={pod}") > 0, f"no process of pod {pod} was found"
        return holder

    def until_led(self, before: str = "") -> None:
        """Waits until somebody leads that is not the one before."""
        until(lambda: self.holder() not in ("", before), "a controller leads", LONG + NEXT_LEADS_WITHIN)

    def restart(self) -> None:
        """Has all pods replaced."""
        self.kubectl("delete", "pods", "-l", LABEL, *self._here)

    def log(self) -> str:
        """Returns what the controllers that run now have logged."""
        return self.kubectl("logs", "-l", LABEL, "--prefix", "--tail=-1", "--ignore-errors", *self._here)

    @property
    def _here(self) -> tuple[str, ...]:
        return (f"--namespace={self.space}",)

    def _data(self, name: str) -> dict[str, str]:
        found = self.kubectl("get", "configmap", name, "--ignore-not-found", "--output=json", *self._here)
        return dict(json.loads(found).get("data") or {}) if found.strip() else {}


def allowed(document: Mapping[str, Any]) -> dict[str, int]:
    """Returns what hints allow each job to keep, by its id."""
    rows = {row["match"]["id"]: row for row in document["hints"] if "id" in row["match"]}
    return {job: row.get("reclaim", {}).get("to", row["gpus"]["allowed"]) for job, row in rows.items()}


@contextmanager
def controllers(overlay: Path = OVERLAY) -> Iterator[Controllers]:
    """Installs an overlay, with a document that gives nothing to anybody; leaves nothing of it."""
    kubectl = Kubectl(PLACES, cluster.running(PLACES).programs)
    with pods.namespace(kubectl, "quota") as space:
        there = Controllers(kubectl, space)
        there.projects(EMPTY)
        made = _overlay(overlay, space)
        roles = [one["metadata"]["name"] for one in made if one["kind"] == "ClusterRole"]
        try:
            kubectl.apply(*made)
            there.until_led()
            yield there
        finally:
            try:
                print(there.log())  # pytest shows it beside what failed
            except ClusterError as error:
                print(error)
            kubectl("delete", "clusterrole,clusterrolebinding", *roles, "--ignore-not-found")


@contextmanager
def stages(folder: Path, there: Controllers, *names: str) -> Iterator[list[Stage]]:
    """Gives a namespace for each of several jobs, whose launchers may read the hints."""
    with ExitStack() as stack:
        found = []
        for name in names:
            (folder / name).mkdir()
            found.append(stack.enter_context(staged(folder / name, name)))
        there.let_read(*(stage.space for stage in found))
        yield found


def launch(
    stage: Stage,
    there: Controllers,
    name: str,
    nodes: str,
    labels: dict[str, str] | None = None,
    kinds: dict[str, Any] | None = None,
    template: dict[str, Any] | None = None,
) -> str:
    """Starts a job that waits for its first hint; returns its id.

    Args:
        stage: Where.
        there: The controllers whose hints it follows.
        name: What it is called.
        nodes: Fewest and most, as of ``--nodes``.
        labels: Of each node's pod and Job.
        kinds: What the template says of nodes within the guarantee, and of those above it.
        template: What each node's pod has besides, as fields of its ``spec``.
    """
    arguments = (f"--name={name}", f"--nodes={nodes}", there.hints_option, "--wait-for-quota=3600")
    argument = options(stage.folder, pace=PACE)
    stage.launch(*arguments, script=SCRIPT, argument=argument, labels=labels, kinds=kinds, template=template)
    services = until(lambda: stage.get("services", "-l", JOB_LABEL), f"{name} has its Service", LONG)
    return str(services[0]["metadata"]["name"])


def _overlay(overlay: Path, space: str) -> list[dict[str, Any]]:
    """Returns an overlay's objects for a namespace, as kustomize would make them, but for launchers' bindings."""
    found = [one for one in objects(overlay) if one["metadata"]["name"] != "read-gpu-hints" or one["kind"] == "Role"]
    for one in found:
        if one["kind"].startswith("ClusterRole"):
            one["metadata"]["name"] += f"-{space}"
        else:
            one["metadata"]["namespace"] = space
        if one.get("roleRef", {}).get("kind") == "ClusterRole":
            one["roleRef"]["name"] += f"-{space}"
        for subject in one.get("subjects", ()):
            subject["namespace"] = space
        if one["kind"] == "Deployment":
            pod = one["spec"]["template"]["spec"]
            digits.run_here(pod, pod["containers"])
            name = {"fieldRef": {"fieldPath": "metadata.name"}}
            pod["containers"][0]["env"].append({"name": POD, "valueFrom": name})
    return found


def _configmap(space: str, name: str, data: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": space}, "data": data}


def _kill(variable: str) -> int:
    """Kills the processes of this machine that have a variable; returns how many."""
    killed = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
                killed += 1
        except OSError:
            continue  # it has ended meanwhile
    return killed


@dataclass
class FakeJob:
    """A job that is a Service without a launcher: it reports what a test says.

    Attributes:
        name: Its id.
        space: Its namespace.
        minimum: Fewest GPUs.
        maximum: Most GPUs.
        last: What it reported last.
    """

    name: str
    space: str
    minimum: int = 1
    maximum: int = 1
    last: dict[str, Any] = field(default_factory=dict)
    _told: int = 0

    def shown(self, **reported: Any) -> dict[str, Any]:
        """Returns its Service with its next report, in which what is not named stays."""
        self._told += 1
        self.last |= reported
        status = report(self.name, self.minimum, self.maximum, told=self._told, **self.last)
        shown = service(self.name, self.space, status)
        metadata = {key: shown["metadata"][key] for key in ("name", "namespace", "labels", "annotations")}
        return {"apiVersion": "v1", "kind": "Service", **shown, "metadata": metadata}

    def following(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Returns its Service as it does at once what hints say."""
        gpus = allowed(document).get(self.name, 0)
        return self.shown(held=gpus, allowed=gpus, generation=document["generation"])


def told(kubectl: Kubectl, space: str, job: str) -> list[str]:
    """Returns the messages of the Events on a job's Service."""
    found = json.loads(kubectl("get", "events", f"--namespace={space}", "--output=json"))["items"]
    about = {"kind": "Service", "name": job}
    return [one["message"] for one in found if about.items() <= one["involvedObject"].items()]


def most_allowed(rows: Sequence[Mapping[str, Any]]) -> int:
    """Returns the largest sum of what jobs were allowed at once, by a history in which no job ends."""
    sums, now = [0], dict[str, int]()
    for row in rows:
        now[row["job"]] = row["after"]
        sums.append(sum(now.values()))
    return max(sums)
