"""Checks a job's nodes before there is a launcher, independent of the cluster."""

from __future__ import annotations

from elastic_launcher.config import NO_GPUS, JobConfig
from elastic_launcher.engines.kubernetes.objects.mounts import check_places
from elastic_launcher.engines.kubernetes.objects.pod import Shape, node_pod
from elastic_launcher.engines.kubernetes.objects.template import read_template
from elastic_launcher.options import ConfigError, holds_text

_ANY_IMAGE = "image"
"""Stands for the launcher's own."""


def check_pod_template(config: JobConfig) -> None:
    """Refuses a pod template of which no node could be made; one that is a file, the launcher reads.

    Raises:
        ConfigError: If it is none, or does not go with the other options.
    """
    if config.engine != "kubernetes" or config.pod_template is None or not holds_text(config.pod_template):
        return
    gpus = 0 if config.gpu_resource == NO_GPUS else config.nproc_per_node
    shape = Shape(config.node_image or _ANY_IMAGE, ["agent"], {}, gpus=gpus, resource=config.gpu_resource)
    try:
        pod = node_pod(read_template(config.pod_template), shape, {}, {})
    except ConfigError as error:
        raise ConfigError(f"--pod-template: {error}") from error
    check_places(config, pod)
