"""ResourceQuotas that limit the GPUs of a test's namespace."""

from __future__ import annotations

from tests.cluster.machine.places import GPU
from tests.support.cluster.stage import LONG, Stage

QUOTA = f"requests.{GPU}"


def limit(stage: Stage, gpus: int) -> None:
    """Has a ResourceQuota allow so many GPUs, and waits until it counts."""
    spec = {"hard": {QUOTA: str(gpus)}}
    stage.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}, "spec": spec})
    stage.kubectl.watch(
        "resourcequotas",
        f"--namespace={stage.space}",
        line="{.status.hard}",
        good=lambda seen: seen == f'{{"{QUOTA}":"{gpus}"}}',
        what=f"the quota of {gpus} GPUs counts",
        seconds=LONG,
    )
