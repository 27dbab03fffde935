"""The Hera front: the template class ``ElasticTrain``, and ``elastic_train``, which returns a plain ``Container``.

Neither has logic of its own. Each option of ``elastic-launcher run`` is a field of the same name, checked by the one
configuration before anything is submitted; what the pod has by default is that of Argo's own ``elastic-train``.
"""

from __future__ import annotations

import contextvars
import copy
import dataclasses
import inspect
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from hera.shared import global_config
from hera.shared.serialization import serialize
from hera.workflows import Container, Resources, Volume, Workflow, models
from hera.workflows._context import _context
from hera.workflows.env import _BaseEnv
from hera.workflows.volume import _BaseVolume
from pydantic import BaseModel

from elastic_launcher import argo
from elastic_launcher.engines.kubernetes.objects.pod import HOME
from elastic_launcher.engines.kubernetes.objects.template import PodFields, template_of
from elastic_launcher.hints.reference import SCHEME
from elastic_launcher.options import BY_KEY, OPTIONS, ConfigError, command_line, read_option
from elastic_launcher.pipeline_step import StepFailed, Trained, train

__all__ = ["ElasticTrain", "PodFields", "StepFailed", "Trained", "elastic_train"]

P = ParamSpec("P")
T = TypeVar("T")
_FIELDS = {"name": "job_name"}
"""Options whose name is one of a template's own fields."""
_OF_A_CLUSTER = ("engine", "pod_template", "node_image", "gpu_resource")
_LISTS = ("env", "volumes", "volume_mounts", "tolerations", "image_pull_secrets")
"""Of ``PodFields``."""
_REFERENCE = re.compile(r"\{\{\s*inputs\.parameters\.([-\w]+)\s*\}\}")


@dataclass(kw_only=True)
class ElasticTrain(Container):
    """A training step that changes its size while it runs; a ``Container``, in all that is not said here.

    What is preset, and can be overridden like any field: ``retry_strategy``, ``labels`` and ``annotations`` (the
    progress among them; yours are added), ``resources``, both security contexts, writable places, and ``pod_gc`` of the
    Workflow. Pre-build hooks and class defaults of ``Container`` hold for it, as do its own.

    Attributes:
        script: The script's path in the image, or its text (what holds a line break).
        module: The module to train with, instead of a script.
        arguments: The script's arguments, or one text that is split as a shell does.
        nodes: Fewest and most nodes, as MIN:MAX.
        pod_template: With ``engine="kubernetes"``: what the nodes' pods are, by fields, as a dict or as YAML. Hera's
            own volumes, variables and the like may be in the first two.
        match: What hints are matched by: namespace, project, queue, pipeline, job.
        job_name: The job's name (``--name``).

    The others are the options of ``elastic-launcher run``; what is None has the option's default.
    """

    script: str | os.PathLike[str] | None = None
    module: str | None = None
    arguments: Sequence[str] | str | None = None
    nodes: str | None = None
    engine: str | None = None
    pod_template: PodFields | Mapping[str, Any] | str | None = None
    node_image: str | None = None
    gpu_resource: str | None = None
    nproc_per_node: int | str | None = None
    hints: str | None = None
    match: Mapping[str, str] | str | None = None
    project: str | None = None
    priority: int | str | None = None
    share: str | None = None
    require_hints: bool | None = None
    wait_for_quota: float | str | None = None
    node_timeout: float | str | None = None
    work_dir: str | None = None
    max_runtime: str | None = None
    metrics_port: int | str | None = None
    start_timeout: float | str | None = None
    pending_timeout: str | None = None
    min_wait: float | str | None = None
    orphan_timeout: float | str | None = None
    heartbeat_timeout: float | str | None = None
    progress_timeout: float | str | None = None
    silence_timeout: str | None = None
    grace_period: float | str | None = None
    resize: str | None = None
    rdzv_backend: str | None = None
    max_failures: int | str | None = None
    global_batch_size: int | str | None = None
    max_batch_per_gpu: int | str | None = None
    autoscale_batch_size: int | str | None = None
    checkpoint_every: str | None = None
    keep_checkpoints: int | str | None = None
    checkpoint_dir: str | None = None
    accept_changes: str | None = None
    data: str | None = None
    output: str | None = None
    job_name: str | None = None

    def __post_init__(self) -> None:
        for kind in _kinds(self, Container):  # Hera itself looks at the exact class alone
            for key, value in global_config._get_class_defaults(kind).items():
                if getattr(self, key) is None:
                    setattr(self, key, value)
        super().__post_init__()
        _watch_workflows()

    def run_local(self, inputs: Mapping[str, Any] | None = None, **options: Any) -> Trained:
        """Runs the same step here and now, its nodes as processes of this machine, and shows its lines.

        What only a cluster has is left out: the engine, the nodes' pods, and hints in a ConfigMap.

        Args:
            inputs: Values of the step's input parameters; those that are not given have their defaults.
            options: Fields that differ here, such as ``data`` or ``work_dir``; None takes the option's default.

        Returns:
            The work directory, the metrics and the reports.

        Raises:
            ConfigError: If an option or an input is not known, or holds what only Argo could fill in.
            StepFailed: If the training did not end well.
        """
        names = {_FIELDS.get(option.key, option.key): option.key for option in OPTIONS}
        if unknown := sorted(set(options) - set(names)):
            raise ConfigError(f"run_local: there is no option {unknown[0]!r}")
        given = self._options() | {names[name]: _path(value) for name, value in options.items()}
        given = {key: value for key, value in given.items() if key not in _OF_A_CLUSTER}
        if str(given["hints"] or "").startswith(SCHEME):
            given["hints"], given["require_hints"] = None, None
        values = self._inputs(inputs or {})
        given = {key: _filled_in(BY_KEY[key].flag, value, values) for key, value in given.items()}
        words = given.pop("arguments") or ()
        return train(
            script=given.pop("script") or "",
            module=given.pop("module") or "",
            arguments=read_option(BY_KEY["arguments"], words)["arguments"],
            options=given,
            work_dir=given.pop("work_dir") or "",
            artifacts="elastic-jobs",
            environment={
                one.name: _filled_in(f"env {one.name}", one.value, values)
                for one in self._build_env() or ()
                if one.value is not None
            },
        )

    def _options(self) -> dict[str, Any]:
        given = {option.key: _path(getattr(self, _FIELDS.get(option.key, option.key))) for option in OPTIONS}
        if isinstance(self.pod_template, PodFields | Mapping):
            given["pod_template"] = json.dumps(_of_a_pod(self.pod_template), default=_no_part_of_a_pod)
        return given

    def _inputs(self, given: Mapping[str, Any]) -> dict[str, str]:
        """Returns the values of the input parameters that have one, as Argo would hand them over."""
        parameters = getattr(self._build_inputs(), "parameters", None) or ()
        known = {one.name: (one.value, one.default, one.value_from and one.value_from.default) for one in parameters}
        if unknown := sorted(set(given) - set(known)):
            inputs = ", ".join(map(str, known)) or "none"
            raise ConfigError(f"run_local: {self.name} has no input {unknown[0]!r}; it has {inputs}")
        values = {str(name): next((one for one in own if one is not None), None) for name, own in known.items()}
        return {name: str(serialize(value)) for name, value in (values | dict(given)).items() if value is not None}

    def _as_container(self) -> Container:
        """Returns a plain container with all settings of the step's pod in its own fields; part of no Workflow."""
        if self.args is not None:
            raise ConfigError(f"{self.name}: args are the launcher's; give those of the script in arguments")
        options = self._options()
        words = options.pop("arguments")
        is_list = words is not None and not isinstance(words, str)
        own = list(read_option(BY_KEY["arguments"], words)["arguments"]) if is_list else []
        argo.check_known(options | {"arguments": None if own else words}, own)
        step = copy.copy(self)
        step.command = self.command or list(argo.COMMAND)
        given = command_line(options | {"arguments": None if own else words})
        step.args = argo.as_written(["run", *given, *(["--", *own] if own else [])])
        step.labels = argo.LABELS | (self.labels or {})
        step.annotations = argo.ANNOTATIONS | (self.annotations or {})
        step.retry_strategy = self.retry_strategy or models.RetryStrategy.model_validate(argo.RETRY)
        step.resources = self.resources or models.ResourceRequirements.model_validate(argo.RESOURCES)
        step.security_context = self.security_context or models.SecurityContext.model_validate(argo.SECURITY)
        step.pod_security_context = self.pod_security_context or models.PodSecurityContext.model_validate(
            argo.POD_SECURITY
        )
        step.working_dir = self.working_dir or HOME
        step.termination_message_policy = self.termination_message_policy or "FallbackToLogsOnError"
        named = {one.name for one in self._build_env() or ()}
        preset = [models.EnvVar.model_validate(one) for one in argo.ENVIRONMENT if one["name"] not in named]
        step.env = [*preset, *_listed(self.env)]
        used = {one.mount_path.rstrip("/") for one in self._build_volume_mounts() or ()}
        mounts = [one for one in argo.MOUNTS if one["mountPath"] not in used]
        kept = [one for one in argo.VOLUMES if any(mount["name"] == one["name"] for mount in mounts)]
        step.volumes = [*map(models.Volume.model_validate, kept), *_listed(self.volumes)]
        own_outputs = self._build_outputs() or models.Outputs()
        named = {one.name for one in own_outputs.parameters or ()}
        told = [models.Parameter.model_validate(one) for one in argo.OUTPUTS if one["name"] not in named]
        step.outputs = own_outputs.model_copy(update={"parameters": [*told, *(own_outputs.parameters or ())]})
        step.volume_mounts = [*map(models.VolumeMount.model_validate, mounts), *(self.volume_mounts or [])]
        fields = {one.name: getattr(step, one.name) for one in dataclasses.fields(Container) if one.init}
        return _alone(Container, fields)

    def _dispatch_hooks(self) -> Any:
        """Applies hooks: its own while the options can be changed, those of ``Container`` once it is one."""
        step = _hooked(self, _kinds(self, ElasticTrain))
        return _hooked(step._as_container() if isinstance(step, ElasticTrain) else step, [Container])

    def _build_template(self) -> models.Template:
        return self._as_container()._build_template()


def _with_fields_of(kind: Callable[P, object]) -> Callable[[Callable[..., Container]], Callable[P, Container]]:
    """Gives a function the signature of a class, for type checkers and for ``help()``."""

    def known(function: Callable[..., Container]) -> Callable[P, Container]:
        signature = inspect.signature(kind).replace(return_annotation=Container)
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return known


@_with_fields_of(ElasticTrain)
def elastic_train(**fields: Any) -> Container:
    """Returns a plain ``Container`` that is the same step, checked at once; its fields are those of ``ElasticTrain``.

    Raises:
        ConfigError: If the step can't be run.
    """
    container = _alone(ElasticTrain, fields)._as_container()
    return Container(**{one.name: getattr(container, one.name) for one in dataclasses.fields(Container) if one.init})


def _alone(kind: Callable[..., T], fields: Mapping[str, Any]) -> T:
    """Returns a template that is part of no Workflow."""

    def made() -> T:
        _context.pieces = None
        return kind(**fields)

    return contextvars.copy_context().run(made)


def _kinds(step: Container, base: type[Container]) -> list[type[Container]]:
    return [kind for kind in type(step).__mro__ if issubclass(kind, base)]


def _hooked(step: Any, kinds: Sequence[type[Container]]) -> Any:
    for kind in kinds:
        for hook in (global_config._pre_build_hooks or {}).get(kind, ()):
            step = hook(step)
            if step is None:
                raise RuntimeError(f"pre-build hook {hook.__name__} returned None: it must return the template")
    return step


def _path(given: Any) -> Any:
    return os.fspath(given) if isinstance(given, os.PathLike) else given


def _of_a_pod(given: Any) -> Any:
    """Returns a pod template as the API has it, without Hera's objects."""
    if isinstance(given, PodFields):
        said = {one.name: getattr(given, one.name) for one in dataclasses.fields(given)}
        said |= {name: _listed(said[name]) for name in _LISTS}  # one by itself, as Hera's templates take it
        fields = {name: _of_a_pod(one) for name, one in said.items()}
        mounted = [one for one in said["volumes"] if isinstance(one, _BaseVolume) and one.mount_path]
        fields["volume_mounts"] += [_of_a_pod(one._build_volume_mount()) for one in mounted]
        return template_of(PodFields(**fields))
    if isinstance(given, Mapping):
        return {key: _of_a_pod(one) for key, one in given.items()}
    if isinstance(given, list | tuple):
        return [_of_a_pod(one) for one in given]
    if isinstance(given, Volume):
        raise ConfigError(
            f"pod_template has the volume {given.name}, a claim that the Workflow makes, under its own name: nodes "
            "need one that is there, such as ExistingVolume"
        )
    if isinstance(given, _BaseVolume):
        given = given._build_volume()
    elif isinstance(given, _BaseEnv | Resources):
        given = given.build()
    return given.model_dump(mode="json", by_alias=True, exclude_none=True) if isinstance(given, BaseModel) else given


def _no_part_of_a_pod(found: object) -> str:
    raise ConfigError(f"pod_template holds {found!r}: give what the API has, or Hera's volumes, env and resources")


def _listed(given: Any) -> list[Any]:
    return [] if given is None else list(given) if isinstance(given, list | tuple) else [given]


def _filled_in(what: str, value: Any, inputs: Mapping[str, str]) -> Any:
    """Returns an option's value with the step's inputs in it.

    Raises:
        ConfigError: If it holds anything else that only Argo could fill in.
    """
    if isinstance(value, str):
        found = _REFERENCE.sub(lambda match: inputs.get(match[1], match[0]), value)
        if "{{" in found and "\n" not in found:
            raise ConfigError(f"run_local: {what} is {value!r}, which Argo would fill in: give its value here")
        return found
    if isinstance(value, Mapping):
        return {key: _filled_in(what, one, inputs) for key, one in value.items()}
    return [_filled_in(what, one, inputs) for one in value] if isinstance(value, list | tuple) else value


def _preset_pod_gc(workflow: Workflow) -> Workflow:
    """Has finished pods deleted where a Workflow with an elastic step says nothing of it."""
    if workflow.pod_gc is None and any(map(_is_elastic, workflow.templates)):
        workflow.pod_gc = models.PodGC.model_validate(argo.POD_GC)
    return workflow


def _is_elastic(template: object) -> bool:
    labels = (isinstance(template, Container) and template.labels) or {}
    return isinstance(template, ElasticTrain) or argo.LABELS.items() <= labels.items()


def _watch_workflows() -> None:
    """Registers :func:`_preset_pod_gc`, once; ``global_config.reset()`` may have forgotten it."""
    hooks = global_config._pre_build_hooks = global_config._pre_build_hooks or {}
    for kind in _kinds_of_workflows(Workflow):  # Hera shows a hook the exact class alone
        known = hooks.setdefault(kind, [])
        if _preset_pod_gc not in known:
            known.append(_preset_pod_gc)


def _kinds_of_workflows(kind: type[Workflow]) -> Iterator[type[Workflow]]:
    yield kind
    for one in kind.__subclasses__():
        yield from _kinds_of_workflows(one)
