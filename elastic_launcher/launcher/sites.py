"""The interface to where a job's nodes live, and its implementation for this machine."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Protocol

from elastic_launcher.config import JobConfig
from elastic_launcher.coordinator.runtime.endpoints import CoordinatorHost
from elastic_launcher.coordinator.runtime.platform import Platform
from elastic_launcher.engines import Engine, NodeSpec
from elastic_launcher.engines.adopted import FoundNode
from elastic_launcher.engines.local import LocalEngine
from elastic_launcher.host import processes
from elastic_launcher.host.machine import cores, gpus, threads_per_rank
from elastic_launcher.options import ConfigError
from elastic_launcher.report.words import plural
from elastic_launcher.workdir import Past, WorkDir

KILL_PATIENCE = 1.0
"""Seconds for killed processes to be gone after a second Ctrl-C; the kernel ends what is left without us."""


class Site(Protocol):
    """The place where the nodes of one job live.

    Attributes:
        engine: Creates and ends them.
        home: The coordinator's addresses and files there.
        remarks: Remarks for the user, a line each.
        platform: Knows what the platform does to the launcher; None where it runs by itself.
    """

    engine: Engine
    home: CoordinatorHost
    remarks: Sequence[str]
    platform: Platform | None

    def past(self, past: Past) -> Past:
        """Returns what earlier launchers have used up, which the site may know better than the work directory."""

    def find(self) -> Sequence[NodeSpec]:
        """Returns the nodes that an earlier launcher has left."""

    def living(self) -> Collection[int]:
        """Returns which of these still live; it never waits."""

    def take(self) -> Collection[int]:
        """Hands them to the engine, which then reports their ends, and ends what is left of others; returns them."""

    def end_leftovers(self) -> None:
        """Ends all that an earlier launcher has left."""

    def close(self) -> None:
        """Releases the nodes, as the launcher ends."""

    def kill_all(self, nodes: Collection[int]) -> None:
        """Ends all nodes at once, without the coordinator."""


class LocalSite:
    """This machine (see `Site`)."""

    def __init__(self, config: JobConfig, work_dir: WorkDir) -> None:
        self._work_dir = work_dir
        self._found: Sequence[FoundNode] = ()
        self._local = LocalEngine(config, work_dir.layout, gpus() or None)
        self.engine: Engine = self._local
        self.home = CoordinatorHost()
        self.platform: Platform | None = None
        self.remarks: Sequence[str] = [f"each rank computes with {_threads(config)}"]

    def past(self, past: Past) -> Past:
        """Returns what the work directory says."""
        return past

    def find(self) -> Sequence[NodeSpec]:
        """Returns the nodes that an earlier launcher has left."""
        self._found = self._local.find()
        return [found.spec for found in self._found]

    def living(self) -> Collection[int]:
        """Returns which of these still live."""
        return [found.spec.node for found in self._found if not found.has_ended()]

    def take(self) -> Collection[int]:
        """Hands them to the engine; returns them."""
        self._local.adopt(self._found)
        return [found.spec.node for found in self._found]

    def end_leftovers(self) -> None:
        """Kills all processes of the work directory except this one."""
        processes.kill_until_none(str(self._work_dir.path), spare=(os.getpid(),))

    def close(self) -> None:
        """Kills what is left of the nodes."""
        self._local.close()

    def kill_all(self, nodes: Collection[int]) -> None:
        """Kills all processes of the work directory."""
        processes.kill_until_none(str(self._work_dir.path), timeout=KILL_PATIENCE)
        for node in nodes:
            self._work_dir.layout.remove_tmp(node)


def fit_gpus(config: JobConfig, found: Sequence[str]) -> tuple[JobConfig, str]:
    """Returns a job of as many nodes as this machine has GPUs for, and a remark on that.

    Where it has none, ranks train on the CPU, however many there are.

    Raises:
        ConfigError: If there are some, and too few for the fewest nodes.
    """
    most = len(found) // config.nproc_per_node
    if not found or most >= config.max_nodes:
        return config, ""
    ranks, have = plural(config.nproc_per_node, "rank"), plural(len(found), "GPU")
    if most < config.min_nodes:
        need = config.min_nodes * config.nproc_per_node
        raise ConfigError(
            f"{plural(config.min_nodes, 'node')} of {ranks} need {need} GPUs and this machine has {have}: lower MIN of "
            "--nodes, or train on the CPU, with CUDA_VISIBLE_DEVICES= before the command"
        )
    said = f"at most {plural(most, 'node')} of {ranks}, and not {config.max_nodes}: this machine has {have}"
    return replace(config, max_nodes=most), said


def _threads(config: JobConfig) -> str:
    given = os.environ.get("OMP_NUM_THREADS")
    if given is not None:
        return f"OMP_NUM_THREADS={given}, as set"
    count = cores()
    threads = threads_per_rank(count, config.max_ranks)
    return f"OMP_NUM_THREADS={threads} ({plural(count, 'core')}, at most {plural(config.max_ranks, 'rank')})"
