"""Reads what pipelines pass and a shell would not: switches with a value, a script's text, words on the pod."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from elastic_launcher import variables
from elastic_launcher.config import JobConfig
from elastic_launcher.engines.kubernetes.objects.names import ELASTIC_LABEL, NODES_ANNOTATION
from elastic_launcher.host.script_file import script_path, write_script
from elastic_launcher.options import OPTIONS, ConfigError, read_option
from elastic_launcher.workdir import DEFAULT_PARENT

ARGS_FILE = "ARGO_CONTAINER_ARGS_FILE"
"""Where Argo 4.1 says which file holds a container's args, of more than 128 KiB: nothing is expanded in it."""
_SWITCHES = {option.flag: option for option in OPTIONS if option.kind == "switch"}


def plain_switches(words: Sequence[str]) -> list[str]:
    """Returns a command line with each ``--switch=true`` of ours as ``--switch``, and without each ``--switch=false``.

    Parameters of a pipeline can't leave a word out, so they say which of the two it is.

    Raises:
        ConfigError: If a switch is neither.
    """
    plain: list[str] = []
    index = 0
    while index < len(words) and words[index].startswith("--") and words[index] != "--":
        flag, equals, value = words[index].partition("=")
        if flag in _SWITCHES and equals:
            plain += [flag] if value and read_option(_SWITCHES[flag], value)[_SWITCHES[flag].key] else []
        else:
            own_word = bool(equals) or flag in _SWITCHES or flag == "--help"
            plain += words[index : index + (1 if own_word else 2)]
            index += not own_word
        index += 1
    return [*plain, *words[index:]]


def check_arrival(environment: Mapping[str, str] = os.environ) -> None:
    """Refuses words of our Argo and Hera steps that came another way than they were written for.

    Raises:
        ConfigError: If each ``$`` in them is still there twice.
    """
    if variables.STEP_OUTPUTS in environment and ARGS_FILE in environment:
        raise ConfigError(
            "the step's arguments have more than 128 KiB, which Argo hands over in a file, with each $ twice: put the "
            "script into the image, and give its path"
        )


def add_words_on_the_pod(texts: MutableMapping[str, Any], environment: Mapping[str, str] = os.environ) -> str:
    """Takes the nodes from the launcher's own pod where the command does not say how many; returns a remark.

    Args:
        texts: What the command says, by the options' keys.
        environment: Where the downward API puts the pod's words.

    Raises:
        ConfigError: If the pod's annotation is no range.
    """
    wanted = environment.get(variables.POD_NODES, "").strip()
    if environment.get(variables.POD_LABEL, "").strip().lower() != "true" or texts.get("nodes"):
        return ""
    if not wanted:
        return f"the pod has the label {ELASTIC_LABEL}: its annotation {NODES_ANNOTATION}, or --nodes, says MIN:MAX"
    (nodes,) = (option for option in OPTIONS if option.key == "nodes")
    try:
        read_option(nodes, wanted)
    except ConfigError as error:
        raise ConfigError(f"annotation {NODES_ANNOTATION} of the launcher's pod: {error}") from error
    texts["nodes"] = wanted
    return f"--nodes {wanted}: annotation {NODES_ANNOTATION} of the launcher's pod"


def keep_script(config: JobConfig, directory: Path) -> JobConfig:
    """Writes a script that was given as a text to a file of its own folder; returns the configuration with its path.

    Raises:
        ConfigError: If it can't be written.
    """
    if config.script is None or "\n" not in config.script:
        return config
    place = config.work_dir or f"{DEFAULT_PARENT}/script"
    path = script_path(directory / place, config.name, config.script)
    try:
        write_script(config.script, path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the script's text can't be written to {path}: {error}; choose another place with --work-dir DIR"
        ) from error
    return replace(config, script=str(path))
