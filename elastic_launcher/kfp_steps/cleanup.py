"""The body of ``elastic_cleanup``: ends the nodes that a run has left behind.

Invariants: only Jobs with the run's label are deleted; a job whose coordinator lives is left to that, which ends its
nodes itself (otherwise it would recreate them); and the run's reported outcome is not used, since it may be wrong.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from elastic_launcher.config import ExitCode
from elastic_launcher.engines.kubernetes.objects.names import COORDINATOR_LABEL, JOB_LABEL, RUN_LABEL
from elastic_launcher.kfp_steps.own_pod import is_step, own_pod, run_of
from elastic_launcher.kube.api import CONFLICT, NOT_FOUND, Api, ApiError, insist, items_of
from elastic_launcher.kube.login import Login, log_in
from elastic_launcher.options import ConfigError
from elastic_launcher.pipeline_step import StepFailed, say

LOOK_SECONDS = 2.0
"""Between looks at whether a coordinator has ended."""
ALIVE = ("Pending", "Running")


def cleanup_step(run_id: str, wait_seconds: float, clock: Callable[[], float] = time.monotonic) -> int:
    """Deletes the run's Jobs; returns how many. Where no backend runs the step, there are none.

    Args:
        run_id: The run; "" for that of the step's own pod.
        wait_seconds: How long a coordinator that still lives is waited for.
        clock: Monotonic seconds.

    Raises:
        StepFailed: If it is not known which run, or the cluster refuses.
    """
    run_id = run_id.strip()
    if not run_id and not is_step():  # kfp.local, where a run's nodes are processes that end with their launcher
        say("this run is not in a cluster: there are no nodes to end")
        return 0
    try:
        login = log_in()
        run = run_id or run_of(own_pod(login))
        if not run:
            raise ConfigError(f"the step's pod has no label {RUN_LABEL}: give run_id")
        return asyncio.run(_clean(login, run, wait_seconds, clock))
    except (ConfigError, ApiError) as error:
        raise StepFailed(f"elastic_cleanup: {error}", ExitCode.LAUNCHER_FAILED) from error


async def _clean(login: Login, run: str, wait_seconds: float, clock: Callable[[], float]) -> int:
    jobs = f"/apis/batch/v1/namespaces/{login.namespace}/jobs"
    pods = f"/api/v1/namespaces/{login.namespace}/pods"
    until = clock() + wait_seconds
    deleted = 0
    async with Api(login) as api:
        while True:
            # the query guarantees it: nothing without the run's label is ever seen here
            found = await _listed(api, jobs, f"{RUN_LABEL}={run},{JOB_LABEL}")
            governed = await _governed(api, pods) if found else set()
            for job in found:
                if job["metadata"]["labels"][JOB_LABEL] not in governed and not job["metadata"].get(
                    "deletionTimestamp"
                ):
                    deleted += await _delete(api, jobs, job)
            left = {name for job in found if (name := job["metadata"]["labels"][JOB_LABEL]) in governed}
            if not left:
                say(f"run {run}: {deleted} nodes were left, and are ended")
                return deleted
            if clock() >= until:
                names = ", ".join(sorted(left))
                say(f"run {run}: {deleted} nodes were left; the launcher of {names} lives, and keeps its nodes")
                return deleted
            await asyncio.sleep(LOOK_SECONDS)


async def _listed(api: Api, path: str, selector: str) -> Sequence[Mapping[str, Any]]:
    return items_of(await insist(lambda: api.request("GET", path, query={"labelSelector": selector})))


async def _governed(api: Api, pods: str) -> set[str]:
    """Returns the jobs whose coordinator's pod lives."""
    found = await _listed(api, pods, COORDINATOR_LABEL)
    return {
        one["metadata"]["labels"][COORDINATOR_LABEL]
        for one in found
        if (one.get("status") or {}).get("phase") in ALIVE and not one["metadata"].get("deletionTimestamp")
    }


async def _delete(api: Api, jobs: str, job: Mapping[str, Any]) -> int:
    metadata = job["metadata"]
    # this very one: a launcher that is back may have made another of its name
    options = {"propagationPolicy": "Background", "preconditions": {"uid": metadata["uid"]}}
    try:
        await insist(lambda: api.request("DELETE", f"{jobs}/{metadata['name']}", options))
    except ApiError as error:
        if error.status not in (NOT_FOUND, CONFLICT):
            raise
        return 0
    return 1
