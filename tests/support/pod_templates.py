"""Pod templates as users have them, drawn."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from elastic_launcher.engines import NodeSpec
from elastic_launcher.engines.kubernetes.objects.job import JobPlan
from elastic_launcher.engines.kubernetes.objects.names import Names, Owner
from elastic_launcher.engines.kubernetes.objects.pod import Shape

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


ALL_OF_A_POD: dict[str, Any] = {
    "metadata": {
        "labels": {"team": "vision", "kueue.x-k8s.io/queue-name": "a"},
        "annotations": {"kubectl.kubernetes.io/default-container": "train", "example.com/note": "x"},
        "finalizers": ["example.com/hold"],
    },
    "spec": {
        "initContainers": [
            {
                "name": "fetch",
                "image": "registry.example/fetch:1",
                "args": ["--all"],
                "env": [{"name": "HOME", "value": "/"}],
            },
            {"name": "proxy", "image": "registry.example/proxy:1", "restartPolicy": "Always"},
        ],
        "containers": [
            {"name": "tail", "image": "registry.example/tail:1", "securityContext": {"runAsUser": 1001}},
            {
                "name": "train",
                "image": "registry.example/train:3",
                "imagePullPolicy": "Always",
                "workingDir": "/data",
                "ports": [{"containerPort": 6006, "name": "board", "protocol": "TCP"}],
                "env": [
                    {"name": "LR", "value": "0.1"},
                    {"name": "TMPDIR", "value": "/data/tmp"},
                    {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
                ],
                "envFrom": [{"configMapRef": {"name": "settings"}}],
                "resources": {
                    "limits": {"memory": "4Gi", "ephemeral-storage": "10Gi"},
                    "requests": {"cpu": "500m", "memory": "2Gi"},
                },
                "volumeMounts": [{"name": "data", "mountPath": "/data", "subPath": "digits"}],
                "lifecycle": {"preStop": {"exec": {"command": ["sync"]}}},
                "livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 60},
                "terminationMessagePath": "/dev/last-words",
                "terminationMessagePolicy": "File",
                "securityContext": {
                    "readOnlyRootFilesystem": False,
                    "allowPrivilegeEscalation": True,
                    "capabilities": {"add": ["IPC_LOCK"], "drop": ["NET_RAW"]},
                },
            },
        ],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
        ],
        "terminationGracePeriodSeconds": 120,
        "activeDeadlineSeconds": 86400,
        "shareProcessNamespace": True,
        "automountServiceAccountToken": True,
        "enableServiceLinks": True,
        "hostname": "trainer",
        "subdomain": "trainers",
        "hostAliases": [{"ip": "10.0.0.7", "hostnames": ["store"]}],
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["10.0.0.10"]},
        "preemptionPolicy": "Never",
        "schedulingGates": [{"name": "example.com/later"}],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"team": "vision"}},
            }
        ],
        "securityContext": {"fsGroup": 2000, "supplementalGroups": [3000], "runAsUser": 1000},
    },
}
"""What a pod template may say besides, once each."""


def contains(result: Any, wanted: Any) -> bool:
    """Whether all that is wanted is there: objects by key, lists as far as they go, in their order."""
    if isinstance(wanted, dict):
        return isinstance(result, dict) and all(key in result and contains(result[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return len(result) >= len(wanted) and all(map(contains, result, wanted))
    return bool(result == wanted)


def plan(template: dict[str, Any], shape: Shape = SHAPE) -> JobPlan:
    """Returns the plan of a job with a template."""
    return JobPlan(Names("digits-x"), OWNER, template, shape)


def template(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """Returns a template of one container."""
    return {"metadata": {}, "spec": {"containers": [{"name": "node", **(container or {})}], **spec}}
