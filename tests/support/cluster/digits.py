"""The sample that trains the digits as a Job, as this cluster can run it.

What is replaced in ``manifests/samples/digits``, and why: the image, since there is no registry to push the project's
own to, so that Python comes through the tests' volumes, and with it the commands, which that image does not hold, and
the user, which it does not name; the namespaces, which are the test's alone; the script, by one that runs it smaller.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.machine import volumes
from tests.cluster.machine.image import TEST
from tests.cluster.machine.node import REPOSITORY
from tests.support.cluster import pods
from tests.support.manifests import MANIFESTS, generated, objects

SAMPLE = MANIFESTS / "samples" / "digits"
SCRIPT = REPOSITORY / "pipelines" / "digits_elastic" / "train_digits.py"
IMAGES = 1347  # that are trained on
EPOCHS = 8
HELD = (1, 4)
"""Epochs at whose beginning the training stands still until the test has acted."""
HOLD = "hold-{}"
COMMANDS = {
    "python3": [f"{sys.prefix}/bin/python"],
    "elastic-launcher": [f"{sys.prefix}/bin/python", "-P", "-m", "elastic_launcher"],
}
SMALLER = f"""
import time
from pathlib import Path

import elastic_launcher.torch as elastic
import torch
import train_digits

epochs = elastic.Job.epochs

def held(job, total):
    for epoch in epochs(job, total):
        while job.rank is not None and Path("/work", {HOLD!r}.format(epoch)).exists():
            time.sleep(0.05)
        yield epoch

elastic.Job.epochs = held
train_digits.EPOCHS, train_digits.WIDTH = {EPOCHS}, 4
torch.set_num_threads(1)  # several would wait for each other on a busy machine
train_digits.main()
"""


def run_here(spec: dict[str, Any], containers: list[dict[str, Any]]) -> None:
    """Has a pod run on the tests' image.

    Args:
        spec: The pod's; changed.
        containers: Those of it that are to run there.
    """
    shown, mounts = volumes.pod_volumes(pods.FOLDERS)
    spec["securityContext"] |= {"runAsUser": pods.UID}
    spec["volumes"] += shown
    for one in containers:
        one |= {"image": TEST, "imagePullPolicy": "Never", "volumeMounts": one["volumeMounts"] + mounts}
        one["env"] = [*one.get("env", ()), {"name": "PYTHONPATH", "value": str(REPOSITORY)}]
        if "command" in one:
            one["command"] = [*COMMANDS[one["command"][0]], *one["command"][1:]]


def sample(space: str, quota: str, work: Path) -> list[dict[str, Any]]:
    """Returns the sample's objects, and the volume that its claim asks for.

    Args:
        space: The job's namespace.
        quota: The namespace of the hints.
        work: A folder, seen as ``/work`` by the job.
    """
    (job,) = objects(SAMPLE, "Job")
    (claim,) = objects(SAMPLE, "PersistentVolumeClaim")
    pod = job["spec"]["template"]["spec"]
    run_here(pod, [*pod["initContainers"], *pod["containers"]])
    told = pod["containers"][0]["command"]
    pod["containers"][0]["command"] = [
        one.replace("configmap/quota/", f"configmap/{quota}/").replace(SCRIPT.name, "smaller.py") for one in told
    ]
    files = {path.name: path.read_text() for path in generated(SAMPLE)["digits-files"]}
    node = yaml.safe_load(files["node.yaml"])
    run_here(node["spec"], node["spec"]["containers"])
    files["node.yaml"] = json.dumps(node)
    scripts = {SCRIPT.name: SCRIPT.read_text(), "smaller.py": SMALLER}
    found = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "digits-files"}, "data": files},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "digits-script"}, "data": scripts},
        claim,
        job,
    ]
    return [_volume(space, work), *({**one, "metadata": {**one["metadata"], "namespace": space}} for one in found)]


def overlay(name: str, here: str, space: str) -> list[dict[str, Any]]:
    """Returns an overlay's objects for another namespace, as a kustomization of one's own would make them.

    Args:
        name: The overlay.
        here: The namespace that they are for.
        space: The namespace of the job, which bindings name.
    """
    found = objects(MANIFESTS / "overlays" / name)
    for one in found:
        one["metadata"]["namespace"] = here
        for subject in one.get("subjects", ()):
            subject["namespace"] = space
    return found


def _volume(space: str, work: Path) -> dict[str, Any]:
    """Returns a volume for the sample's claim, where a storage class would have made one."""
    (volume, _) = volumes.volumes(space, [work], writable=True)
    volume["spec"]["claimRef"]["name"] = "digits"
    del volume["spec"]["storageClassName"]
    return volume
