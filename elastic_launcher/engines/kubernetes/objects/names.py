"""The identity of a job in a cluster, and the names of its objects.

Invariants: every attempt of a pipeline step gives the same id, two steps of a run or two iterations of a loop never do;
and every name is one that the API server takes for each of the objects, a Service included.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PREFIX = "elastic-launcher/"
"""What our labels and annotations start with."""
JOB_LABEL = PREFIX + "job"
NODE_LABEL = PREFIX + "node"
KIND_LABEL = PREFIX + "quota"
"""Says of a node whether it was made within the job's guarantee or above it, where its template tells them apart."""
COORDINATOR_LABEL = PREFIX + "coordinator"

ELASTIC_LABEL = "elastic"
"""Of the launcher's own pod, as Run:AI's ``--elastic`` sets it; the pod's annotation says how many nodes."""
NODES_ANNOTATION = PREFIX + "nodes"
STEP_VARIABLE = "KFP_POD_NAME"
"""Names its pod in every step of a Kubeflow pipeline."""
POD_VARIABLE = "POD_NAME"
"""Names the launcher's own pod where its host name does not, as with ``hostNetwork``, or with a long name."""

RUN_LABEL = "pipeline/runid"
"""Kubeflow's id of a run: it outlives the Workflow, which a run that is retried late gets a second time."""
NODE_NAME = "workflows.argoproj.io/node-name"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"

SCHEME = "job/"
"""What the argument of a command begins with that names a job of a cluster."""

_ATTEMPT = re.compile(r"\(\d+\)")
"""In a Workflow's node names: (0) counts attempts, while (0:x) is the iteration of a loop."""
_LONGEST_PREFIX = 30
_DIGEST_CHARACTERS = 12
"""60 bits: one in a billion that two of 50 000 jobs of a namespace meet."""


@dataclass(frozen=True, slots=True)
class JobName:
    """The name of a job in a cluster.

    Attributes:
        namespace: Where it is; "" for the one that is meant where none is named.
        name: Its id, the beginning of that, or the name of what its launcher belongs to.
    """

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Owner:
    """The object that everything of a job belongs to, and goes with, such as a Workflow."""

    api_version: str
    kind: str
    name: str
    uid: str

    def reference(self) -> dict[str, Any]:
        """Returns what an object says of it in ``metadata.ownerReferences``."""
        return {"apiVersion": self.api_version, "kind": self.kind, "name": self.name, "uid": self.uid}


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a job's objects, from its id."""

    job_id: str

    @property
    def service(self) -> str:
        """The Service by which nodes find the coordinator; status and term are among its annotations."""
        return self.job_id

    @property
    def secret(self) -> str:
        """The Secret with the job's key."""
        return f"{self.job_id}-key"

    @property
    def selector(self) -> str:
        """The label selector of the job's Jobs and pods."""
        return f"{JOB_LABEL}={self.job_id}"

    def node(self, node: int) -> str:
        """The Job of a node."""
        return f"{self.job_id}-{node}"


def job_id(run: str, task: str = "", iteration: str = "", name: str = "") -> str:
    """Returns a job's id, a DNS label with room for what names add to it.

    Args:
        run: What stays the same over all attempts and differs between runs.
        task: Which of the run's steps it is.
        iteration: Which iteration of a loop it is.
        name: What people call it, for the id's beginning.
    """
    digest = hashlib.sha256(json.dumps([run, task, iteration]).encode()).digest()
    mark = base64.b32encode(digest).decode().lower()[:_DIGEST_CHARACTERS]
    # a Service's name starts with a letter
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).lstrip("-0123456789")[:_LONGEST_PREFIX].rstrip("-")
    return f"{words or 'job'}-{mark}"


def job_id_of(pod: Mapping[str, Any], name: str = "") -> str:
    """Returns the id of the job whose coordinator runs in a pod.

    Args:
        pod: The pod, of a Workflow, of a Job, or on its own.
        name: What people call the job.
    """
    metadata = pod["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    run = labels.get(RUN_LABEL) or owner_of(pod).uid
    return job_id(run, _ATTEMPT.sub("", annotations.get(NODE_NAME, "")), labels.get(INDEX_LABEL, ""), name)


def owner_of(pod: Mapping[str, Any]) -> Owner:
    """Returns what a pod is controlled by; the pod itself where nothing does."""
    metadata = pod["metadata"]
    for one in metadata.get("ownerReferences") or ():
        if one.get("controller"):
            return Owner(one["apiVersion"], one["kind"], one["name"], one["uid"])
    return Owner("v1", "Pod", metadata["name"], metadata["uid"])
