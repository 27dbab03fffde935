"""Checks the parameters that our template gets, as the command line checks options."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Set

from elastic_launcher.argo import CLAIM, ENTRYPOINT, ON_CLAIM, OPEN, PARAMETERS, check_known
from elastic_launcher.argo import NAME as ELASTIC_TRAIN
from elastic_launcher.lint.documents.finding import Finding, finding
from elastic_launcher.lint.documents.tree import Node
from elastic_launcher.lint.documents.workflow import Use, Workflow
from elastic_launcher.options import BY_KEY, ConfigError, read_option

_NAMES = tuple(option.key for option in PARAMETERS)
_TEMPLATES = {"": _NAMES, ENTRYPOINT: _NAMES, ON_CLAIM: (*_NAMES, CLAIM.key)}
"""The names of each template's parameters; without a name, it is that which ours starts with."""
_KEYS = {option.flag: option.key for option in BY_KEY.values()}
_FLAG = re.compile(r"--[a-z]+(?:-[a-z]+)*")
_QUOTED = r"""(?<!\w)(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")"""
_FIX = "write what the launcher takes: docs/argo.md has each parameter"


_OWN = re.compile(r"\bworkflow\.parameters(?:\.([\w-]+)|\[\s*['\"]([\w-]+)|(.))", re.DOTALL)
"""A parameter that a workflow takes itself, by either name of it, or, last, something that may be any."""
_ALL = "json"
"""Stands for all parameters together."""


def check_arguments(workflow: Workflow) -> Iterator[Finding]:
    """Finds what our template is given in vain, and what the launcher refuses when the step runs."""
    for use in workflow.uses_of(ELASTIC_TRAIN):
        if use.template in _TEMPLATES:
            yield from _unknown(use, set() if use.is_step else _taken(workflow))
            found = [*_values(use), *_claim(use)]
            yield from found or _together(use)
        elif near := difflib.get_close_matches(use.template, _TEMPLATES, 1):
            reason = f'{ELASTIC_TRAIN} has no template "{use.template}": the workflow ends in an error'
            yield finding("elastic-argument", use.reference, reason, f'write "{near[0]}"')


def _taken(workflow: Workflow) -> set[str]:
    """Returns the names of parameters that a workflow takes itself; "" among them where it may be all."""
    found = (words for node in workflow.node.walk() for words in _OWN.findall(node.text))
    return {"" if name == _ALL else name or quoted for name, quoted, _ in found}


def _unknown(use: Use, taken: Set[str]) -> Iterator[Finding]:
    names = _TEMPLATES[use.template]
    for name, parameter in use.parameters.items():
        if name and name not in (*names, *taken) and OPEN not in name and "" not in taken:
            near = difflib.get_close_matches(name, names, 1)
            reason = f'{ELASTIC_TRAIN} has no parameter "{name}": it is left out without a word'
            fix = f'write "{near[0]}"' if near else "take it out, or put it among the script's own arguments"
            yield finding("elastic-argument", parameter.at("name"), reason, fix)


def _values(use: Use) -> Iterator[Finding]:
    """Finds values that are wrong by themselves."""
    for key, option in BY_KEY.items():
        text = use.text(key)
        if text and OPEN not in text:
            try:
                read_option(option, text)
            except ConfigError as error:
                yield _refused(use, use.value(key), error)


def _claim(use: Use) -> Iterator[Finding]:
    """Finds a step on a claim that no claim is named for: the one parameter without a default."""
    if use.template == ON_CLAIM and use.is_complete and CLAIM.key not in use.parameters:
        reason = f"{CLAIM.key} is not given, and has no default: the workflow ends in an error"
        yield finding("elastic-argument", use.reference, reason, "give the name of a PersistentVolumeClaim")


def _together(use: Use) -> Iterator[Finding]:
    """Finds the first thing that makes no job of the values."""
    texts = {key: use.text(key) for key in BY_KEY if use.is_complete or key in use.parameters}
    texts |= {key: OPEN for key in BY_KEY if key not in texts}
    if not texts["script"] and not texts["module"]:
        reason = "neither script nor module is given: the step ends at once, with exit code 2"
        yield finding("elastic-argument", use.reference, reason, "give one of them: script, or module")
        return
    if "\n" in texts["script"].strip() and OPEN in texts["script"]:  # Argo makes a script of it with any value
        texts["script"] = OPEN
    try:
        check_known(texts)
    except ConfigError as error:
        named = (use.value(_KEYS[flag]) for flag in _FLAG.findall(str(error)) if flag in _KEYS)
        yield _refused(use, next((value for value in named if value.there), use.reference), error)


def _refused(use: Use, node: Node, error: ConfigError) -> Finding:
    """Returns the launcher's message, with parameters in place of its own flags, and the user's words as they are."""
    own = sorted((text for name in use.parameters if "--" in (text := use.text(name))), key=len, reverse=True)
    parts = re.compile("|".join([*map(re.escape, own), _QUOTED, f"(?P<flag>{_FLAG.pattern})"]), re.DOTALL)
    first = _FLAG.match(str(error))  # which is ours, not the user's spelling
    start = first.end() if first else 0
    said = parts.sub(lambda found: _KEYS.get(found["flag"], found[0]), str(error)[start:])
    said = (_KEYS.get(first[0], first[0]) if first else "") + said
    return finding("elastic-argument", node, f"{said}; the step ends at once", _FIX)
