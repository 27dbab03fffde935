"""Checks whether others can see what a node writes at a path, or its pod alone has the volume.

Invariant: only what is certain is refused. A claim may be the wrong one, and a webhook may add what the template lacks:
the node itself finds that out.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from elastic_launcher.checkpoint.landmark import MEND
from elastic_launcher.config import JobConfig
from elastic_launcher.engines.kubernetes.objects.template import node_container
from elastic_launcher.options import ConfigError

_OWN = ("emptyDir", "ephemeral")
"""Volumes that come and go with a pod."""
_FIXED = ("configMap", "secret", "downwardAPI", "projected", "image")
"""Volumes that no pod writes to."""


def check_places(config: JobConfig, pod: Mapping[str, Any]) -> None:
    """Refuses a job whose nodes, by their complete pod template, can't keep what they save.

    Raises:
        ConfigError: If that is certain.
    """
    for option, place in (("--checkpoint-dir", config.checkpoint_dir), ("--output", config.output)):
        if place and place.startswith("/") and (trouble := trouble_at(place, pod)):
            raise ConfigError(f"{option} is {place}: {trouble}; {MEND}")


def trouble_at(path: str, pod: Mapping[str, Any]) -> str:
    """Returns why a node's pod can't keep what others are to read at a path, as far as that is certain; else "".

    The path is absolute, the pod's template complete.
    """
    mount = _mount_of(posixpath.normpath(path), pod["spec"]["containers"][node_container(pod)])
    if mount is None:
        return ""
    volume: Mapping[str, Any] = next(
        (one for one in pod["spec"].get("volumes") or () if one["name"] == mount["name"]), {}
    )
    where = f"volume {mount['name']} of the nodes' pods, mounted at {mount['mountPath']},"
    for kind in _OWN:
        if kind in volume:
            return f"{where} is of the kind {kind}: each pod has its own, which goes with it"
    for kind in _FIXED:
        if kind in volume:
            return f"{where} is of the kind {kind}, to which nobody can write"
    if mount.get("readOnly") or (volume.get("persistentVolumeClaim") or {}).get("readOnly"):
        return f"{where} is read-only"
    return ""


def _mount_of(path: str, container: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the mount that a path lies in: the innermost one."""
    mounts = {
        posixpath.normpath(posixpath.join("/", one["mountPath"])): one for one in container.get("volumeMounts") or ()
    }
    found = [place for place in mounts if posixpath.commonpath([path, place]) == place]
    return mounts[max(found, key=len)] if found else None
