"""The Argo front: what the pod of an elastic step has, and the templates ``elastic-train`` of ``manifests/argo``.

It has no logic of its own. Each parameter of the templates is an option of the one configuration under the same name
and with the same default, handed over as one flag; ``python -m elastic_launcher.argo FOLDER`` writes both templates.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elastic_launcher import __version__, variables
from elastic_launcher.config import CONFIG_VERSION, RETRIED, JobConfig
from elastic_launcher.engines.kubernetes.objects.names import ELASTIC_LABEL, NODES_ANNOTATION, POD_VARIABLE, PREFIX
from elastic_launcher.engines.kubernetes.objects.pod import HOME, SHM, TMP, WRITABLE
from elastic_launcher.engines.kubernetes.objects.precheck import check_pod_template
from elastic_launcher.kube.expansion import literal
from elastic_launcher.launcher import step_outputs
from elastic_launcher.options import BY_KEY, OPTIONS, ConfigError, Option, command_line, split_words

Document = dict[str, Any]

NAME = "elastic-train"
ENTRYPOINT = "train"
ON_CLAIM = "train-on-claim"
"""The same step with a volume claim, which the parameter ``claim`` names."""
ACCOUNT = "elastic-launcher"
"""The service account of ``manifests/overlays/argo``."""
IMAGE = "elastic-launcher"
CLAIM_FOLDER = "/work"
KINDS = {"WorkflowTemplate": "workflow-template.yaml", "ClusterWorkflowTemplate": "cluster/workflow-template.yaml"}
"""Each kind, and its file."""

COMMAND = ("elastic-launcher",)
POD_GC = {"strategy": "OnPodCompletion"}
"""Of the Workflow: what a stopped step's pod owns goes seconds later, and a process that hangs is killed."""
_KILLED = (137, 143)  # by SIGKILL; by SIGTERM before it could take that
RETRY = {
    "limit": 3,
    "retryPolicy": "Always",
    "expression": (
        '!(lastRetry.message matches "longer than the specified deadline|OOMKilled") && (lastRetry.status == "Error" '
        f"|| asInt(lastRetry.exitCode) in {[int(code) for code in (*RETRIED, *_KILLED)]} || lastRetry.message matches "
        '"(?i)preempt|evict|node.?shutdown|low on resource|exceeds the limit|NodeLost|exceeded quota")'
    ),
}
"""A pod that was taken away is tried again, a script that failed is not: measured on Argo Workflows 4.1.2, without 70
among the codes. No pause between the attempts: nodes wait for their launcher no longer than ``--orphan-timeout``."""
LABELS = {"app.kubernetes.io/component": NAME}
ANNOTATIONS = {
    "workflows.argoproj.io/progress": "0/100",  # until the launcher knows how many steps there are
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
    "sidecar.istio.io/inject": "false",
    "linkerd.io/inject": "disabled",
}
POD_SECURITY = {"runAsNonRoot": True, "fsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
SECURITY = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
RESOURCES = {"requests": {"cpu": "250m", "memory": "512Mi"}}
"""Enough for a launcher whose nodes are pods of their own."""
OUTPUT_FOLDER = f"{TMP}/elastic-outputs"
OUTPUTS: tuple[Document, ...] = tuple(
    {"name": name, "valueFrom": {"path": f"{OUTPUT_FOLDER}/{name}", "default": default}}
    for name, default in step_outputs.OUTPUTS.items()
)
"""Of the step. They have defaults, since a file that is not there would end a training in an error."""
ENVIRONMENT: tuple[Document, ...] = (
    *({"name": name, "value": value} for name, value in WRITABLE.items()),
    {"name": variables.STEP_OUTPUTS, "value": OUTPUT_FOLDER},
    {"name": POD_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    {"name": variables.POD_LABEL, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{ELASTIC_LABEL}']"}}},
    {
        "name": variables.POD_NODES,
        "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{NODES_ANNOTATION}']"}},
    },
)
_SCRATCH, _SHM = "elastic-launcher-scratch", "elastic-launcher-shm"
VOLUMES: tuple[Document, ...] = (
    {"name": _SCRATCH, "emptyDir": {}},
    {"name": _SHM, "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
)
MOUNTS: tuple[Document, ...] = (
    {"name": _SCRATCH, "mountPath": TMP, "subPath": "tmp"},
    {"name": _SCRATCH, "mountPath": HOME, "subPath": "home"},
    {"name": _SHM, "mountPath": SHM},
)

OF_THE_POD = (
    Option("image", "text", "IMAGE", IMAGE, "What the step runs: an image with elastic-launcher and the script."),
    Option("pod_patch", "text", "JSON", "{}", "Patch of the step's own pod: GPUs, volumes, tolerations and the like."),
)
"""Parameters of the templates that no launcher reads."""
OPEN = "{{"
"""Stands in a value that only Argo knows."""
MOST_ARGS = 128 * 1024
"""Bytes of a container's args as JSON: larger ones Argo 4.1 hands over in a file, in which nothing is expanded, and for
an older Argo they may be more than Linux takes in one word."""
_FILLED_IN = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_PARAMETER = re.compile(r"\{\{\s*((?:inputs|workflow)\.parameters)\.([-\w]+)\s*\}\}")
_WITHOUT_DOLLAR = {option.flag for option in OPTIONS if option.kind not in ("text", "words", "pairs")}
"""Options of which no value has a ``$`` in it."""
_ANY_TEXT = {option.key for option in OPTIONS if option.kind == "text"} - {"accept_changes", "project"}
"""Options whose text nobody reads here: what Argo fills in counts as given."""
_EITHER = ("script", "module")
"""Of which one is given; where Argo fills in both, it may leave one empty."""
_OF_A_NODE = ("pod_template", "nproc_per_node", "gpu_resource")
"""Options that are checked together or not at all."""
_LEADING = ("script", "module", "arguments")
PARAMETERS = tuple(sorted((*OPTIONS, *OF_THE_POD), key=lambda option: option.key not in _LEADING))
"""What an author may set, what is trained first."""
CLAIM = Option("claim", "text", "NAME", None, f"The claim that the step has at {CLAIM_FOLDER}; nodes name it too.")


def default_of(option: Option) -> str:
    """Returns a parameter's default: a text, as all that Argo takes.

    ``nodes`` has none, so that the pod's annotation is seen where nobody says how many; the launcher's is the same.
    """
    if option.kind == "switch":
        return "false"
    return "" if option.key == "nodes" else option.default or ""


def workflow_template(kind: str) -> Document:
    """Returns the template ``elastic-train`` as one of :data:`KINDS`."""
    versions = {f"{PREFIX}version": __version__, f"{PREFIX}configuration": str(CONFIG_VERSION)}
    metadata = {"name": NAME, "annotations": versions}
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": kind,
        "metadata": metadata,
        "spec": {
            "entrypoint": ENTRYPOINT,
            "serviceAccountName": ACCOUNT,
            "podGC": dict(POD_GC),
            "arguments": {"parameters": [_argument(option) for option in PARAMETERS]},
            "templates": [step_template(ENTRYPOINT), step_template(ON_CLAIM, CLAIM)],
        },
    }


def step_template(name: str, claim: Option | None = None) -> Document:
    """Returns the template of a step; ``claim`` is the parameter with the name of a volume claim, if it has one."""
    parameters = PARAMETERS if claim is None else (claim, *PARAMETERS)
    mounts, volumes = [*MOUNTS], [*VOLUMES]
    if claim is not None:
        mounts.append({"name": "work", "mountPath": CLAIM_FOLDER})
        volumes.append({"name": "work", "persistentVolumeClaim": {"claimName": _value(claim)}})
    return {
        "name": name,
        "inputs": {"parameters": [_input(option) for option in parameters]},
        "metadata": {"labels": dict(LABELS), "annotations": dict(ANNOTATIONS)},
        "retryStrategy": dict(RETRY),
        "podSpecPatch": "{{inputs.parameters.pod_patch}}",
        "securityContext": dict(POD_SECURITY),
        "container": {
            "image": "{{inputs.parameters.image}}",
            "command": list(COMMAND),
            "args": as_written(["run", *(f"{option.flag}={_value(option)}" for option in OPTIONS)]),
            "workingDir": HOME,
            "env": list(ENVIRONMENT),
            "resources": dict(RESOURCES),
            "securityContext": dict(SECURITY),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": mounts,
        },
        "volumes": volumes,
        "outputs": {"parameters": list(OUTPUTS)},
    }


def as_written(words: Sequence[str]) -> list[str]:
    """Returns the args of a container in which the launcher gets these words, which may hold placeholders of Argo's.

    Each ``$`` is doubled, since Kubernetes makes one of two: here, or by Argo in parameters that it fills in. What an
    expression of the author's gives is his to double.
    """
    own = words.index("--") if "--" in words else len(words)
    return [
        word if index < own and word.partition("=")[0] in _WITHOUT_DOLLAR else _doubled(word)
        for index, word in enumerate(words)
    ]


def _doubled(word: str) -> str:
    parts, end = [], 0
    for found in _FILLED_IN.finditer(word):
        inner = _PARAMETER.sub(r"{{=replace(\1['\2'], '$', '$$')}}", found[0])
        parts += [literal(word[end : found.start()]), inner]
        end = found.end()
    return "".join([*parts, literal(word[end:])])


def _check_size(options: Mapping[str, Any], arguments: Sequence[str]) -> None:
    """Refuses what is too long to be args of a container.

    Raises:
        ConfigError: If it is, naming what is longest.
    """
    left_out = [f"{option.flag}=" for option in OPTIONS if not options.get(option.key)]
    words = as_written(["run", *left_out, *command_line(options), "--", *arguments])
    text = json.dumps(words, ensure_ascii=False, separators=(",", ":"))
    size = len(text.encode(errors="replace")) + 5 * sum(map(text.count, "<>&"))  # 6 bytes each in Go's JSON
    if size > MOST_ARGS:
        longest = max(words, key=len)
        flag = longest.partition("=")[0] if longest in words[: words.index("--")] else BY_KEY["arguments"].flag
        what = "the script" if flag == "--script" else "what it holds"
        raise ConfigError(
            f"{flag} is too long: the arguments of the step's container have {size} bytes, written as JSON with each $ "
            f"twice, and {MOST_ARGS} is the most: put {what} into the image, and give its path"
        )


def _check_filled_in(option: Option, text: str, *, splits: bool) -> None:
    """Refuses a text with a part that Argo fills in, and what is wrong whatever it fills in.

    ``splits``: whether the text is split into words.

    Raises:
        ConfigError: If that part has no end, or a quotation.
    """
    rest = _FILLED_IN.sub("x", text)
    if OPEN in rest:
        raise ConfigError(f"{option.flag} is {text!r}: Argo refuses '{OPEN}' without '}}}}' after it")
    if splits and rest != text and not rest.lstrip().startswith("["):
        split_words(option, rest, text)


def check_known(options: Mapping[str, Any], arguments: Sequence[str] = ()) -> None:
    """Refuses what the launcher would, before there is one; of what Argo fills in, that is left to it.

    Raises:
        ConfigError: If the step can't be run.
    """
    script = options.get("script") or ""
    fix = "put the script into the image, and give its path"
    if "\n" in script.strip() and OPEN in script:
        raise ConfigError(f"--script holds a text with '{OPEN}', which Argo takes for its own: {fix}")
    for key, value in options.items():
        if value != OPEN:  # which is all that the linter knows of it
            _check_filled_in(BY_KEY[key], str(value), splits=BY_KEY[key].kind == "words" and isinstance(value, str))
    for argument in arguments:
        _check_filled_in(BY_KEY["arguments"], argument, splits=False)
    _check_size(options, arguments)
    fixed = {
        key: value
        for key, value in options.items()
        if value is not None and (key in _ANY_TEXT or OPEN not in str(value))
    }
    if all(fixed.get(key) for key in _EITHER):
        fixed = {key: value for key, value in fixed.items() if key not in _EITHER or OPEN not in str(value)}
        fixed = fixed if any(key in fixed for key in _EITHER) else fixed | {_EITHER[0]: OPEN}
    if any(BY_KEY[key].kind == "choice" and value is not None and key not in fixed for key, value in options.items()):
        fixed = {key: value for key, value in fixed.items() if BY_KEY[key].kind != "choice"}
    if any(OPEN in str(options.get(key)) for key in _OF_A_NODE):
        fixed = {key: value for key, value in fixed.items() if key not in _OF_A_NODE}
    config = JobConfig.from_texts(fixed, arguments)
    if config.hints is not None and OPEN not in config.hints:
        from elastic_launcher.hints.reference import parse_reference  # loads asyncio, for which no import need wait

        try:
            parse_reference(config.hints)
        except ConfigError as error:
            raise ConfigError(f"--hints: {error}") from error
    check_pod_template(config)


def render(document: Document) -> str:
    """Returns a template as the text of its file."""
    import yaml

    written_out = json.loads(json.dumps(document))  # no two places are one object, which yaml would refer to
    text = yaml.safe_dump(written_out, sort_keys=False, width=120, allow_unicode=True)
    return f"# Made by `make golden` from the one configuration (elastic_launcher/options.py): docs/argo.md\n{text}"


def _value(option: Option) -> str:
    return f"{{{{inputs.parameters.{option.key}}}}}"


def _input(option: Option) -> Document:
    default = {} if option is CLAIM else {"default": default_of(option)}
    return {"name": option.key, "description": f"{option.unit}: {option.help}".removeprefix(": "), **default}


def _argument(option: Option) -> Document:
    choices = {"enum": option.unit.split("|")} if option.kind == "choice" else {}
    return {"name": option.key, "value": default_of(option), **choices}


def main(folder: Path) -> None:
    """Writes both templates."""
    for kind, file in KINDS.items():
        (folder / file).write_text(render(workflow_template(kind)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
