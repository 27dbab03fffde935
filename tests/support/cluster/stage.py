"""A job on the cluster: its launcher is a Job, under the Role of ``manifests/``; its pods see the test's folder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic_launcher.engines.kubernetes.objects.names import JOB_LABEL, NODE_LABEL
from elastic_launcher.engines.kubernetes.objects.service import STATUS
from tests.cluster.machine import cluster, volumes
from tests.cluster.machine.kubectl import Kubectl
from tests.cluster.machine.places import Places
from tests.cluster.machine.processes import ClusterError
from tests.support.cluster import pods
from tests.support.launches import EventFollower, until
from tests.support.manifests import MANIFESTS, objects

PLACES = Places.default()
NAME = "launcher"
HINTS = "gpu-hints"
LONG = 240.0
"""Seconds to wait for what takes a pod's start and a training's, on a machine that does other things too."""
RULES = [
    *objects(MANIFESTS / "overlays" / "plain", "Role")[0]["rules"],
    *objects(MANIFESTS / "overlays" / "hints", "Role")[0]["rules"],
]


@dataclass
class Stage:
    """A namespace for one job.

    Attributes:
        kubectl: The cluster.
        space: The namespace.
        folder: What all pods of the job see and write to, at its own path: the test's.
    """

    kubectl: Kubectl
    space: str
    folder: Path

    @property
    def work_dir(self) -> Path:
        """The launcher's work directory."""
        return self.folder / "job"

    @property
    def events(self) -> EventFollower:
        """The job's events."""
        return EventFollower(self.work_dir / "events.jsonl")

    def apply(self, *documents: dict[str, Any]) -> None:
        """Makes or changes objects in the namespace."""
        self.kubectl.apply(*({**one, "metadata": {"namespace": self.space, **one["metadata"]}} for one in documents))

    def get(self, *what: str) -> list[dict[str, Any]]:
        """Returns the objects that ``kubectl get`` lists."""
        found = json.loads(self.kubectl("get", *what, f"--namespace={self.space}", "-o", "json"))
        return list(found["items"])

    def delete(self, *what: str) -> None:
        """Deletes an object, without waiting for it to be gone."""
        self.kubectl("delete", *what, f"--namespace={self.space}", "--wait=false")

    def allow(self, gpus: int, guaranteed: int = 0, **more: Any) -> None:
        """Has the hints allow so many GPUs, as an admin's edit would; ``more`` is said beside it."""
        hint = {"gpus": {"guaranteed": guaranteed, "allowed": gpus, "limit": 8}, "growAfterSeconds": 0, **more}
        text = json.dumps({"apiVersion": "elastic-hints/v1", "defaults": hint})
        self.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": HINTS}, "data": {"hints.json": text}})

    def launch(
        self,
        *arguments: str,
        script: Path | str,
        argument: str | Sequence[str],
        template: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        launcher: dict[str, Any] | None = None,
        owner: dict[str, Any] | None = None,
        retries: int = 3,
        variables: dict[str, str] | None = None,
        labels: dict[str, str] | None = None,
        kinds: dict[str, Any] | None = None,
    ) -> None:
        """Starts the launcher; the namespace's end ends it.

        Args:
            *arguments: Options of ``elastic-launcher run``.
            script: The training script: its path, or its text.
            argument: The script's only argument, or all of them.
            template: What each node's pod has besides, as fields of its ``spec``.
            environment: Variables of the launcher.
            launcher: What the launcher's pod has besides, likewise.
            owner: What controls the launcher's pod, and does not make it again; None for a Job, which does.
            retries: How often that Job does so.
            variables: Variables of the nodes.
            labels: Of each node's pod and Job.
            kinds: What the template says of nodes within the guarantee, and of those above it.
        """
        spec = {**self.node_spec(variables), **(template or {})}
        files = {"pod.yaml": json.dumps({"metadata": {"labels": labels or {}}, "spec": spec, **(kinds or {})})}
        if isinstance(script, str):
            files["train.py"] = script
        run = ("run", "--engine=kubernetes", "--pod-template=/code/pod.yaml", f"--work-dir={self.work_dir}")
        kept = () if any(one.startswith("--checkpoint-dir") for one in arguments) else self._checkpoints
        called = "/code/train.py" if isinstance(script, str) else str(script)
        script_argv = (called, argument) if isinstance(argument, str) else (called, *argument)
        argv = ("-P", "-m", "elastic_launcher", *run, *kept, *arguments, "--", *script_argv)
        pod = pods.python_pod(self.space, NAME, *argv, writable=[self.folder])["spec"]
        pod |= {"serviceAccountName": NAME, "automountServiceAccountToken": True}
        pod["volumes"].append({"name": "code", "configMap": {"name": "code"}})
        pod["containers"][0]["volumeMounts"].append({"name": "code", "mountPath": "/code"})
        pod["containers"][0]["env"] += [{"name": name, "value": value} for name, value in (environment or {}).items()]
        pod |= launcher or {}
        self.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": files})
        if owner is None:
            job = {"backoffLimit": retries, "template": {"spec": pod}}
            self.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": NAME}, "spec": job})
            return
        controlled = {key: owner[key] for key in ("apiVersion", "kind")}
        controlled |= {key: owner["metadata"][key] for key in ("name", "uid")} | {"controller": True}
        metadata = {"name": NAME, "labels": {"job-name": NAME}, "ownerReferences": [controlled]}
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod})

    def node_spec(self, variables: dict[str, str] | None = None) -> dict[str, Any]:
        """Returns what each node's pod is made from.

        Args:
            variables: Variables of the nodes.
        """
        node = pods.python_pod(self.space, "node", writable=[self.folder])["spec"]
        container = node["containers"][0]
        env = [next(one for one in container["env"] if one["name"] == "PYTHONPATH")]
        env += [{"name": name, "value": value} for name, value in (variables or {}).items()]
        given = {key: container[key] for key in ("name", "image", "imagePullPolicy", "volumeMounts")}
        kept = {key: node[key] for key in ("volumes", "securityContext")}
        return {"containers": [{**given, "env": env}], **kept}

    @property
    def _checkpoints(self) -> tuple[str, ...]:
        return (f"--checkpoint-dir={self.folder}/checkpoints",)

    # -- what is seen

    def nodes(self) -> dict[int, dict[str, Any]]:
        """Returns the nodes' pods."""
        return {int(pod["metadata"]["labels"][NODE_LABEL]): pod for pod in self.get("pods", "-l", NODE_LABEL)}

    def uids(self) -> dict[int, str]:
        """Returns the uids of the nodes' pods: those of pods that were made again differ."""
        return {node: pod["metadata"]["uid"] for node, pod in self.nodes().items()}

    def launchers(self) -> list[dict[str, Any]]:
        """Returns the launcher's pods, those of earlier attempts first."""
        found = self.get("pods", "-l", f"job-name={NAME}")
        return sorted(found, key=lambda pod: pod["metadata"]["creationTimestamp"])

    def log(self) -> str:
        """Returns what the launcher said so far."""
        return self.kubectl("logs", "-l", f"job-name={NAME}", f"--namespace={self.space}", "--tail=-1")

    def status(self) -> dict[str, Any]:
        """Returns what the job's Service says of it."""
        (service,) = self.get("services", "-l", JOB_LABEL)
        return dict(json.loads(service["metadata"]["annotations"][STATUS]))

    def wait(self, timeout: float = LONG) -> int:
        """Waits until a launcher has ended by itself, and returns its exit code."""

        def codes() -> list[int]:
            statuses = [one for pod in self.launchers() for one in pod["status"].get("containerStatuses") or ()]
            return [one["state"]["terminated"]["exitCode"] for one in statuses if "terminated" in one["state"]]

        return until(lambda: codes() or None, "the launcher's end", timeout)[-1]


@contextmanager
def staged(folder: Path, purpose: str, level: str = "restricted") -> Iterator[Stage]:
    """Makes a namespace with a service account for the launcher, and leaves nothing of it.

    Args:
        folder: The test's own.
        purpose: What the namespace's name begins with.
        level: The Pod Security Standard of its pods.
    """
    kubectl = Kubectl(PLACES, cluster.running(PLACES).programs)
    folder.chmod(0o777)  # pods have users of their own
    with pods.namespace(kubectl, purpose, level) as space:
        stage = Stage(kubectl, space, folder)
        stage.apply(*volumes.volumes(space, [folder], writable=True))
        rbac = "rbac.authorization.k8s.io"
        stage.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME}},
            {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": {"name": NAME}, "rules": RULES},
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "RoleBinding",
                "metadata": {"name": NAME},
                "roleRef": {"apiGroup": rbac, "kind": "Role", "name": NAME},
                "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": space}],
            },
        )
        try:
            yield stage
        finally:
            with contextlib.suppress(ClusterError):  # where it never began
                print(stage.log())  # pytest shows it beside what failed
