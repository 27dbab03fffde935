"""The whole cluster: brought up, whatever of it is there already, and taken down, leaving nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from tests.cluster.machine import build, credentials, image, lan
from tests.cluster.machine.control_plane import ControlPlane
from tests.cluster.machine.node import Node
from tests.cluster.machine.places import Places, Settings
from tests.cluster.machine.processes import ClusterError

# A kubelet sets these for the whole machine; they are put back afterwards.
SYSCTLS = [
    Path("/proc/sys", name)
    for name in (
        "vm/overcommit_memory",
        "vm/panic_on_oom",
        "kernel/panic",
        "kernel/panic_on_oops",
        "kernel/keys/root_maxkeys",
        "kernel/keys/root_maxbytes",
    )
]


def check_machine() -> None:
    """Raises ClusterError where no cluster can run."""
    if not sys.platform.startswith("linux"):
        raise ClusterError("the cluster needs Linux: its nodes are namespaces")
    if os.geteuid():
        raise ClusterError("the cluster needs root: nodes are namespaces with containers of their own; use sudo")


def running(places: Places) -> Settings:
    """Returns what the cluster was started with.

    Raises:
        ClusterError: If there is none.
    """
    if (settings := places.settings()) is None:
        raise ClusterError("there is no cluster on this machine; `make cluster` starts one")
    return settings


def up(places: Places, **options: int) -> None:
    """Brings the cluster up: starts what is not running.

    Args:
        places: Where its files go.
        **options: ``Settings`` that are to differ from those of the cluster that is there, or from the usual ones.
    """
    build.provide_packages()
    programs = build.provide_programs()
    current = places.settings()
    settings = replace(current or Settings(programs), programs=programs, **options)
    if current not in (None, settings):
        raise ClusterError("a cluster with other options or programs is there; `make cluster-down` takes it down")
    places.save(settings)
    if not (saved := places.state / "sysctls.json").exists():
        saved.write_text(json.dumps({str(path): path.read_text() for path in SYSCTLS}))
    credentials.provide(places)
    image.provide(places, settings.programs)
    lan.provide(places)
    ControlPlane(places, settings).start()
    for index in range(settings.nodes):
        Node(places, settings, index).start()
        print(f"node-{index} is up", flush=True)


def down(places: Places) -> None:
    """Takes the cluster down, if there is one; leaves nothing of it but its programs' cache and Debian's packages."""
    if (settings := places.settings()) is None:
        return
    for index in range(settings.nodes):
        Node(places, settings, index).vanish()
    ControlPlane(places, settings).end()
    lan.remove()
    for path, value in json.loads((places.state / "sysctls.json").read_text()).items():
        Path(path).write_text(value)
    shutil.rmtree(places.state)
    with contextlib.suppress(OSError):  # something else of this project may lie there
        places.state.parent.rmdir()
