"""The step of ``manifests/argo`` as a pod: what a controller of Workflows would make of its template, without one.

What is replaced, as for the sample (`digits.py`): the image, and with it command, user and the volumes of Python. What
a controller adds beside the step's own container is left out: its image is not here, and no pod of ours needs it.
"""

from __future__ import annotations

from typing import Any

from elastic_launcher.engines.kubernetes.objects.names import NODE_NAME, Owner
from tests.support.argo_templates import filled
from tests.support.cluster import digits
from tests.support.cluster.stage import NAME
from tests.support.manifests import MANIFESTS, documents

TEMPLATE = "train-on-claim"
FOLDER = "/work"
"""Where the step has its claim."""


def step_pod(given: dict[str, str], owner: Owner, attempt: int) -> dict[str, Any]:
    """Returns the pod of one attempt of the step.

    Args:
        given: The step's parameters, as a Workflow gives them.
        owner: The Workflow.
        attempt: Which one, from 0.
    """
    (whole,) = documents(MANIFESTS / "argo" / "workflow-template.yaml")
    (template,) = [one for one in whole["spec"]["templates"] if one["name"] == TEMPLATE]
    step = filled(template, given)
    container = {"name": "main", **step["container"]}
    spec = {
        "serviceAccountName": whole["spec"]["serviceAccountName"],
        "restartPolicy": "Never",
        "securityContext": step["securityContext"],
        "containers": [container],
        "volumes": step["volumes"],
    }
    digits.run_here(spec, [container])
    labels = {"workflows.argoproj.io/workflow": owner.name, "job-name": NAME}  # the latter is how a stage finds it
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{owner.name}-{TEMPLATE}-{attempt}",
            "labels": step["metadata"]["labels"] | labels,
            "annotations": step["metadata"]["annotations"] | {NODE_NAME: f"{owner.name}.{TEMPLATE}({attempt})"},
            "ownerReferences": [owner.reference() | {"controller": True}],
        },
        "spec": spec,
    }
