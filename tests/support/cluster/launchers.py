"""Pods that stand for a job's launchers, and the job's names."""

from __future__ import annotations

from elastic_launcher.engines.kubernetes.objects.names import Names, job_id
from elastic_launcher.kube.api import Api
from tests.support.cluster.namespaces import LAUNCHER

NAMES = Names(job_id("run", name="seat"))
PORTS = {"control": 8080}


async def make_pod(api: Api, space: str, pod: str) -> None:
    await api.request("POST", f"/api/v1/namespaces/{space}/pods", {"metadata": {"name": pod}, "spec": LAUNCHER})
