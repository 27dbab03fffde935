"""What is one job? Its configuration, and the one table of options from which the command line and every front derive.

The law: whatever way a configuration comes in (flags, a component's parameters, ``job.json``), it passes the same
checks, and what is wrong is said with the option's name and what to give instead.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from elastic_launcher.period import read_period, read_seconds

MATCH_KEYS = ("namespace", "queue", "pipeline", "job")
"""What hints are matched by, from the most general to the most specific."""


CHANGES = ("arguments", "global-batch-size", "seed", "dataset")
"""What a user may accept of a job that goes on from the checkpoint of another."""


class ConfigError(ValueError):
    """A configuration that can't be run; the message names the option and what to give instead."""


class ExitCode(IntEnum):
    """How the launcher ends; pipelines decide by it whether to try again."""

    DONE = 0
    SCRIPT_FAILED = 1
    BAD_USAGE = 2
    LAUNCHER_FAILED = 70
    STOPPED = 75
    NO_QUOTA = 76
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Option:
    """One thing that a user can set about a job.

    Attributes:
        key: Name of the component parameter; the flag is the same with dashes.
        kind: ``nodes``, ``whole``, ``seconds``, ``text``, ``choice``, ``pairs``, ``share``, ``period``, ``time``
            or ``switch``: what its text is read as.
        unit: What stands for the value in help texts.
        default: Its text when not given; None where there is none.
        help: One sentence for the user.
        environment: The variable in which each rank finds it, or None.
    """

    key: str
    kind: str
    unit: str
    default: str | None
    help: str
    environment: str | None = None

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.key.replace("_", "-")


OPTIONS: tuple[Option, ...] = (
    Option("nodes", "nodes", "MIN:MAX", "1:1", "Fewest and most nodes to train on."),
    Option("nproc_per_node", "whole", "N", "1", "Ranks (GPUs, where there are some) on each node."),
    Option("hints", "text", "FILE", None, "Quota hints: how many GPUs the job may use now. Without it: MAX nodes."),
    Option(
        "match",
        "pairs",
        "KEY=VALUE",
        None,
        f"What hints are matched by ({', '.join(MATCH_KEYS)}); may be repeated. job defaults to the job's name.",
    ),
    Option("share", "share", "I/N", None, "Take the I-th of N equal parts of the hint's entry (1/2, 2/2)."),
    Option(
        "require_hints", "switch", "", None, "Fail when there are no hints at the start, instead of running at MIN."
    ),
    Option(
        "wait_for_quota",
        "seconds",
        "SECONDS",
        "0",
        "How long to wait for hints that allow MIN nodes: at the start, and, saved and without any node, later on.",
    ),
    Option(
        "work_dir", "text", "DIR", None, "Where all of the job's files go; default: a new folder in ./elastic-jobs."
    ),
    Option(
        "max_runtime",
        "time",
        "TIME",
        None,
        "Save and end with exit code 75 when this launch has taken so long: 90s, 30m, 12h.",
    ),
    Option("start_timeout", "seconds", "SECONDS", "600", "A node that is not ready to train by then counts as failed."),
    Option("orphan_timeout", "seconds", "SECONDS", "60", "How long nodes go on when the launcher can't be reached."),
    Option(
        "heartbeat_timeout",
        "seconds",
        "SECONDS",
        "10",
        "A rank that others wait for and that gives no sign of life for so long counts as lost, with its node.",
    ),
    Option(
        "progress_timeout",
        "seconds",
        "SECONDS",
        "60",
        "A rank that gets no further in a step for so long (or 10 usual steps) while others wait counts as lost.",
    ),
    Option(
        "grace_period",
        "seconds",
        "SECONDS",
        "15",
        "How long a node has from its notice (SIGTERM) until it may be killed.",
    ),
    Option(
        "resize",
        "choice",
        "in-process|respawn",
        "in-process",
        "How the job changes its size: while it trains, or by ending and starting its workers (any torchrun script).",
    ),
    Option(
        "rdzv_backend",
        "choice",
        "elastic-launcher|c10d",
        "elastic-launcher",
        "With --resize respawn: who decides when torchrun starts its workers anew, the launcher or torchrun alone.",
    ),
    Option(
        "max_failures",
        "whole",
        "N",
        None,
        "Exceptions on single ranks within an hour that cost their node only; without it the first one ends the job.",
    ),
    Option(
        "global_batch_size",
        "whole",
        "B",
        None,
        "Samples of each optimizer step, whatever the number of nodes.",
        "ELASTIC_GLOBAL_BATCH_SIZE",
    ),
    Option(
        "max_batch_per_gpu",
        "whole",
        "M",
        None,
        "Most samples that a rank works on at a time.",
        "ELASTIC_MAX_BATCH_PER_GPU",
    ),
    Option(
        "checkpoint_every",
        "period",
        "PERIOD",
        None,
        "How often the training is saved: 30s, 5m, '100 steps'. Default: at most a twentieth of the time, 30s or more.",
        "ELASTIC_CHECKPOINT_EVERY",
    ),
    Option("keep_checkpoints", "whole", "N", "2", "How many checkpoints are kept.", "ELASTIC_KEEP_CHECKPOINTS"),
    Option(
        "checkpoint_dir",
        "text",
        "DIR|URL",
        None,
        "Where checkpoints go: a folder, s3://bucket/folder or the like; default: a folder in the work directory.",
        "ELASTIC_CHECKPOINT_DIR",
    ),
    Option(
        "accept_changes",
        "text",
        "NAMES",
        None,
        "What may differ from the checkpoint that is gone on from: arguments,global-batch-size,seed,dataset.",
    ),
    Option("data", "text", "PATH", None, "Where the script finds its data (ELASTIC_DATA).", "ELASTIC_DATA"),
    Option("output", "text", "PATH", None, "Where the script leaves its model (ELASTIC_OUTPUT).", "ELASTIC_OUTPUT"),
    Option("name", "text", "NAME", None, "The job's name; default: the script's name without .py."),
)


@dataclass(frozen=True, slots=True)
class JobConfig:
    """Everything that was asked of a job; checked when made.

    Attributes:
        script: Path of the training script; None when ``module`` is given.
        module: Module that is run with ``python -m``; None when ``script`` is given.
        arguments: The script's own arguments.
        name: The job's name; "" stands for the script's name without its suffix.
        min_nodes: Fewest nodes to train on.
        max_nodes: Most nodes to train on.
        nproc_per_node: Ranks on each node.
        hints: Where quota hints come from; None for a fixed target of ``max_nodes``.
        match: What hints are matched by; ``job`` is always there.
        share: (i, n) takes the i-th of n parts of the hint's entry, i from 1.
        require_hints: Whether missing hints at the start are an error.
        wait_for_quota: Seconds to wait for a hint that allows ``min_nodes``, at the start and each time later on.
        work_dir: Folder of the job's files; None for a new one.
        max_runtime: Seconds after which this launch is saved and ends; None for no limit.
        start_timeout: Seconds until a node that is not warm counts as failed.
        orphan_timeout: Seconds after which nodes leave that can't reach the coordinator.
        heartbeat_timeout: Seconds without a sign of life after which a rank counts as lost that others wait for.
        progress_timeout: Least seconds after which a rank counts as lost that others wait for in a step.
        grace_period: Seconds from a node's notice until it may be killed.
        resize: ``in-process``, or ``respawn``: the workers are ended and started at the new size.
        rdzv_backend: ``elastic-launcher``, or ``c10d``: torchrun's own rendezvous, with ``respawn`` only.
        max_failures: Exceptions of the script within an hour that count as the loss of a node; None for none.
        global_batch_size: Samples of one optimizer step; None where the script says it.
        max_batch_per_gpu: Most samples of one micro-batch; None where the script says it.
        checkpoint_every: How often the training is saved, as it was typed; None for the default.
        keep_checkpoints: How many checkpoints are kept.
        checkpoint_dir: Folder or URL of the checkpoints; None for one in the work directory.
        accept_changes: What may differ from the job whose checkpoint is used, as it was typed; None for nothing.
        data: What the script finds as ``ELASTIC_DATA``.
        output: What the script finds as ``ELASTIC_OUTPUT``.
    """

    script: str | None = None
    module: str | None = None
    arguments: tuple[str, ...] = ()
    name: str = ""
    min_nodes: int = 1
    max_nodes: int = 1
    nproc_per_node: int = 1
    hints: str | None = None
    match: Mapping[str, str] = dataclasses.field(default_factory=dict)
    share: tuple[int, int] | None = None
    require_hints: bool = False
    wait_for_quota: float = 0.0
    work_dir: str | None = None
    max_runtime: float | None = None
    start_timeout: float = 600.0
    orphan_timeout: float = 60.0
    heartbeat_timeout: float = 10.0
    progress_timeout: float = 60.0
    grace_period: float = 15.0
    resize: str = "in-process"
    rdzv_backend: str = "elastic-launcher"
    max_failures: int | None = None
    global_batch_size: int | None = None
    max_batch_per_gpu: int | None = None
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
            raise ConfigError(_nodes_message(f"{self.min_nodes}:{self.max_nodes}"))
        for key in ("nproc_per_node", "max_failures", "global_batch_size", "max_batch_per_gpu", "keep_checkpoints"):
            value = getattr(self, key)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(f"{_flag(key)} is {value}: it must be a whole number, 1 or more")
        for key, least in (
            ("wait_for_quota", 0.0),
            ("max_runtime", 0.1),
            ("start_timeout", 0.1),
            ("orphan_timeout", 0.1),
            ("heartbeat_timeout", 1.0),
            ("progress_timeout", 1.0),
            ("grace_period", 0.0),
        ):
            value = getattr(self, key)
            if value is not None and not (math.isfinite(value) and value >= least):
                raise ConfigError(f"{_flag(key)} is {value:g}: it must be a number of seconds, {least:g} or more")
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
        if self.share is not None and not 1 <= self.share[0] <= self.share[1]:
            raise ConfigError(_share_message(f"{self.share[0]}/{self.share[1]}"))
        if self.require_hints and self.hints is None:
            raise ConfigError(
                "--require-hints needs --hints FILE: say where the hints are, or leave --require-hints out"
            )
        unknown = [key for key in self.match if key not in MATCH_KEYS]
        if unknown:
            raise ConfigError(f"--match has the unknown key {unknown[0]!r}; known are {', '.join(MATCH_KEYS)}")
        if not self.name:
            object.__setattr__(self, "name", _name_of(self.script, self.module))
        object.__setattr__(self, "match", {"job": self.name, **self.match})

    @property
    def command(self) -> tuple[str, ...]:
        """What follows ``python`` on a rank: script or module, and its arguments."""
        start = (self.script,) if self.script is not None else ("-m", str(self.module))
        return (*start, *self.arguments)

    @property
    def accepted(self) -> tuple[str, ...]:
        """What may differ from the job whose checkpoint is used, by name."""
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
        document = dataclasses.asdict(self)
        return document | {"arguments": list(self.arguments), "share": list(self.share) if self.share else None}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> JobConfig:
        """Returns the configuration that ``to_dict`` wrote; keys of other versions are left aside."""
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
            command: What stands after ``--``.

        Raises:
            ConfigError: If anything in it can't be run.
        """
        unknown = set(texts) - {option.key for option in OPTIONS}
        if unknown:
            raise ConfigError(f"unknown option {sorted(unknown)[0]!r}")
        values: dict[str, Any] = {}
        for option in OPTIONS:
            text = texts.get(option.key)
            text = option.default if text is None or text == "" else text
            if text is not None:
                values.update(_read(option, text))
        return cls(**values, **_read_command(command))


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def _name_of(script: str | None, module: str | None) -> str:
    if module is not None:
        return module.rpartition(".")[2] or module
    return str(script).rstrip("/").rpartition("/")[2].removesuffix(".py") or "job"


def _nodes_message(text: str) -> str:
    fix = f"; for a fixed number write --nodes {text}:{text}" if text.isdecimal() and text.isascii() else ""
    return f"--nodes is {text!r}: it must be MIN:MAX with whole numbers, 1 <= MIN <= MAX, for example --nodes 1:3{fix}"


def _share_message(text: str) -> str:
    return f"--share is {text!r}: it must be I/N with whole numbers, 1 <= I <= N, for example --share 1/2"


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def _read(option: Option, given: Any) -> dict[str, Any]:
    """Reads one option's text into the fields that it fills."""
    if option.kind == "switch":
        return {option.key: bool(given)}
    if option.kind == "pairs":
        return {option.key: _read_pairs([given] if isinstance(given, str) else list(given))}
    text = str(given).strip()
    if option.kind == "nodes":
        least, colon, most = (part.strip() for part in text.partition(":"))
        minimum, maximum = _whole(least), _whole(most)
        if not colon or minimum is None or maximum is None or not 1 <= minimum <= maximum:
            raise ConfigError(_nodes_message(text))
        return {"min_nodes": minimum, "max_nodes": maximum}
    if option.kind == "share":
        part, _, parts = text.partition("/")
        index, count = _whole(part), _whole(parts)
        if index is None or count is None or not 1 <= index <= count:
            raise ConfigError(_share_message(text))
        return {option.key: (index, count)}
    if option.kind == "whole":
        number = _whole(text)
        if not number:
            raise ConfigError(f"{option.flag} is {text!r}: it must be a whole number, 1 or more")
        return {option.key: number}
    if option.kind == "time":
        try:
            return {option.key: read_seconds(text)}
        except ValueError as error:
            raise ConfigError(f"{option.flag} is {text!r}: {error}") from error
    if option.kind == "seconds":
        try:
            return {option.key: float(text)}
        except ValueError:
            raise ConfigError(
                f"{option.flag} is {text!r}: it must be a number of seconds, for example {option.flag} 30"
            )
    return {option.key: str(given)}


def _read_pairs(texts: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key or not value:
            raise ConfigError(f"--match is {text!r}: it must be KEY=VALUE, for example --match queue=team-a")
        if pairs.setdefault(key, value) != value:
            raise ConfigError(f"--match gives {key} twice: {pairs[key]!r} and {value!r}; leave one of them out")
    return pairs


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
