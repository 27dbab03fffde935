"""Checks an object against the schema of Argo's API, by Hera's models, which are generated from it.

The API server drops fields that it does not know, unless the client asks for validation; kubectl does, SDKs don't.
"""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union, get_args, get_origin

from elastic_launcher.lint.documents.finding import Finding, finding
from elastic_launcher.lint.documents.tree import Key, Node
from elastic_launcher.lint.libraries import needed

NEWER = frozenset(
    {
        "addressingStyle",
        "executorPlugins",
        "fileKeyRef",
        "pendingTimeout",
        "podCertificate",
        "podResources",
        "resourceClaims",
        "restartPolicyRules",
        "saveStreamViaFile",
    }
)
"""Fields that Argo 4.1 has, and Hera's models, made from 4.0, lack yet."""
_UNSEEN = ("status",)
"""What the controller writes, not the user."""
_LOCKS = {"semaphore": "semaphores", "mutex": "mutexes"}
_SCHEDULE, _SCHEDULES = "schedule", "schedules"
_OF_PARAMETERS = ("value", "default", "enum")
_A_TEXT = "a text"
_WANTED = {"string_type": _A_TEXT, "int_type": "a whole number", "bool_type": "true or false"}
_EXAMPLE = 40
"""So much of a wrong value is shown."""


def check_schema(document: Node, kind: str) -> Iterator[Finding]:
    """Finds fields of an object of Argo's API, by its model, that are not known, not there, or of another type."""
    model = getattr(needed("hera.workflows.models", "Workflows are checked against Hera's models", "hera"), kind)
    pydantic = needed("pydantic", "Workflows are checked against Hera's models", "hera")
    plain = {key: value for key, value in document.value.items() if key not in _UNSEEN}
    try:
        model.model_validate_json(json.dumps(plain), strict=True, extra="forbid")
    except pydantic.ValidationError as error:
        seen: set[tuple[str, str]] = set()
        for one in error.errors(include_url=False):
            for found in _judged(document, model, one):
                if (found.rule, found.where) not in seen:
                    seen.add((found.rule, found.where))
                    yield found


def _judged(document: Node, model: Any, error: Mapping[str, Any]) -> Iterator[Finding]:
    place: Sequence[Key] = error["loc"]
    node = document.nearest(place)
    if error["type"] == "extra_forbidden":
        within = _inner(_annotation(model, place[:-1]))
        yield from _unknown(node, document.nearest(place[:-1]), _fields(within))
    elif error["type"] == "missing" and place[-1] == _SCHEDULES and node.at(_SCHEDULE).there:
        reason = (
            f'"{_SCHEDULE}" is no field since Argo 4.0, whose API server misses "{_SCHEDULES}" there and refuses it; '
            "both are fields of Argo 3.6 and 3.7"
        )
        fix = f'write "{_SCHEDULES}", a list, where the cluster has Argo 3.6 or newer'
        yield finding("singular-schedule", node.at(_SCHEDULE), reason, fix)
    elif error["type"] == "missing":
        name = f"{place[-1]}"
        yield finding("missing-field", node, f'"{name}" is missing; the API server refuses it', f'add "{name}"')
    elif not _quantity(model, place, node):
        yield _mistyped(node, error)


def _unknown(node: Node, parent: Node, known: Sequence[str]) -> Iterator[Finding]:
    name = f"{node.path[-1]}"
    if not known:  # a plugin's own fields, or another object that is free
        return
    if name == _SCHEDULE and _SCHEDULES in known:
        if parent.at(_SCHEDULES).there:  # otherwise what is missing says it
            reason = (
                f'"{_SCHEDULE}" can\'t stand beside "{_SCHEDULES}": Argo 3.6 and 3.7 start nothing then, and the API '
                "server of 4.0 drops it silently"
            )
            yield finding("unknown-field", node, reason, f'put it into the list of "{_SCHEDULES}"')
    elif name in _LOCKS:
        reason = (
            f'"{name}" is no field since Argo 4.0, whose API server drops it silently: the workflow runs unlocked '
            f'there; both it and "{_LOCKS[name]}" are fields of Argo 3.6 and 3.7'
        )
        fix = f'write "{_LOCKS[name]}", a list, under "synchronization", where the cluster has Argo 3.6 or newer'
        yield finding("singular-lock", node, reason, fix)
    elif name in NEWER:
        reason = f'"{name}" is a field since Argo 4.1; the API server of an older one drops it silently'
        yield finding("newer-field", node, reason, "see that the cluster's Argo is 4.1 or newer")
    else:
        reason = (
            f'"{name}" is no field there: the API server drops it silently where kubectl does not ask it to be strict'
        )
        near = difflib.get_close_matches(name, known, 1)
        yield finding("unknown-field", node, reason, f'write "{near[0]}"' if near else "take it out")


def _mistyped(node: Node, error: Mapping[str, Any]) -> Finding:
    shown = _shown(node.value)
    keys = [key for key in node.path if isinstance(key, str)]
    if len(keys) > 1 and keys[-2] == "parameters" and keys[-1] in _OF_PARAMETERS:
        reason = (
            f"{shown} is no text, and parameters are texts: the API server refuses it, argo lint --offline does not"
        )
        return finding("parameter-not-string", node, reason, f"put it in quotes: {_quoted(node.value)}")
    several = error["loc"][-1:] in (("str",), ("int",)) and len(error["loc"]) > len(node.path)
    wanted = _WANTED.get(error["type"]) or error["msg"].removeprefix("Input should be ")
    what = "a text or a whole number" if several else wanted
    is_word = isinstance(node.value, (bool, int, float))  # a text, if it stood in quotes
    fix = f"put it in quotes: {_quoted(node.value)}" if what == _A_TEXT and is_word else f"write {what}"
    return finding("wrong-type", node, f"{shown} must be {what}; the API server refuses it", fix)


def _quantity(model: Any, place: Sequence[Key], node: Node) -> bool:
    """Whether a number is given for a quantity, which the API accepts and the models don't."""
    name = getattr(_bare(_annotation(model, place)), "__name__", "")
    return name == "Quantity" and isinstance(node.value, (int, float)) and not isinstance(node.value, bool)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _EXAMPLE else text[:_EXAMPLE] + "…"


def _quoted(value: Any) -> str:
    return f"'{json.dumps(value, ensure_ascii=False)}'" if isinstance(value, (list, dict)) else f'"{_shown(value)}"'


def _fields(model: Any) -> list[str]:
    """Returns the names that a model's fields have in YAML."""
    fields: Mapping[str, Any] = getattr(model, "model_fields", {})
    return [field.alias or name for name, field in fields.items()]


def _annotation(model: Any, place: Sequence[Key]) -> Any:
    """Returns what is declared at a place of a model."""
    found: Any = model
    for key in place:
        inner = _inner(found)
        if get_origin(inner) in (list, dict):
            found = get_args(inner)[-1]
            continue
        fields = getattr(inner, "model_fields", {})
        found = next((field.annotation for name, field in fields.items() if (field.alias or name) == key), found)
    return found


def _bare(annotation: Any) -> Any:
    """Returns a type without ``Optional`` and ``Annotated`` around it."""
    while hasattr(annotation, "__metadata__") or get_origin(annotation) in (Union, types.UnionType):
        annotation = next(one for one in get_args(annotation) if one is not type(None))
    return annotation


def _inner(annotation: Any) -> Any:
    """Returns the same without models that only wrap another type."""
    found = _bare(annotation)
    while "root" in getattr(found, "model_fields", {}):
        found = _bare(found.model_fields["root"].annotation)
    return found
