"""The cables between the host and the nodes: one bridge of the host, on which each node has a port.

Nothing else of the host is touched, neither iptables nor forwarding: nodes route to each other's pods by themselves.
"""

from __future__ import annotations

from pathlib import Path

from tests.cluster.machine.places import HOST_ADDRESS, HOST_MAC, MOST_NODES, NodePlaces, Places
from tests.cluster.machine.processes import run

BRIDGE = "elastic-lan"


def _exists(link: str) -> bool:
    return Path("/sys/class/net", link).exists()


def neighbours(places: Places, device: str, own: int | None = None) -> None:
    """Makes the nodes and their pods reachable through a device.

    The addresses of neighbours are fixed: else the kernel says "no route to host" for a dead one within seconds, where
    a real network would be silent.

    Args:
        places: The cluster's.
        device: The bridge, or a node's own end of its cable.
        own: The index of the node that this is; None for the host.
    """
    for node in (NodePlaces(places, index) for index in range(MOST_NODES) if index != own):
        run("ip", "neigh", "replace", node.address, "lladdr", node.mac, "dev", device, "nud", "permanent")
        run("ip", "route", "replace", node.pod_range, "via", node.address, "dev", device)


def provide(places: Places) -> None:
    """Sets the bridge up, unless it is there."""
    if not _exists(BRIDGE):
        run("ip", "link", "add", BRIDGE, "address", HOST_MAC, "type", "bridge")
    run("ip", "addr", "replace", f"{HOST_ADDRESS}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    neighbours(places, BRIDGE)


def remove() -> None:
    """Takes the bridge away, and with it every address and route."""
    if _exists(BRIDGE):
        run("ip", "link", "del", BRIDGE)


def plug(node: NodePlaces, pid: int) -> None:
    """Lays a cable from the bridge to the network namespace of a process."""
    unplug(node)
    run("ip", "link", "add", node.link, "type", "veth", "peer", "name", "eth0", "address", node.mac, "netns", str(pid))
    run("ip", "link", "set", node.link, "master", BRIDGE, "up")


def unplug(node: NodePlaces) -> None:
    """Removes a node's cable, if there is one."""
    if _exists(node.link):
        run("ip", "link", "del", node.link)


def cut(node: NodePlaces) -> None:
    """Takes a node's cable off the bridge. Its link stays up: like a switch that died, not like a pulled cable."""
    run("ip", "link", "set", node.link, "nomaster")


def mend(node: NodePlaces) -> None:
    """Puts a node's cable back."""
    run("ip", "link", "set", node.link, "master", BRIDGE)
