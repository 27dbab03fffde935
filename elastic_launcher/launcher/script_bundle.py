"""Collects the script and the small files beside it, for nodes that can't see the launcher's files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from elastic_launcher import variables
from elastic_launcher.checkpoint.folder import POINTER
from elastic_launcher.config import JobConfig
from elastic_launcher.content import Content, digests, path_seen_from
from elastic_launcher.host.layout import Layout
from elastic_launcher.options import ConfigError, holds_text
from elastic_launcher.workdir import CLASSES

MOST_BYTES = 1 << 20
SETTINGS = (".json", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".txt")
"""Files that scripts read beside themselves; data belongs to where all nodes see it."""


def content_of(config: JobConfig, directory: Path, environment: Mapping[str, str] = os.environ) -> Content:
    """Returns what a job runs and reads, by which it is known again; what options name besides is no part of it.

    Relative paths start in ``directory``; the environment says where the data is from that lies at a path.

    Raises:
        ConfigError: If nodes of a cluster can't be handed the code.
    """
    files: dict[str, bytes] = {}
    if config.script is not None and (path := directory / config.script).is_file():
        files = {path.name: path.read_bytes()}
        if config.engine == "kubernetes":
            apart = {
                os.path.realpath(directory / one)
                for one in (config.pod_template, config.hints)
                if one and not holds_text(one)
            }
            if config.output and os.path.realpath(directory / config.output) == os.path.realpath(path.parent):
                apart.update(os.path.realpath(one) for one in _settings_beside(path))  # some may be of the model
            handed = code_of(config, directory).files.items()
            files = {
                name: text.encode() for name, text in handed if os.path.realpath(path.with_name(name)) not in apart
            }
    data = environment.get(variables.DATA_SOURCE) or path_seen_from(directory, config.data or "")
    return Content(digests(files), data if config.data else "")


@dataclass(frozen=True, slots=True)
class Code:
    """The files that nodes run.

    Attributes:
        files: Names and texts, the script first.
        left_out: Names of files beside the script that are not handed out: too large, or no text.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    left_out: Sequence[str] = ()


def code_of(config: JobConfig, directory: Path) -> Code:
    """Returns what nodes are handed; nothing for a module, which is in the nodes' image.

    What the job itself writes is never part of it, wherever it has its folders.

    Raises:
        ConfigError: If that is more than nodes are handed.
    """
    script = config.script
    if script is None:
        return Code()
    path = directory / script
    advice = "put the code into the nodes' image, and give -m MODULE"
    if path.is_dir():
        raise ConfigError(f"the script {script} is a folder, and nodes of a cluster are handed single files: {advice}")
    paths = [path, *sorted(one for one in path.parent.glob("*.py") if one.is_file() and not one.samefile(path))]
    size = sum(one.stat().st_size for one in paths)
    if size > MOST_BYTES:
        raise ConfigError(
            f"the script {script} and the {len(paths) - 1} .py files beside it have {size} bytes, and nodes of a "
            f"cluster are handed {MOST_BYTES} at most: {advice}"
        )
    try:
        files = {one.name: one.read_text(encoding="utf-8") for one in paths}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the script {script}, or a .py file beside it, can't be read: {error}") from error
    written = _written(config, directory)
    beside = [one for one in _settings_beside(path) if os.path.realpath(one) not in written]
    return _with_settings(files, beside, MOST_BYTES - size)


def _settings_beside(script: Path) -> list[Path]:
    return [
        one for one in script.parent.iterdir() if one.suffix in SETTINGS and one.is_file() and one.name != script.name
    ]


def _written(config: JobConfig, directory: Path) -> set[str]:
    """Returns the files that a job itself writes, and that may lie beside its script."""
    written: list[Path] = []
    if config.work_dir:
        written += Layout(directory / config.work_dir).files
    if config.checkpoint_dir:
        written.append(directory / config.checkpoint_dir / POINTER)
    if config.output:
        written += (directory / config.output, directory / (config.output + CLASSES))
    return {os.path.realpath(one) for one in written}


def _with_settings(files: dict[str, str], beside: Sequence[Path], room: int) -> Code:
    """Returns files, and those beside them that scripts read, the small ones first, as far as there is room."""
    left_out = []
    for one in sorted(beside, key=lambda one: (one.stat().st_size, one.name)):
        try:
            if one.stat().st_size > room:
                raise ValueError("too large")
            files[one.name] = one.read_text(encoding="utf-8")
            room -= one.stat().st_size
        except (OSError, ValueError):
            left_out.append(one.name)
    return Code(files, left_out)
