"""Asks the API server in a dry run whether it would accept a node's Job."""

from __future__ import annotations

from elastic_launcher.engines import NodeSpec
from elastic_launcher.engines.kubernetes.nodes.pod_status import BAD_DOCUMENT, refused_for_now
from elastic_launcher.engines.kubernetes.objects.job import JobPlan, node_job
from elastic_launcher.engines.kubernetes.objects.template import QUOTA_KINDS, has_kinds
from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.options import ConfigError

DRY = {"dryRun": "All", "fieldValidation": "Strict"}
WEBHOOK_FAILED = 500
"""Or the server itself, which then says no more of it when it is asked again."""
_OF_THE_JOB = "spec.template."


async def try_out(api: Api, namespace: str, plan: JobPlan, source: str) -> None:
    """Has the API server look at a Job of each kind that nodes will have; the user would have to change ``source``.

    Raises:
        ConfigError: If the Job can't be one, with the path of what is wrong with it.
        ApiError: If the server does not answer.
    """
    if not has_kinds(plan.template):
        await _try_node(api, namespace, plan, NodeSpec(1, 1, 1), source)
        return
    for over_quota, kind in enumerate(QUOTA_KINDS):
        spec = NodeSpec(1, 1, 1, over_quota=bool(over_quota))
        await _try_node(api, namespace, plan, spec, f"{source}, with its section {kind}")


async def _try_node(api: Api, namespace: str, plan: JobPlan, spec: NodeSpec, source: str) -> None:
    try:
        job = node_job(plan, spec)
        await api.request("POST", f"/apis/batch/v1/namespaces/{namespace}/jobs", job, DRY)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    except ApiError as error:
        if error.away and error.status != WEBHOOK_FAILED:
            raise
        said = " ".join(str(error).split())
        if error.status in BAD_DOCUMENT and not refused_for_now(error.status, said):
            raise ConfigError(
                f"{source}: the API server refuses the nodes' pods: {said.replace(_OF_THE_JOB, '')}"
            ) from error
