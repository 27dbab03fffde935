"""Pods that take the GPUs of the machines, so that a test says how many are free."""

from __future__ import annotations

from tests.cluster.machine.kubectl import Kubectl
from tests.support.cluster import pods

IDLE = ("-c", "import signal; signal.pause()")
LATER = "later"


def fill(kubectl: Kubectl, space: str, *free: int, later: int = 0) -> None:
    """Takes all GPUs but some.

    Args:
        kubectl: The cluster.
        space: A namespace for the pods that take them; taints don't drive them away.
        *free: How many are free on each machine, in order; none where that is not said.
        later: How many more come free on the first machine when pod ``later`` is deleted.
    """
    shown = kubectl("get", "nodes", "-o", r"jsonpath={range .items[*]}{.status.allocatable.nvidia\.com/gpu} {end}")
    wanted = {LATER: (0, later)} if later else {}
    for machine, count in enumerate(map(int, shown.split())):
        left = (free[machine] if machine < len(free) else 0) + (later if machine == 0 else 0)
        wanted[f"filler-{machine}"] = (machine, count - left)
    for name, (machine, gpus) in wanted.items():
        kubectl.apply(idle_pod(space, name, gpus, machine))
    for name in wanted:
        pods.wait(kubectl, space, name, "{.status.phase}", ["Running"])


def idle_pod(space: str, name: str, gpus: int, machine: int) -> dict[str, object]:
    """Returns a pod that takes GPUs of one machine, whatever its taints are."""
    pod = pods.python_pod(space, name, *IDLE, node=machine, gpus=gpus)
    pod["spec"]["tolerations"] = [{"operator": "Exists"}]
    pod["spec"]["terminationGracePeriodSeconds"] = 1  # the first process of a pod is deaf to SIGTERM
    return pod
