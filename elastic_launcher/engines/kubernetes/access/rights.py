"""The rights that a coordinator needs, what each is for, and which overlay of ``manifests/`` grants it.

Invariant: the Roles of ``manifests/`` hold what is listed here, verb for verb.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_launcher.engines.kubernetes.objects.names import owner_of


@dataclass(frozen=True, slots=True)
class Need:
    """Verbs on one kind of object.

    Attributes:
        group: Of the API; empty for the core's.
        resource: The kind, as Roles name it.
        verbs: What is done to it.
        purpose: What for: "may not ... , needed to" is followed by this.
        without: What is lost without them; empty where the job can't run.
        overlay: What grants them; empty where that depends on what runs the launcher.
    """

    group: str
    resource: str
    verbs: tuple[str, ...]
    purpose: str
    without: str = ""
    overlay: str = ""


BASE = (
    Need("batch", "jobs", ("create", "delete", "get", "list", "watch"), "start, follow and end nodes"),
    Need("", "pods", ("delete", "get", "list", "patch", "watch"), "follow nodes, end them, and label its own pod"),
    Need("", "services", ("create", "get", "list", "patch", "watch"), "be found by its nodes, and publish its status"),
    Need("", "secrets", ("create", "get"), "keep the job's key", "the key is a value in the nodes' pods"),
    Need("", "events", ("list",), "say why a node waits", "the reason comes from the pod's conditions alone"),
)
"""In the job's own namespace, wherever the launcher runs."""
WORKFLOW = Need(
    "argoproj.io",
    "workflows",
    ("list", "watch"),
    "see that its Workflow is stopped",
    "it learns of that by a signal alone, and saves nothing where that leaves no time",
)
"""Where a Workflow runs the launcher."""
HINTS = Need(
    "",
    "configmaps",
    ("get", "list", "watch"),
    "follow the quota hints",
    "the hints are polled, or count as absent where they may not be read at all",
    "hints",
)
"""On one ConfigMap alone."""
MACHINES = Need(
    "",
    "nodes",
    ("list", "watch"),
    "see that a machine will be taken away",
    "the notice comes with the pod's deletion",
    "node-notice",
)
"""For all of the cluster."""
QUEUES = Need(
    "kueue.x-k8s.io",
    "workloads",
    ("list",),
    "say why Kueue does not admit a node",
    "messages say that the node's Job is suspended, but not why",
    "kueue",
)
"""Of those Jobs that Kueue has suspended."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One need, of a certain launcher.

    Attributes:
        namespace: Where; empty for all of the cluster.
        overlay: What grants it.
        name: The one object that is meant, or "".
    """

    need: Need
    namespace: str
    overlay: str
    name: str = ""

    def reviews(self) -> dict[str, dict[str, Any]]:
        """Returns, for each verb, the SelfSubjectAccessReview that asks for it."""
        what = {"group": self.need.group, "resource": self.need.resource, "namespace": self.namespace}
        about = {key: value for key, value in (what | {"name": self.name}).items() if value}
        return {verb: {"spec": {"resourceAttributes": about | {"verb": verb}}} for verb in self.need.verbs}


@dataclass(frozen=True, slots=True)
class Lack:
    """Verbs of a need that are not granted."""

    asked: Asked
    verbs: tuple[str, ...]

    @property
    def fatal(self) -> bool:
        """Whether the job can't run without them."""
        return not self.asked.need.without

    @property
    def what(self) -> str:
        """The verbs, the resource and the namespace."""
        need, asked = self.asked.need, self.asked
        resource = f"{need.resource}.{need.group}" if need.group else need.resource
        named = f" {asked.name}" if asked.name else ""
        where = f"in namespace {asked.namespace}" if asked.namespace else "of the cluster"
        return f"{', '.join(self.verbs)} {resource}{named} {where}"

    def __str__(self) -> str:
        need = self.asked.need
        lost = f"; without, {need.without}" if need.without else ""
        return (
            f"it may not {self.what}, needed to {need.purpose}{lost}: "
            f"manifests/overlays/{self.asked.overlay} grants that"
        )


MACHINES_OF_ALL = Asked(MACHINES, "", MACHINES.overlay)
"""Needed to watch machines; a launcher does as well without it, so there is no message about it."""


def needs_of(pod: Mapping[str, Any], hints: tuple[str, str] | None = None) -> list[Asked]:
    """Returns what the launcher in a pod needs, with hints in the ConfigMap of that namespace and name, if any."""
    namespace, overlay = pod["metadata"]["namespace"], overlay_of(pod)
    asked = [Asked(need, namespace, overlay) for need in BASE]
    if owner_of(pod).kind == "Workflow":
        asked.append(Asked(WORKFLOW, namespace, overlay))
    if hints is not None:
        asked.append(Asked(HINTS, hints[0], HINTS.overlay, hints[1]))
    return asked


def overlay_of(pod: Mapping[str, Any]) -> str:
    """Returns which overlay is meant for what runs a launcher's pod."""
    accounts = {"pipeline-runner": "kubeflow-standalone", "default-editor": "kubeflow-multiuser"}
    account = accounts.get(pod["spec"].get("serviceAccountName", ""))
    return account or ("argo" if owner_of(pod).kind == "Workflow" else "plain")


def told(account: str, lacks: Iterable[Lack]) -> str:
    """Returns what to say of the rights that a service account lacks; empty where there are none."""
    return "; ".join([f"service account {account}: {one}" for one in lacks])


@dataclass(frozen=True, slots=True)
class Told:
    """The missing rights of a running launcher: those reported as such, and those missing at the last look."""

    lacking: Sequence[Lack]
    seen: Sequence[Lack] = ()

    def look(self, account: str, found: Sequence[Lack]) -> tuple[Told, list[str]]:
        """Takes what is missing now; returns what is known then, and what is to be said.

        An API server that has just started grants nothing: only what is missing at two looks was taken away.
        """
        lasting = _less(found, _less(found, self.seen))
        lost, back = _less(lasting, self.lacking), _less(self.lacking, found)
        said = [f"{told(account, lost)}; it was granted before, and is tried again"] if lost else []
        said += [f"service account {account}: it may {one.what} again" for one in back]
        return Told([*_less(self.lacking, back), *lost], found), said


def _less(some: Iterable[Lack], others: Iterable[Lack]) -> list[Lack]:
    """Returns what some lack and others don't."""
    known = {(one.asked, verb) for one in others for verb in one.verbs}
    left = (Lack(one.asked, tuple(verb for verb in one.verbs if (one.asked, verb) not in known)) for one in some)
    return [one for one in left if one.verbs]
