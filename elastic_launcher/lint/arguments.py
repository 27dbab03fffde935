"""Would the launcher take what our template is given? Its parameters are checked as the command line checks options."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from elastic_launcher.argo import CLAIM, OPEN, PARAMETERS, check_known
from elastic_launcher.argo import NAME as ELASTIC_TRAIN
from elastic_launcher.lint.finding import Finding, finding
from elastic_launcher.lint.tree import Node
from elastic_launcher.lint.workflow import Use, Workflow
from elastic_launcher.options import BY_KEY, ConfigError, read_option

_NAMES = tuple(option.key for option in (*PARAMETERS, CLAIM))
_KEYS = {option.flag: option.key for option in BY_KEY.values()}
_FLAG = re.compile(r"--[a-z]+(?:-[a-z]+)*")
_FIX = "write what the launcher takes: docs/argo.md has each parameter"


def check_arguments(workflow: Workflow) -> Iterator[Finding]:
    """Finds what our template is given in vain, and what the launcher refuses when the step runs."""
    for use in workflow.uses_of(ELASTIC_TRAIN):
        yield from _unknown(use)
        found = list(_values(use))
        yield from found or _together(use)


def _unknown(use: Use) -> Iterator[Finding]:
    for name, parameter in use.parameters.items():
        if name and name not in _NAMES and OPEN not in name:
            near = difflib.get_close_matches(name, _NAMES, 1)
            reason = f'{ELASTIC_TRAIN} has no parameter "{name}": it is left out without a word'
            fix = f'write "{near[0]}"' if near else "take it out, or put it among the script's own arguments"
            yield finding("elastic-argument", parameter.at("name"), reason, fix)


def _values(use: Use) -> Iterator[Finding]:
    """Finds values that are wrong by themselves."""
    for key in BY_KEY:
        value = use.value(key)
        if value.text and OPEN not in value.text:
            try:
                read_option(BY_KEY[key], value.text)
            except ConfigError as error:
                yield _refused(value, error)


def _together(use: Use) -> Iterator[Finding]:
    """Finds the first thing that makes no job of the values."""
    given = {key: use.value(key) for key in BY_KEY if key in use.parameters}
    texts = {key: value.text if value.there else OPEN for key, value in given.items()}  # a ConfigMap may have it
    trained = texts.get("script") or texts.get("module")
    if not trained and not use.is_step:
        texts["script"] = OPEN
    elif not trained:
        reason = "neither script nor module is given: the step ends at once, with exit code 2"
        yield finding("elastic-argument", use.reference, reason, "give one of them: script, or module")
        return
    try:
        check_known(texts)
    except ConfigError as error:
        named = (use.value(_KEYS[flag]) for flag in _FLAG.findall(str(error)) if flag in _KEYS)
        yield _refused(next((value for value in named if value.there), use.reference), error)


def _refused(node: Node, error: ConfigError) -> Finding:
    said = _FLAG.sub(lambda flag: _KEYS.get(flag[0], flag[0]), str(error))
    return finding("elastic-argument", node, f"{said}; the step ends at once, with exit code 2", _FIX)
