"""A cluster as the place where a job's nodes live (see `places.Place`)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from elastic_launcher.checkpoint.landmark import landmark_of
from elastic_launcher.checkpoint.storage import is_url
from elastic_launcher.cli.cluster_escort import ClusterEscort
from elastic_launcher.cli.code import code_of
from elastic_launcher.config import JobConfig
from elastic_launcher.coordinator.escort import Escort
from elastic_launcher.coordinator.record import past_after
from elastic_launcher.coordinator.where import Home, Where
from elastic_launcher.engines import Engine, EngineAway, NodeSpec
from elastic_launcher.engines.kubernetes.engine import KubernetesEngine
from elastic_launcher.engines.kubernetes.fleet import is_unsure
from elastic_launcher.engines.kubernetes.plan import make_plan
from elastic_launcher.engines.kubernetes.settle import PORTS, settle
from elastic_launcher.events import EventError, read_events
from elastic_launcher.hints.reference import parse_reference
from elastic_launcher.kube.api import ApiError
from elastic_launcher.kube.login import log_in
from elastic_launcher.options import ConfigError
from elastic_launcher.workdir import Past, WorkDir, note_past

EVERYWHERE = "0.0.0.0"
PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds between tries to reach the cluster when the launcher starts: its API server may just be restarted."""
BUSY = 429
T = TypeVar("T")


class ClusterPlace:
    """The namespace of the launcher's own pod.

    Args:
        config: The job.
        work_dir: Its work directory, which nodes don't see.
        directory: Where the script's path starts.

    Raises:
        ConfigError: If the launcher runs in no pod, or its role may not do what is needed.
        EngineAway: If the cluster can't be reached.
    """

    def __init__(self, config: JobConfig, work_dir: WorkDir, directory: Path) -> None:
        code = code_of(config.script, directory)
        login = log_in()
        reference = parse_reference(config.hints) if config.hints is not None else None
        hints = (reference.namespace or login.namespace, reference.name) if reference is not None else None
        settled = insist(lambda: asyncio.run(settle(login, config.name, hints)))
        self._settled = settled
        self._work_dir = work_dir
        self._cluster = KubernetesEngine(login, settled.namespace, make_plan(config, settled))
        self._found: Sequence[NodeSpec] = ()
        self.engine: Engine = self._cluster
        self._escort = ClusterEscort(login, settled, self._cluster, work_dir.layout)
        self.escort: Escort | None = self._escort
        where = Where(EVERYWHERE, settled.record.address, PORTS["control"], PORTS["store"])
        key, place = bytes.fromhex(settled.key), str(config.checkpoint_dir)
        landmark = None if is_url(place) else landmark_of(settled.names.job_id, key)
        self.home = Home(where, key, code, landmark)
        self.remarks: Sequence[str] = [
            f"job {settled.names.job_id} in namespace {settled.namespace}, owned by {settled.owner.kind} "
            f"{settled.owner.name}; its coordinator is at Service {settled.names.service} ({settled.record.address})",
            *([settled.lacking] if settled.lacking else []),
        ]

    def past(self, past: Past) -> Past:
        """Returns a past after all that the cluster and the events know of: the work directory may be a new one."""
        found = self._ask_for_nodes()
        with contextlib.suppress(OSError, EventError):
            past = past_after(past, read_events(self._work_dir.layout.events))
        past = replace(
            past,
            term=max(past.term, self._settled.record.term),
            first_node=max([past.first_node, *(spec.node + 1 for spec in found)]),
            first_member=max([past.first_member, *(spec.first_member + spec.nproc_per_node for spec in found)]),
        )
        note_past(self._work_dir.layout, past)
        return past

    def find(self) -> Sequence[NodeSpec]:
        """Returns the nodes that the cluster has of this job, and follows them from now on."""
        self._found = self._ask_for_nodes()
        self._cluster.adopt(self._found)
        return self._found

    def living(self) -> Collection[int]:
        """Returns which of these still live."""
        standings = self._cluster.standings()
        return [spec.node for spec in self._found if spec.node in standings]

    def take(self) -> Collection[int]:
        """Returns them: they are the engine's since they were found."""
        return [spec.node for spec in self._found]

    def end_leftovers(self) -> None:
        """Ends all nodes that the cluster has of this job."""
        self.find()
        self._cluster.end_all()

    def close(self) -> None:
        """Leaves the cluster, which is told how the job stands."""
        self._cluster.close()
        asyncio.run(self._escort.tell_last())

    def kill_all(self, nodes: Collection[int]) -> None:
        """Ends all nodes, and leaves the cluster."""
        self._cluster.close()

    def _ask_for_nodes(self) -> Sequence[NodeSpec]:
        return insist(self._cluster.find)


def insist(ask: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
    """Returns what the cluster answers; where it is away or busy, it is asked again for half a minute.

    Raises:
        ConfigError: If it refuses.
        EngineAway: If it does not answer in that time: another try of the step may find it.
    """
    pauses = iter(PAUSES)
    while True:
        try:
            return ask()
        except ApiError as error:
            if not is_unsure(error) and error.status != BUSY:
                raise ConfigError(f"--engine kubernetes: {error}") from error
            if (pause := next(pauses, None)) is None:
                raise EngineAway(f"--engine kubernetes: {error}; nothing was started, so try again later") from error
            sleep(pause)
