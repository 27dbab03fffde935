"""Passes texts of a task's author to the step unchanged.

On a backend they pass through arguments of containers, where Kubernetes makes ``$`` of ``$$`` and a variable's value of
``$(NAME)``, and through Argo, which fills ``{{...}}`` in. So a text with any of these goes as a ``data:`` URL of a
media type of our own: any other is the author's, or that of whoever has given a run its parameters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from elastic_launcher.argument import word
from elastic_launcher.options import AUTO, OPTIONS, ConfigError, without_edges

MOST = 120 * 1024
"""Bytes of a task's inputs as JSON. One argument of a command has 128 KiB on Linux, and Kubeflow puts what it says of
the step's artifacts beside them."""
AUTO_NUMBER = -1
"""How a task's input that is a number, as Kubeflow wants it, has ``auto``."""
_PREFIX = "data:text/x.elastic-launcher,"
_CHANGED = re.compile(r"\$(?=[$(])|\{(?=\{)")
_FILLED_IN = re.compile(r"\{\{(?:channel:|\$).*?\}\}")
"""What Kubeflow fills in: inputs and outputs within a text, and names of the run."""


def sent(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the inputs of a task that trains as they are sent, for its step to read with :func:`received`.

    Args:
        inputs: What the author gives: constants, and what only the run knows.

    Raises:
        ConfigError: If a text would be changed on its way, or all are too long for a step's command.
    """
    given = in_words(inputs)
    for option in OPTIONS:
        value = given.get(option.key)
        if option.kind == "whole_or_auto" and isinstance(value, str) and value == AUTO:  # what the run knows equals all
            given[option.key] = AUTO_NUMBER
    given = {name: protected(value, name) for name, value in given.items()}
    check_size(given)
    return given


def in_words(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the inputs of a task with words in place of numbers, which would all come as fractions.

    Raises:
        ConfigError: If a value can't be a word.
    """
    return {name: _words(name, value) if name in ("arguments", "match") else value for name, value in inputs.items()}


def protected(value: Any, name: str) -> Any:
    """Returns the encoding of a constant: itself where nothing would change it.

    Args:
        value: A text, or a list or dict with texts; of anything else, itself.
        name: Of the parameter.

    Raises:
        ConfigError: If Kubeflow fills in a part of a text of which Kubernetes or Argo would change another.
    """
    match value:
        case str():
            return _protected(value, name)
        case list() | tuple():
            return [protected(one, name) for one in value]
        case dict():
            return {key: protected(one, name) for key, one in value.items()}
    return value


def received(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the inputs of a step as its author gave them, without the line breaks and spaces around texts."""
    given = {name: revealed(value) for name, value in inputs.items()}
    return {name: without_edges(value) if isinstance(value, str) else value for name, value in given.items()}


def revealed(value: Any) -> Any:
    """Returns the constant that :func:`protected` was given."""
    match value:
        case str():
            return unquote(value.removeprefix(_PREFIX)) if value.startswith(_PREFIX) else value
        case list():
            return [revealed(one) for one in value]
        case dict():
            return {key: revealed(one) for key, one in value.items()}
    return value


def untouched(text: str) -> str:
    """Returns a text for people, an output, with spaces where Kubernetes or Argo would change it on its way."""
    return _CHANGED.sub(r"\g<0> ", text)


def check_size(inputs: Mapping[str, Any]) -> None:
    """Refuses constants that no container can be started with.

    Raises:
        ConfigError: If they are too long together, naming the longest.
    """
    sizes = {name: json_size(value) for name, value in inputs.items()}
    size = sum(sizes.values())
    if size > MOST:
        raise ConfigError(too_long(max(sizes, key=lambda name: sizes[name]), size))


def json_size(value: Any) -> int:
    """Returns how many bytes a constant has as JSON; 0 for what is no constant."""
    try:
        return len(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except TypeError:
        return 0


def too_long(name: str, size: int) -> str:
    """Returns the message about inputs that are too long."""
    what = "the script" if name == "script" else "what it holds"
    return (
        f"{name} is too long: the inputs of the task have {size} bytes, written as JSON, and {MOST} is the most that a "
        f"step's command has room for: put {what} into the image, and give its path"
    )


def changed(text: str, variables: frozenset[str] = frozenset()) -> str:
    """Returns the first part of a constant that Kubernetes changes on its way; "" where it changes none.

    ``variables`` are the names of the container's.
    """
    found = re.search(r"\$\$|\$\((" + "|".join(map(re.escape, sorted(variables))) + r")\)", text)
    return found[0] if found else ""


def _words(name: str, value: Any) -> Any:
    """Returns a list or a dict of texts for one of anything, but for what only the run knows."""
    if isinstance(value, dict):
        return {key: one if _knows_the_run(one) else _word(name, one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [one if _knows_the_run(one) else _word(name, one) for one in value]
    return value


def _word(name: str, value: Any) -> str:
    try:
        return word(value)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error


def _knows_the_run(value: Any) -> bool:
    """Whether a value is, or holds, what only the run knows: an input of the pipeline, or another task's output."""
    if isinstance(value, list | tuple):
        return any(map(_knows_the_run, value))
    if isinstance(value, dict):
        return any(map(_knows_the_run, value.values()))
    return type(value).__module__.startswith("kfp.")


def _protected(text: str, name: str) -> str:
    if not (_CHANGED.search(_FILLED_IN.sub("", text)) or text.startswith(_PREFIX)):
        return text
    if _FILLED_IN.search(text):
        raise ConfigError(
            f"{name}: Kubeflow fills in a part of a text, and on its way $$, $( or {{{{ in the rest of it would be "
            "changed: give them apart, as two arguments"
        )
    return _PREFIX + text.replace("%", "%25").replace("$", "%24").replace("{{", "%7B%7B")
