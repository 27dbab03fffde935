"""The configuration of one job, from which the command line and every front build theirs.

Invariant: a configuration from any source (flags, parameters and fields of a front, ``job.json``) passes the same
checks, and an error has the option's name and what to give instead.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from elastic_launcher.options import (
    AUTO,
    CHANGES,
    GIVEN_KEYS,
    OPTIONS,
    ConfigError,
    integer_message,
    nodes_message,
    read_option,
    share_message,
    whole_message,
    without_edges,
)
from elastic_launcher.period import read_period

CONFIG_VERSION = 1
"""Of the written form; a later one is refused, while a field that is not known yet is left aside."""
NO_GPUS = "none"
"""In the place of a GPU's name."""
_RESOURCE = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?")
UNNAMED = "train"
"""What a job is called whose script is given as a text."""


class ExitCode(IntEnum):
    """How the launcher ends; pipelines decide by it whether to try again."""

    DONE = 0
    SCRIPT_FAILED = 1
    BAD_USAGE = 2
    LAUNCHER_FAILED = 70
    STOPPED = 75
    NO_QUOTA = 76
    INTERRUPTED = 130


RETRIED = (ExitCode.LAUNCHER_FAILED, ExitCode.STOPPED, ExitCode.NO_QUOTA)
"""How a launcher ends that another attempt helps, or may help; nobody interrupts one from a pipeline's keyboard."""


@dataclass(frozen=True, slots=True)
class JobConfig:
    """Everything that was asked of a job; checked when made.

    Its fields are the options, as `read_option` reads their texts; the table says what each is. Three differ: ``nodes``
    is ``min_nodes`` and ``max_nodes``, an empty ``name`` becomes that of the script, and ``match`` always has the
    ``job`` and, where there is one, the ``project``. `components.from_options` writes the lines of all others.
    """

    script: str | None = None
    module: str | None = None
    arguments: tuple[str, ...] = ()
    name: str = ""
    min_nodes: int = 1
    max_nodes: int = 1
    engine: str = "local"
    pod_template: str | None = None
    node_image: str | None = None
    gpu_resource: str = "nvidia.com/gpu"
    nproc_per_node: int = 1
    hints: str | None = None
    match: Mapping[str, str] = dataclasses.field(default_factory=dict)
    project: str | None = None
    priority: int = 0
    share: tuple[int, int] | None = None
    require_hints: bool = False
    wait_for_quota: float | None = None
    node_timeout: float = 1800.0
    work_dir: str | None = None
    max_runtime: float | None = None
    metrics_port: int | None = None
    start_timeout: float = 600.0
    pending_timeout: float | None = None
    min_wait: float = 300.0
    orphan_timeout: float = 60.0
    heartbeat_timeout: float = 10.0
    progress_timeout: float = 60.0
    silence_timeout: float | None = None
    grace_period: float = 15.0
    resize: str = "in-process"
    rdzv_backend: str = "elastic-launcher"
    max_failures: int | None = None
    global_batch_size: int | None = None
    max_batch_per_gpu: int | str | None = None
    autoscale_batch_size: int | None = None
    checkpoint_every: str | None = None
    keep_checkpoints: int = 2
    checkpoint_dir: str | None = None
    accept_changes: str | None = None
    data: str | None = None
    output: str | None = None

    def __post_init__(self) -> None:
        if (self.script is None) == (self.module is None) or "" in (self.script, self.module):
            raise ConfigError("give one script to run, after --: `elastic-launcher run [OPTIONS] -- SCRIPT|-m MODULE`")
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise ConfigError(nodes_message(f"{self.min_nodes}:{self.max_nodes}"))
        for option in OPTIONS:
            if option.kind in ("whole", "whole_or_auto") and option.key != "metrics_port":
                value = getattr(self, option.key)
                known = value is None or (option.kind == "whole_or_auto" and value == AUTO)
                if not known and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                    raise ConfigError(whole_message(option, value))
            if option.kind == "integer":
                value = getattr(self, option.key)
                if not isinstance(value, int) or isinstance(value, bool) or not option.least <= value <= option.most:
                    raise ConfigError(integer_message(option, value))
        if self.metrics_port is not None and not 1 <= self.metrics_port <= 65535:
            raise ConfigError(f"--metrics-port is {self.metrics_port}: it must be a port, 1 to 65535")
        for option in OPTIONS:
            value = getattr(self, option.key) if option.kind in ("seconds", "time") else None
            if value is not None and not (math.isfinite(value) and value >= option.least):
                raise ConfigError(
                    f"{option.flag} is {value:g}: it must be a number of seconds, {option.least:g} or more"
                )
        most, first = self.autoscale_batch_size, self.global_batch_size
        if most is not None and first is not None and most < first:
            raise ConfigError(
                f"--autoscale-batch-size is {most}, below --global-batch-size, {first}, with which the training "
                "begins: raise the one, or lower the other"
            )
        check_work_dir(self.work_dir)
        _check_checkpoints(self.checkpoint_dir)
        if self.checkpoint_every is not None:
            try:
                read_period(self.checkpoint_every)
            except ValueError as error:
                raise ConfigError(f"--checkpoint-every is {self.checkpoint_every!r}: {error}") from error
        if self.accept_changes is not None and not set() < set(self.accepted) <= set(CHANGES):
            known = ", ".join(CHANGES)
            raise ConfigError(
                f"--accept-changes is {self.accept_changes!r}: it must be one or more of {known}, with commas between"
            )
        for option in OPTIONS:
            if option.kind == "choice" and getattr(self, option.key) not in option.unit.split("|"):
                words = " or ".join(option.unit.split("|"))
                raise ConfigError(f"{option.flag} is {getattr(self, option.key)!r}: it must be {words}")
        if self.rdzv_backend == "c10d" and self.resize != "respawn":
            raise ConfigError("--rdzv-backend c10d needs --resize respawn: add that, or leave --rdzv-backend out")
        if self.engine == "kubernetes":
            self._check_cluster()
        if self.share is not None and not 1 <= self.share[0] <= self.share[1]:
            raise ConfigError(share_message(f"{self.share[0]}/{self.share[1]}"))
        if self.require_hints and self.hints is None:
            raise ConfigError(
                "--require-hints needs --hints FILE: say where the hints are, or leave --require-hints out"
            )
        if "id" in self.match:
            raise ConfigError(
                f"--match gives the id {self.match['id']!r}, and the launcher itself gives a job its id: leave it out, "
                "or name the job with --name or --match job=NAME"
            )
        unknown = [key for key in self.match if key not in GIVEN_KEYS]
        if unknown:
            raise ConfigError(f"--match has the unknown key {unknown[0]!r}; known are {', '.join(GIVEN_KEYS)}")
        if not self.name:
            object.__setattr__(self, "name", _name_of(self.script, self.module))
        object.__setattr__(self, "match", {"job": self.name, **self.match, **self._check_project()})
        object.__setattr__(self, "project", self.match.get("project"))

    def _check_project(self) -> dict[str, str]:
        """Returns the project as a match key; nothing where the job doesn't say it."""
        if not self.project:
            return {}
        matched = self.match.get("project", self.project)
        if matched != self.project:
            raise ConfigError(
                f"--project is {self.project!r}, and --match gives the project {matched!r}: leave one of them out"
            )
        return {"project": self.project}

    def _check_cluster(self) -> None:
        if self.checkpoint_dir is None:
            raise ConfigError(
                "--engine kubernetes needs --checkpoint-dir: a folder that all pods see at the same path (of a volume "
                "claim in the pod template), or a URL such as s3://bucket/folder"
            )
        if self.gpu_resource != NO_GPUS and not _RESOURCE.fullmatch(self.gpu_resource):
            raise ConfigError(
                f"--gpu-resource is {self.gpu_resource!r}; it must be DOMAIN/NAME, for example nvidia.com/gpu, or none"
            )
        if self.resize != "in-process":
            raise ConfigError(f"--resize {self.resize} works with --engine local only; leave one of the two out")

    @property
    def silence_seconds(self) -> float:
        """Seconds without a sign of life after which any rank counts as lost."""
        return max(60.0, 6 * self.heartbeat_timeout) if self.silence_timeout is None else self.silence_timeout

    @property
    def command(self) -> tuple[str, ...]:
        """The words after ``python`` on a rank: script or module, and its arguments."""
        start = (self.script,) if self.script is not None else ("-m", str(self.module))
        return (*start, *self.arguments)

    @property
    def accepted(self) -> tuple[str, ...]:
        """The accepted differences from the job whose checkpoint is used, by name."""
        return tuple(name for text in (self.accept_changes or "").split(",") if (name := text.strip()))

    @property
    def max_ranks(self) -> int:
        """Most ranks that the job can have."""
        return self.max_nodes * self.nproc_per_node

    def environment(self) -> dict[str, str]:
        """Returns the variables in which each rank finds the options that were given."""
        values = {option.environment: getattr(self, option.key) for option in OPTIONS if option.environment}
        return {str(name): str(value) for name, value in values.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Returns the configuration as JSON values."""
        document = {"v": CONFIG_VERSION} | dataclasses.asdict(self)
        return document | {"arguments": list(self.arguments), "share": list(self.share) if self.share else None}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> JobConfig:
        """Returns the configuration that ``to_dict`` wrote; keys that are not known are left aside.

        Raises:
            ConfigError: If it is of a later version, or can't be run.
        """
        version = document.get("v", 1)
        if not isinstance(version, int) or version > CONFIG_VERSION:
            raise ConfigError(
                f"the job's configuration is of version {version}, and this elastic-launcher reads up to "
                f"{CONFIG_VERSION}: use the version of elastic-launcher that wrote it, or a later one"
            )
        known = {field.name for field in dataclasses.fields(cls)}
        values = {key: value for key, value in document.items() if key in known}
        values["arguments"] = tuple(values.get("arguments", ()))
        values["share"] = tuple(values["share"]) if values.get("share") else None
        return cls(**values)

    @classmethod
    def from_texts(cls, texts: Mapping[str, Any], command: Sequence[str]) -> JobConfig:
        """Reads a configuration from what a user typed.

        Args:
            texts: An option's key -> its text, True for a switch, a list of texts for one that may be repeated; options
                that are missing, None or "" take their defaults.
            command: The words after ``--``; the script's arguments alone where ``texts`` name script or module.

        Raises:
            ConfigError: If anything in it can't be run.
        """
        unknown = set(texts) - {option.key for option in OPTIONS}
        if unknown:
            raise ConfigError(f"unknown option {sorted(unknown)[0]!r}")
        values: dict[str, Any] = {}
        for option in OPTIONS:
            text = texts.get(option.key)
            text = without_edges(text) if isinstance(text, str) else text
            text = option.default if text is None or text == "" else text
            if text is not None:
                values.update(read_option(option, text))
        words = values.pop("arguments", ())
        if "script" in values and "module" in values:
            raise ConfigError("--script and --module are both given: leave one of them out")
        named = "script" in values or "module" in values
        values |= {"arguments": tuple(command)} if named else _read_command(command)
        values["arguments"] = (*words, *values["arguments"])
        return cls(**values)


def check_work_dir(given: str | None) -> None:
    """Raises ConfigError where the work directory is a URL instead of a path."""
    if given is not None and "://" in given:
        raise ConfigError(
            f"--work-dir is {given!r}: give a folder; for what is to outlive it, give --checkpoint-dir and --output"
            " URLs, or mount a volume there"
        )


def why_no_store(place: str) -> str:
    """Returns why a URL can't be used with any store; "" where it can, and for a path."""
    scheme, is_url, below = place.partition("://")
    if is_url and not below.strip("/"):
        return "names no place"
    return "is lost with each process" if is_url and scheme == "memory" else ""


def _check_checkpoints(place: str | None) -> None:
    if place is not None and (why := why_no_store(place)):
        raise ConfigError(
            f"--checkpoint-dir is {place!r}, which {why}: give a folder, or a URL such as s3://bucket/folder"
        )


def _name_of(script: str | None, module: str | None) -> str:
    if module is not None:
        return module.rpartition(".")[2] or module
    if "\n" in str(script).strip():
        return UNNAMED
    return str(script).rstrip("/").rpartition("/")[2].removesuffix(".py") or "job"


def _read_command(command: Sequence[str]) -> dict[str, Any]:
    if not command or command[0] in ("", "--"):
        raise ConfigError("the script is missing: `elastic-launcher run [OPTIONS] -- SCRIPT|-m MODULE [ARGS...]`")
    if command[0] == "-m":
        if len(command) < 2 or not command[1]:
            raise ConfigError("-m needs the name of a module after it: `-- -m package.train`")
        return {"module": command[1], "arguments": tuple(command[2:])}
    if command[0].startswith("-"):
        raise ConfigError(f"expected a script after --, or -m and a module, but found {command[0]!r}")
    return {"script": command[0], "arguments": tuple(command[1:])}
