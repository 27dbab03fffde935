"""``python -m tests.cluster up`` starts a real Kubernetes on this machine, ``down`` takes it away: see README.md."""

from __future__ import annotations

import argparse
import fcntl
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.machine import cluster, volumes
from tests.cluster.machine.control_plane import ControlPlane
from tests.cluster.machine.node import REPOSITORY, Node
from tests.cluster.machine.places import MOST_NODES, Places, home
from tests.cluster.machine.processes import ClusterError

OPTIONS = ("nodes", "gpus", "grace")
SIGNALS = {"stop": "SIGSTOP", "cont": "SIGCONT", "kill": "SIGKILL"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    up = commands.add_parser("up", help="start what is not running")
    up.add_argument("--nodes", type=int, choices=range(1, MOST_NODES + 1), help="how many nodes (default: 2)")
    up.add_argument("--gpus", type=int, help="GPUs that each node shows; nothing enforces them (default: 8)")
    up.add_argument(
        "--grace", type=int, help="seconds after which a silent node counts as lost (default: Kubernetes' 50)"
    )
    commands.add_parser("down", help="end everything and leave nothing")
    commands.add_parser("env", help="print what a shell needs: eval $(python -m tests.cluster env)")

    node = commands.add_parser("node", help="do something to a node")
    node.add_argument("index", type=int)
    acts = node.add_subparsers(dest="act", required=True)
    acts.add_parser("up", help="start it; after vanish: a reboot")
    acts.add_parser("cut", help="silence its network, while everything on it runs on")
    acts.add_parser("mend", help="undo a cut")
    acts.add_parser("vanish", help="end it like a power failure")
    acts.add_parser("kubelet", help="signal or start its kubelet").add_argument("what", choices=[*SIGNALS, "start"])
    acts.add_parser("exec", help="run a command on it").add_argument("argv", nargs=argparse.REMAINDER)

    api = commands.add_parser("apiserver", help="end and start the API server")
    api.add_argument("act", choices=["stop", "start", "restart"])
    given = commands.add_parser("volumes", help="print the volumes through which a namespace's pods see this Python")
    given.add_argument("namespace")
    return parser


@contextmanager
def _alone() -> Iterator[None]:
    """Lets one ``up`` or ``down`` at a time do its work."""
    folder = home("XDG_CACHE_HOME", ".cache")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _node(places: Places, args: argparse.Namespace) -> int:
    node = Node(places, cluster.running(places), args.index)
    match args.act:
        case "up":
            node.start()
        case "cut":
            node.cut()
        case "mend":
            node.mend()
        case "vanish":
            node.vanish()
        case "kubelet":
            node.kubelet(SIGNALS.get(args.what, args.what))
        case "exec":
            return subprocess.run(node.command(*args.argv), check=False).returncode
    return 0


def _api_server(places: Places, act: str) -> None:
    plane = ControlPlane(places, cluster.running(places))
    if act != "start":
        plane.api_server.end()
    if act != "stop":
        plane.start_api_server()


def _environment(places: Places) -> None:
    print(f"export KUBECONFIG={places.kubeconfig}")
    print(f"export PATH={cluster.running(places).programs}:$PATH")


def main() -> int:
    """Runs one command."""
    args = _parser().parse_args()
    places = Places.default()
    try:
        if args.command not in ("env", "volumes"):
            cluster.check_machine()
        match args.command:
            case "up":
                with _alone():
                    cluster.up(
                        places, **{name: getattr(args, name) for name in OPTIONS if getattr(args, name) is not None}
                    )
                _environment(places)
            case "down":
                with _alone():
                    cluster.down(places)
            case "env":
                _environment(places)
            case "volumes":
                items = volumes.volumes(args.namespace, volumes.python_folders(REPOSITORY))
                print(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1))
            case "node":
                return _node(places, args)
            case "apiserver":
                _api_server(places, args.act)
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
