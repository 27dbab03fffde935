"""Pod templates as users have them, drawn."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from elastic_launcher.engines import NodeSpec
from elastic_launcher.engines.kubernetes.identity import Names, Owner
from elastic_launcher.engines.kubernetes.job import JobPlan
from elastic_launcher.engines.kubernetes.pod import Shape

OWNER = Owner("argoproj.io/v1alpha1", "Workflow", "train-abc", "uid-1")
SHAPE = Shape(
    image="registry.example/step:1",
    command=("python3", "-P", "-m", "elastic_launcher.agent"),
    environment={"ELASTIC_CONTROL": "http://10.96.0.7:8080"},
    key_secret="digits-key",
    gpus=2,
)
SPEC = NodeSpec(3, 5, 2)

NAMES = st.sampled_from(["a", "b", "data", "tools"])
PAIRS = st.dictionaries(st.sampled_from(["team", "example.com/x", "kueue.x-k8s.io/queue-name"]), NAMES, max_size=2)


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


_SECURITY = _some(
    runAsUser=st.sampled_from([0, 1000]),
    runAsNonRoot=st.booleans(),
    privileged=st.booleans(),
    readOnlyRootFilesystem=st.booleans(),
    allowPrivilegeEscalation=st.booleans(),
    capabilities=_some(add=st.lists(st.sampled_from(["SYS_ADMIN", "IPC_LOCK"]), max_size=1), drop=st.just(["NET_RAW"])),
    seccompProfile=st.just({"type": "Unconfined"}),
)
_MOUNT = st.builds(
    lambda name, path: {"name": name, "mountPath": path},
    NAMES,
    st.sampled_from(["/data", "/tmp", "/dev/shm/", "/home/elastic"]),
)
_CONTAINER = _some(
    image=st.just("registry.example/mine:2"),
    command=st.just(["/wrap", "--"]),
    env=st.lists(st.builds(lambda n: {"name": n, "value": "x"}, st.sampled_from(["HOME", "LR", "TMPDIR"])), max_size=2),
    resources=_some(
        limits=st.sampled_from([{"memory": "4Gi"}, {"nvidia.com/gpu": 2}]), requests=st.just({"cpu": "500m"})
    ),
    volumeMounts=st.lists(_MOUNT, max_size=2),
    securityContext=_SECURITY,
    terminationMessagePolicy=st.just("File"),
)
_CONTAINERS = st.lists(_CONTAINER, max_size=2).map(lambda all_: [one | {"name": f"c{i}"} for i, one in enumerate(all_)])
TEMPLATES = st.fixed_dictionaries(
    {
        "metadata": _some(labels=PAIRS, annotations=PAIRS),
        "spec": _some(
            containers=_CONTAINERS,
            initContainers=st.just([{"name": "fetch", "image": "registry.example/fetch:1"}]),
            volumes=st.lists(NAMES.map(lambda name: {"name": name, "emptyDir": {}}), max_size=2),
            nodeSelector=PAIRS,
            tolerations=st.just([{"operator": "Exists"}]),
            affinity=st.just({"podAntiAffinity": {}}),
            imagePullSecrets=st.just([{"name": "pull"}]),
            priorityClassName=NAMES,
            schedulerName=NAMES,
            runtimeClassName=NAMES,
            serviceAccountName=NAMES,
            automountServiceAccountToken=st.booleans(),
            securityContext=_some(runAsUser=st.sampled_from([0, 1000]), fsGroup=st.just(2000)),
            terminationGracePeriodSeconds=st.just(120),
            enableServiceLinks=st.just(True),
        ),
    }
)


def plan(template: dict[str, Any], shape: Shape = SHAPE) -> JobPlan:
    """Returns the plan of a job with a template."""
    return JobPlan(Names("digits-x"), OWNER, template, shape)


def template(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """Returns a template of one container."""
    return {"metadata": {}, "spec": {"containers": [{"name": "node", **(container or {})}], **spec}}
