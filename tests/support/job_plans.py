"""A launcher in a cluster, and configurations for its nodes."""

from __future__ import annotations

from typing import Any

from elastic_launcher.config import JobConfig
from elastic_launcher.engines.kubernetes.leadership.bootstrap import ClusterContext
from elastic_launcher.engines.kubernetes.objects.names import Names, job_id_of, owner_of

POD: dict[str, Any] = {
    "metadata": {"name": "step-0", "uid": "u-0", "namespace": "ml", "ownerReferences": []},
    "spec": {"containers": [{"name": "main", "image": "registry/step:1"}]},
}
CONTEXT = ClusterContext("ml", POD, owner_of(POD), Names(job_id_of(POD, "digits")), [], [])


def config_of(**settings: Any) -> JobConfig:
    return JobConfig(script="train.py", engine="kubernetes", checkpoint_dir="/claim", **settings)
