"""The site of a job in a cluster (see `sites.Site`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from elastic_launcher.checkpoint.landmark import landmark_of
from elastic_launcher.checkpoint.storage import is_url
from elastic_launcher.config import JobConfig
from elastic_launcher.coordinator.model.event_replay import past_after
from elastic_launcher.coordinator.runtime.endpoints import CoordinatorHost, Endpoint
from elastic_launcher.coordinator.runtime.platform import Platform
from elastic_launcher.engines import Engine, EngineAway, NodeSpec
from elastic_launcher.engines.kubernetes.access.rights import told
from elastic_launcher.engines.kubernetes.engine import KubernetesEngine
from elastic_launcher.engines.kubernetes.job_plan import given_template, make_plan, template_source
from elastic_launcher.engines.kubernetes.leadership.bootstrap import PORTS, JobClaim, claim_job, inspect_cluster
from elastic_launcher.engines.kubernetes.nodes.dry_run import try_out
from elastic_launcher.engines.kubernetes.objects.pod import node_pod, user_of
from elastic_launcher.engines.kubernetes.objects.template import Document, has_kinds, scheduling
from elastic_launcher.events import EventError, read_events
from elastic_launcher.hints.reference import parse_reference
from elastic_launcher.kube.api import LONG_PAUSES, Api, ApiError, insist
from elastic_launcher.kube.login import Login, log_in
from elastic_launcher.launcher.cluster.watch import ClusterWatch
from elastic_launcher.launcher.script_bundle import Code, code_of
from elastic_launcher.options import ConfigError
from elastic_launcher.workdir import Past, WorkDir, note_cluster, note_past

EVERYWHERE = "0.0.0.0"


class ClusterSite:
    """The site in the namespace of the launcher's own pod.

    Args:
        work_dir: The job's work directory, which nodes don't see.
        code: The script's files, for the nodes.
        template: What nodes are made from.
        claim: What makes this launcher the job's.
    """

    def __init__(
        self, config: JobConfig, work_dir: WorkDir, code: Code, template: Document, login: Login, claim: JobClaim
    ) -> None:
        context, record = claim.context, claim.record
        plan = make_plan(config, template, context, record.address, None if claim.in_secret else claim.key)
        self._claim = claim
        self._work_dir = work_dir
        self._cluster = KubernetesEngine(login, context.namespace, plan)
        self._found: Sequence[NodeSpec] = ()
        self.engine: Engine = self._cluster
        self._watch = ClusterWatch(login, claim, self._cluster, work_dir.layout)
        self.platform: Platform | None = self._watch
        where = Endpoint(EVERYWHERE, record.address, PORTS["control"], PORTS["store"])
        key, folder = bytes.fromhex(claim.key), str(config.checkpoint_dir)
        shared = user_of(node_pod(template, plan.shape, {}, {})) != os.getuid()
        landmark = None if is_url(folder) else landmark_of(context.names.job_id, key, shared)
        self.home = CoordinatorHost(where, key, code.files, landmark, has_kinds(template))
        left = ", ".join(code.left_out)
        self.remarks: Sequence[str] = [
            f"job {context.names.job_id} in namespace {context.namespace}, owned by {context.owner.kind} "
            f"{context.owner.name}; its coordinator is at Service {context.names.service} ({record.address})",
            *([told(context.account, context.lacking)] if context.lacking else []),
            *([f"beside the script, too large or no text to be handed to nodes: {left}"] if left else []),
        ]

    @classmethod
    def claim(cls, config: JobConfig, work_dir: WorkDir, directory: Path) -> ClusterSite:
        """Takes the job in the namespace of the launcher's own pod; the script's path starts in ``directory``.

        Raises:
            ConfigError: If the launcher runs in no pod, or its role may not do what is needed.
            EngineAway: If the cluster can't be reached.
        """
        code = code_of(config, directory)
        template = given_template(config)
        login = log_in()
        with refusals():
            claim = asyncio.run(insist(lambda: _claim(login, config, template), LONG_PAUSES))
        note_cluster(work_dir.layout, claim.context.names.service, scheduling(template))
        return cls(config, work_dir, code, template, login, claim)

    def past(self, past: Past) -> Past:
        """Returns a past after all that the cluster and the events know of: the work directory may be a new one."""
        record, after = self._claim.record, past
        with refusals():
            nodes = self._cluster.used()
        with contextlib.suppress(OSError, EventError):
            after = past_after(past, read_events(self._work_dir.layout.events))
        used = [(spec.node + 1, spec.first_member + spec.nproc_per_node) for spec in nodes]
        numbers = [(after.first_node, after.first_member), record.numbers, *used]
        first_node, first_member = (max(one) for one in zip(*numbers, strict=True))
        after = replace(after, term=max(past.term, record.term), first_node=first_node, first_member=first_member)
        if after != past:
            note_past(self._work_dir.layout, after)
        return after

    def find(self) -> Sequence[NodeSpec]:
        """Returns the nodes that the cluster has of this job, and follows them from now on."""
        with refusals():
            self._found = self._cluster.find()
            self.remarks = [*self.remarks, *self._cluster.adopt(self._found)]
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
        """Writes the last status of the job, and leaves the cluster."""
        self._cluster.close()
        asyncio.run(self._watch.publish_last())

    def kill_all(self, nodes: Collection[int]) -> None:
        """Ends all nodes, and leaves the cluster."""
        self._cluster.close()


async def _claim(login: Login, config: JobConfig, template: Document) -> JobClaim:
    """Becomes the job's leader, after a dry run of a node."""
    reference = parse_reference(config.hints) if config.hints is not None else None
    hints = (reference.namespace or login.namespace, reference.name) if reference is not None else None
    async with Api(login) as api:
        context = await inspect_cluster(api, config.name, hints)
        await try_out(api, context.namespace, make_plan(config, template, context), template_source(config))
        return await claim_job(api, context)


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Translates errors of the cluster into the launcher's.

    Raises:
        ConfigError: If it refuses.
        EngineAway: If it does not answer: another try of the step may find it.
    """
    try:
        yield
    except ApiError as error:
        if not error.away:
            raise ConfigError(f"--engine kubernetes: {error}") from error
        raise EngineAway(f"--engine kubernetes: {error}; nothing was started, so try again later") from error
