"""Edits one entry of a hints document.

Invariant: the rest of it stays as it was, fields that are not known here too, and what comes out can be used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from elastic_launcher.hints.document import API_VERSION, load, parse
from elastic_launcher.hints.match import named
from elastic_launcher.hints.values import HintError

Change = Callable[[str | bytes], str]
"""Makes the new document of the old one, which is empty where there was none."""


def edit(text: str | bytes, match: Mapping[str, str], numbers: Mapping[str, int]) -> str:
    """Returns a document in which an entry has other numbers, and the generation, if there is one, is one more.

    Args:
        text: The document, of either form; empty for a new one.
        match: Whom the entry speaks for; empty for the defaults.
        numbers: ``allowed``, ``guaranteed``, ``limit``: those to set.

    Raises:
        HintError: If the document could not be used before, or could not be afterwards.
    """
    if not text.strip():
        found: dict[str, Any] = {"apiVersion": API_VERSION, "generation": 0, "hints": []}
    else:
        parse(text)  # what is broken is mended by whoever broke it
        found = load(text)
    if "apiVersion" in found:
        _edit_document(found, match, numbers)
    else:
        _edit_flat(found, match, numbers)
    changed = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    parse(changed)
    return changed


def _edit_document(found: dict[str, Any], match: Mapping[str, str], numbers: Mapping[str, int]) -> None:
    if match:
        rows: list[dict[str, Any]] = found.setdefault("hints", [])
        same = [row for row in rows if named(row.get("match", {})) == named(match)]
        if not same:
            same = [{"match": dict(match), "gpus": {}}]
            rows += same
        entry = max(same, key=lambda row: int(row.get("priority", 0)))  # the one that wins, and of equals the first
    else:
        entry = found.setdefault("defaults", {"gpus": {}})
    entry["gpus"].update(numbers)
    if "generation" in found:
        found["generation"] += 1


def _edit_flat(found: dict[str, Any], match: Mapping[str, str], numbers: Mapping[str, int]) -> None:
    keys = [f"{kind}.{name}" for kind, name in match.items()] or ["default"]
    if len(keys) > 1 or "limit" in numbers:
        raise HintError(
            'the flat form has one match key and no limit; for more it must be the form with "apiVersion": '
            f'"{API_VERSION}"'
        )
    guaranteed, colon, allowed = (part.strip() for part in found.get(keys[0], "").rpartition(":"))
    allowed = str(numbers.get("allowed", allowed))
    guaranteed = str(numbers["guaranteed"]) if "guaranteed" in numbers else guaranteed
    found[keys[0]] = f"{guaranteed}:{allowed}" if guaranteed else allowed
