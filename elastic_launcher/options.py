"""The table of all that a user can set about a job, and the parser of each option's text.

The command line and Argo's parameters are made of it. Fields of the configuration, of Hera's template and inputs of the
components are written by `components.from_options`, and documents by what those are written with.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from elastic_launcher import variables
from elastic_launcher.argument import word
from elastic_launcher.period import read_seconds

AUTO = "auto"
"""In the place of a number that the job finds by itself."""
GIVEN_KEYS = ("namespace", "project", "queue", "pipeline", "job")
"""What a user may say of a job for hints to be matched by."""
MATCH_KEYS = (*GIVEN_KEYS, "id")
"""What hints are matched by, from the most general to the most specific; the launcher itself gives a job its id."""

_NEXT_PAIR = re.compile(r",(?=\s*[\w-]+\s*=)")
"""Between two pairs of one text; other commas belong to a value."""

_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")

CHANGES = ("arguments", "global-batch-size", "seed", "dataset", "script")
"""The differences that a user may accept for a job that resumes from the checkpoint of another."""


class ConfigError(ValueError):
    """A configuration that can't be run; the message names the option and what to give instead."""


@dataclass(frozen=True, slots=True)
class Option:
    """One thing that a user can set about a job.

    Attributes:
        key: Name of the component parameter; the flag is the same with dashes.
        kind: ``nodes``, ``whole``, ``whole_or_auto``, ``integer``, ``seconds``, ``text``, ``choice``, ``pairs``,
            ``words``, ``share``, ``period``, ``time`` or ``switch``: what its text is read as. ``whole`` is 1 or more.
        unit: The placeholder of the value in help texts.
        default: Its text when not given; None where there is none.
        help: One sentence for the user.
        environment: The variable in which each rank finds it, or None.
        least: Fewest seconds that ``seconds`` or a ``time`` may be; the smallest ``integer``.
        most: The largest ``integer``.
        is_path: Whether it is a path: a relative one starts in the user's directory.
        component: The one training component of Kubeflow's that takes it; None where both do.
    """

    key: str
    kind: str
    unit: str
    default: str | None
    help: str
    environment: str | None = None
    least: float = 0.1
    most: float = math.inf
    is_path: bool = False
    component: str | None = None

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.key.replace("_", "-")


OPTIONS: tuple[Option, ...] = (
    Option("nodes", "nodes", "MIN:MAX", "1:1", "Fewest and most nodes to train on."),
    Option("engine", "choice", "local|kubernetes", "local",
        "Where nodes live: on this machine, or as pods of a cluster.", component="elastic_train_distributed"),
    Option("pod_template", "text", "FILE|YAML", None,
        "With --engine kubernetes: the nodes' pod, as YAML; what it says nothing of, the launcher adds.",
        is_path=True, component="elastic_train_distributed"),
    Option("node_image", "text", "IMAGE", None,
        "With --engine kubernetes: what nodes run where the pod template names no image; default: the launcher's own.",
        component="elastic_train_distributed"),
    Option("gpu_resource", "text", "NAME", "nvidia.com/gpu",
        "With --engine kubernetes: what the cluster calls a GPU, of which each rank gets one; `none` for none.",
        component="elastic_train_distributed"),
    Option("nproc_per_node", "whole", "N", "1", "Ranks (GPUs, where there are some) on each node."),
    Option("hints", "text", "FILE|configmap/[NAMESPACE/]NAME", None,
        "Quota hints: how many GPUs the job may use now. Without it: MAX nodes.", is_path=True),
    Option("match", "pairs", "KEY=VALUE", None,
        f"What hints are matched by ({', '.join(GIVEN_KEYS)}), with commas between. job defaults to the job's name."),
    Option("project", "text", "NAME", None,
        "The project whose quota the job uses: short for --match project=NAME."),
    Option("priority", "integer", "N", "0",
        "How important the job is to a quota controller, -1000 to 1000: of a project's jobs, higher ones come first.",
        least=-1000, most=1000),
    Option("share", "share", "I/N", None, "Take the I-th of N equal parts of the hint's entry (1/2, 2/2)."),
    Option("require_hints", "switch", "", None,
        "Fail when there are no hints at the start, instead of running at MIN."),
    Option("wait_for_quota", "seconds", "SECONDS", None,
        "How long to wait for hints that allow MIN nodes, at the start and later. Default: as the hints say, else 0.",
        least=0.0),
    Option("node_timeout", "seconds", "SECONDS", "1800",
        "How long a job whose nodes were taken waits, saved, for MIN others; 0 ends it with exit code 75.", least=0.0),
    Option("work_dir", "text", "DIR", None,
        "Where all of the job's files go; default: a new folder in ./elastic-jobs.", is_path=True),
    Option("max_runtime", "time", "TIME", None,
        "Save and end with exit code 75 when this launch has taken so long: 90s, 30m, 12h."),
    Option("metrics_port", "whole", "PORT", None, "Where the launcher answers Prometheus, at /metrics."),
    Option("start_timeout", "seconds", "SECONDS", "600", "A node that is not ready to train by then counts as failed."),
    Option("pending_timeout", "time", "TIME", None,
        "How long a node may wait for a place in the cluster: 90s, 30m. Default: as long as the hint asks for it.",
        component="elastic_train_distributed"),
    Option("min_wait", "seconds", "SECONDS", "300",
        "How long fewer than MIN nodes hold their places in the cluster before training; then they are given back.",
        component="elastic_train_distributed"),
    Option("orphan_timeout", "seconds", "SECONDS", "60", "How long nodes go on when the launcher can't be reached."),
    Option("heartbeat_timeout", "seconds", "SECONDS", "10",
        "A rank that others wait for and that gives no sign of life for so long counts as lost, with its node.",
        least=1.0),
    Option("progress_timeout", "seconds", "SECONDS", "60",
        "A rank that gets no further in a step for so long (or 10 usual steps) while others wait counts as lost.",
        least=1.0),
    Option("silence_timeout", "time", "TIME", None,
        "Any rank without a sign of life for so long counts as lost. Default: 60s, or six heartbeat time-outs if more.",
        least=1.0),
    Option("grace_period", "seconds", "SECONDS", "15",
        "How long a node has from its notice (SIGTERM) until it may be killed.", least=0.0),
    Option("resize", "choice", "in-process|respawn", "in-process",
        "How the job changes its size: while it trains, or by ending and starting its workers (any torchrun script).",
        component="elastic_train"),
    Option("rdzv_backend", "choice", "elastic-launcher|c10d", "elastic-launcher",
        "With --resize respawn: who decides when torchrun restarts its workers, the launcher or torchrun alone.",
        component="elastic_train"),
    Option("max_failures", "whole", "N", None,
        "Failures of the script on single ranks within an hour that cost their node only; without it, none."),
    Option("global_batch_size", "whole", "B", None,
        "Samples of each optimizer step, at any number of nodes.", variables.GLOBAL_BATCH_SIZE),
    Option("max_batch_per_gpu", "whole_or_auto", "M|auto", None,
        "Most samples that a rank works on at a time; `auto` has each rank find how many fit into its memory.",
        variables.MAX_BATCH_PER_GPU),
    Option("autoscale_batch_size", "whole", "MAX", None,
        "Let the global batch adapt while the job trains, up to so many samples; the script must allow it.",
        variables.AUTOSCALE_BATCH_SIZE),
    Option("checkpoint_every", "period", "PERIOD", None,
        "How often the training is saved: 30s, 5m, '100 steps'. Default: at most a twentieth of the time, 30s or more.",
        variables.CHECKPOINT_EVERY),
    Option("keep_checkpoints", "whole", "N", "2", "How many checkpoints are kept.", variables.KEEP_CHECKPOINTS),
    Option("checkpoint_dir", "text", "DIR|URL", None,
        "Where checkpoints go: a folder, s3://bucket/folder or the like; default: a folder in the work directory.",
        variables.CHECKPOINT_DIR, is_path=True),
    Option("accept_changes", "text", "NAMES", None,
        "What may differ from the checkpoint that is gone on from: arguments,global-batch-size,seed,dataset,script."),
    Option("data", "text", "PATH", None,
        "Where the script finds its data (ELASTIC_DATA).", variables.DATA, is_path=True),
    Option("output", "text", "PATH", None,
        "Where the script leaves its model (ELASTIC_OUTPUT).", variables.OUTPUT, is_path=True),
    Option("name", "text", "NAME", None, "The job's name; default: the script's name without .py."),
    Option("script", "text", "FILE|TEXT", None,
        "The script's path, or its text (what holds a line break), instead of SCRIPT; only arguments follow -- then."),
    Option("module", "text", "MODULE", None, "The module, instead of -m MODULE; only arguments follow -- then."),
    Option("arguments", "words", "TEXT", None,
        "The script's arguments in one text: words as in a shell, or a JSON list; those after -- follow them."),
)  # fmt: skip
BY_KEY = {option.key: option for option in OPTIONS}
_SWITCHES = {"true": True, "false": False}


def command_line(options: Mapping[str, object]) -> list[str]:
    """Returns options, by key, as one word each: as ``elastic-launcher run`` and every front's step take them.

    None, False, "" and what is empty leave an option out.
    """
    words = []
    for option in OPTIONS:
        value = options.get(option.key)
        if isinstance(value, Mapping):
            words += [f"{option.flag}={key}={item}" for key, item in _words_of(option, value).items()]
        elif option.kind == "words" and value and not isinstance(value, str):
            words.append(f"{option.flag}={json.dumps(_read_words(option, value))}")
        elif value is True:
            words.append(option.flag)
        elif value is not None and value is not False and value != "":
            words.append(f"{option.flag}={value}")
    return words


def without_edges(given: str) -> str:
    """Returns an option's text without the line breaks and spaces that a YAML file or a ConfigMap adds around it.

    A text of several lines, a script's say, stays as it is.
    """
    text = given.strip()
    return given if "\n" in text else text


def holds_text(given: str) -> bool:
    """Returns whether an option that names a YAML file holds that file's text instead."""
    return "\n" in given.strip() or given.lstrip().startswith("{")


def nodes_message(text: str) -> str:
    """Returns the error about impossible numbers of nodes."""
    fix = f"; for a fixed number write --nodes {text}:{text}" if text.isdecimal() and text.isascii() else ""
    return f"--nodes is {text!r}: it must be MIN:MAX with whole numbers, 1 <= MIN <= MAX, for example --nodes 1:3{fix}"


def share_message(text: str) -> str:
    """Returns the error about an impossible share."""
    return f"--share is {text!r}: it must be I/N with whole numbers, 1 <= I <= N, for example --share 1/2"


def whole_message(option: Option, given: object) -> str:
    """Returns the error about an impossible ``whole`` or ``whole_or_auto``."""
    auto = f", or {AUTO}" if option.kind == "whole_or_auto" else ""
    return f"{option.flag} is {given}: it must be a whole number, 1 or more{auto}"


def integer_message(option: Option, given: object) -> str:
    """Returns the error about an impossible ``integer``."""
    return f"{option.flag} is {given!r}: it must be a whole number, {option.least:g} to {option.most:g}"


def read_option(option: Option, given: Any) -> dict[str, Any]:
    """Reads one option's text into the fields of the configuration that it fills.

    Raises:
        ConfigError: If the text is none of its kind.
    """
    if option.kind == "switch":
        return {option.key: given if isinstance(given, bool) else _read_switch(option, str(given))}
    if option.kind == "words":
        return {option.key: _read_words(option, given)}
    if option.kind == "pairs" and isinstance(given, Mapping):
        return {option.key: _pairs_of(option, given)}
    if option.kind == "pairs":
        return {option.key: read_pairs([given] if isinstance(given, str) else list(given))}
    text = str(given).strip()
    if option.kind == "nodes":
        least, colon, most = (part.strip() for part in text.partition(":"))
        minimum, maximum = read_whole(least), read_whole(most)
        if not colon or minimum is None or maximum is None or not 1 <= minimum <= maximum:
            raise ConfigError(nodes_message(text))
        return {"min_nodes": minimum, "max_nodes": maximum}
    if option.kind == "share":
        part, _, parts = text.partition("/")
        index, count = read_whole(part), read_whole(parts)
        if index is None or count is None or not 1 <= index <= count:
            raise ConfigError(share_message(text))
        return {option.key: (index, count)}
    if option.kind in ("whole", "whole_or_auto"):
        number = AUTO if option.kind == "whole_or_auto" and text == AUTO else read_whole(text)
        if not number:
            raise ConfigError(whole_message(option, repr(text)))
        return {option.key: number}
    if option.kind == "integer":
        if not _INTEGER.fullmatch(text):
            raise ConfigError(integer_message(option, text))
        return {option.key: int(text)}
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


def read_whole(text: str) -> int | None:
    """Returns the whole number that a text is, of at most 18 digits (which fit into 64 bits); None where it is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def _read_switch(option: Option, text: str) -> bool:
    if text.strip().lower() not in _SWITCHES:
        raise ConfigError(f"{option.flag} is {text!r}: it must be true or false")
    return _SWITCHES[text.strip().lower()]


def split_words(option: Option, text: str, given: str) -> Any:
    """Returns the words of a text, which is as on a command line, or a JSON list.

    Args:
        option: What the text is for.
        text: The text.
        given: How messages show it.

    Raises:
        ConfigError: If it can't be split.
    """
    try:
        return json.loads(text) if text.lstrip().startswith("[") else shlex.split(text)
    except ValueError as error:
        raise ConfigError(
            f"{option.flag} is {given!r}: it can't be split ({error}); it must be as on a command line, or a JSON list"
        ) from error


def _read_words(option: Option, given: object) -> tuple[str, ...]:
    if not isinstance(given, str | list | tuple):
        raise ConfigError(f"{option.flag} is {given!r}: it must be one text, as on a command line, or a list")
    words = split_words(option, given, given) if isinstance(given, str) else given
    try:
        return tuple(map(word, words))
    except ValueError as error:
        raise ConfigError(f"{option.flag}: {error}") from error


def _words_of(option: Option, given: Mapping[Any, object]) -> dict[str, str]:
    try:
        return {word(key): word(value) for key, value in given.items()}
    except ValueError as error:
        raise ConfigError(f"{option.flag}: {error}") from error


def _pairs_of(option: Option, given: Mapping[Any, object]) -> dict[str, str]:
    """Returns pairs as they are read again from the words of a command line."""
    words = _words_of(option, given)
    for key, value in words.items():
        if read_pairs([f"{key}={value}"]).keys() != {key.strip()}:
            raise ConfigError(f"{option.flag}: {key} is {value!r}: a value can't have a comma before another KEY=")
    return read_pairs(f"{key}={value}" for key, value in words.items())


def read_pairs(texts: Iterable[str]) -> dict[str, str]:
    """Reads texts of one or several ``KEY=VALUE``, with commas between, as what a job is matched by.

    Raises:
        ConfigError: If one is not of that form, or a key has two values.
    """
    pairs: dict[str, str] = {}
    for text in (pair for given in texts if given for pair in _NEXT_PAIR.split(given)):
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key or not value:
            raise ConfigError(f"--match is {text!r}: it must be KEY=VALUE, for example --match queue=team-a")
        if pairs.setdefault(key, value) != value:
            raise ConfigError(f"--match gives {key} twice: {pairs[key]!r} and {value!r}; leave one of them out")
    return pairs
