"""Plans the nodes of one job, from the user's template, the launcher's own pod and the options."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from elastic_launcher import variables
from elastic_launcher.config import NO_GPUS, JobConfig
from elastic_launcher.engines.kubernetes.leadership.bootstrap import PORTS, ClusterContext
from elastic_launcher.engines.kubernetes.nodes.pod_status import QUEUE_LABELS
from elastic_launcher.engines.kubernetes.objects.job import JobPlan
from elastic_launcher.engines.kubernetes.objects.mounts import check_places
from elastic_launcher.engines.kubernetes.objects.pod import Shape, node_pod
from elastic_launcher.engines.kubernetes.objects.template import Document, node_container, read_template
from elastic_launcher.options import ConfigError, holds_text

NODE_USER = 65532
"""Uid of nodes whose launcher is root, which *restricted* nodes may not be."""
LEAST_GRACE = 30
"""Seconds, the cluster's own default: saving and leaving take as long as they take."""


def given_template(config: JobConfig) -> Document:
    """Returns the pod template that a job was given; one that says nothing where it was given none.

    Raises:
        ConfigError: If it can't be read, or is none.
    """
    if config.pod_template is None:
        return {"metadata": {}, "spec": {}}
    return load_template(config.pod_template, "--pod-template")


def with_queue(config: JobConfig) -> JobConfig:
    """Returns a job that is matched by the queue of its nodes, unless it says another one.

    Raises:
        ConfigError: If its pod template can't be read, or is none.
    """
    labels = given_template(config)["metadata"].get("labels") or {}
    queue = next((labels[name] for name in QUEUE_LABELS if name in labels), "")
    if not queue or "queue" in config.match:
        return config
    return replace(config, match={**config.match, "queue": str(queue)})


def load_template(given: str, option: str) -> Document:
    """Returns a pod template that is given as a file or as a text.

    Args:
        given: Which of the two.
        option: What messages call it.

    Raises:
        ConfigError: If it can't be read, or is none.
    """
    source = _source(given, option)
    try:
        return read_template(given if holds_text(given) else Path(given).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source} can't be read: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def template_source(config: JobConfig) -> str:
    """Returns where the nodes' pod comes from, as messages name it."""
    if config.pod_template is None:
        return "--engine kubernetes"
    return _source(config.pod_template, "--pod-template")


def _source(given: str, option: str) -> str:
    return option if holds_text(given) else f"{option} {given}"


def make_plan(
    config: JobConfig,
    template: Document,
    context: ClusterContext,
    address: str = "",
    key: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> JobPlan:
    """Returns what a job's nodes are made from.

    Args:
        config: The job.
        template: Its pod template.
        context: What the launcher has found in the cluster.
        address: Of the coordinator's Service; empty where there is none yet.
        key: The job's key; None where nodes find it in its Secret.
        environment: The launcher's own variables.

    Raises:
        ConfigError: If the template's pod can't keep what is saved.
    """
    default = config.node_image or context.image
    image = _image_of(template) or default
    # another image has its Python elsewhere
    python = sys.executable if image == context.image else "python3"
    shape = Shape(
        image=default,
        command=[python, "-P", "-m", "elastic_launcher.agent"],
        environment={
            "PYTHONUNBUFFERED": "1",
            variables.CONTROL: f"http://{address}:{PORTS['control']}",
            variables.ORPHAN_TIMEOUT: f"{config.orphan_timeout:g}",
            **config.environment(),
            **({variables.FAULT: environment[variables.FAULT]} if variables.FAULT in environment else {}),
        },
        key=key,
        key_secret=context.names.secret,
        gpus=0 if config.gpu_resource == NO_GPUS else config.nproc_per_node,
        resource=config.gpu_resource,
        grace_seconds=max(LEAST_GRACE, math.ceil(config.grace_period)),
        # another image has a user of its own, and may be readable to that one only
        run_as_user=os.getuid() or (NODE_USER if image == context.image else None),
        fs_group=_group_of_volumes(context),
        launcher=os.getuid(),
        groups=sorted({os.getgid(), *os.getgroups()}),
        pull_secrets=context.pod["spec"].get("imagePullSecrets") or (),
    )
    check_places(config, node_pod(template, shape, {}, {}))
    return JobPlan(context.names, context.owner, template, shape)


def _group_of_volumes(context: ClusterContext) -> int | None:
    """Returns the group that nodes' volumes are given to: one of a root launcher's, since its nodes are another user.

    It has no more rights there than its groups give it: Kubeflow drops all capabilities of a step, root's too.
    """
    if os.getuid():
        return None
    given: int | None = (context.pod["spec"].get("securityContext") or {}).get("fsGroup")
    return os.getgid() if given is None else given


def _image_of(template: Document) -> str:
    containers = template["spec"].get("containers") or [{}]
    return str(containers[node_container(template)].get("image", ""))
