"""What the nodes of one job are made from: the user's template, and what this launcher's own pod and options say."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from elastic_launcher.checkpoint.landmark import MEND
from elastic_launcher.checkpoint.storage import is_url
from elastic_launcher.config import JobConfig
from elastic_launcher.engines.kubernetes.job import JobPlan
from elastic_launcher.engines.kubernetes.mounts import trouble_at
from elastic_launcher.engines.kubernetes.pod import Shape, node_pod
from elastic_launcher.engines.kubernetes.settle import PORTS, Settled
from elastic_launcher.engines.kubernetes.template import Document, node_container, read_template
from elastic_launcher.engines.local import FAULT
from elastic_launcher.options import ConfigError

NO_GPUS = "none"
LEAST_GRACE = 30
"""Seconds, the cluster's own default: saving and leaving take as long as they take."""


def make_plan(config: JobConfig, settled: Settled, environment: Mapping[str, str] = os.environ) -> JobPlan:
    """Returns what a job's nodes are made from.

    Args:
        config: The job.
        settled: What the launcher has in the cluster.
        environment: Its own variables.

    Raises:
        ConfigError: If the pod template can't be read, or be made a node's pod that can keep what is saved.
    """
    template: Document = {"metadata": {}, "spec": {}}
    if config.pod_template is not None:
        try:
            template = read_template(Path(config.pod_template).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--pod-template {config.pod_template} can't be read: {error}") from error
    default = config.node_image or settled.image
    image = _image_of(template) or default
    # another image has its Python elsewhere
    python = sys.executable if image == settled.image else "python3"
    shape = Shape(
        image=default,
        command=[python, "-P", "-m", "elastic_launcher.agent"],
        environment={
            "PYTHONUNBUFFERED": "1",
            "ELASTIC_CONTROL": f"http://{settled.record.address}:{PORTS['control']}",
            "ELASTIC_ORPHAN_TIMEOUT": f"{config.orphan_timeout:g}",
            **config.environment(),
            **({FAULT: environment[FAULT]} if FAULT in environment else {}),
        },
        key=None if settled.in_secret else settled.key,
        key_secret=settled.names.secret,
        gpus=0 if config.gpu_resource == NO_GPUS else config.nproc_per_node,
        resource=config.gpu_resource,
        grace_seconds=max(LEAST_GRACE, math.ceil(config.grace_period)),
        run_as_user=os.getuid() or None,
    )
    pod = node_pod(template, shape, {}, {})
    for option, place in (("--checkpoint-dir", config.checkpoint_dir), ("--output", config.output)):
        if place and not is_url(place) and (trouble := trouble_at(place, pod)):
            raise ConfigError(f"{option} is {place}: {trouble}; {MEND}")
    return JobPlan(settled.names, settled.owner, template, shape)


def _image_of(template: Document) -> str:
    containers = template["spec"].get("containers") or [{}]
    return str(containers[node_container(template)].get("image", ""))
