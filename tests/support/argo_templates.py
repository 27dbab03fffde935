"""Argo's templates with their inputs filled in, as a controller does it."""

from __future__ import annotations

import re
from typing import Any

REFERENCE = re.compile(r"\{\{inputs\.parameters\.(\w+)\}\}")
DOUBLED = re.compile(r"\{\{=replace\(inputs\.parameters\['(\w+)'\], '\$', '\$\$'\)\}\}")


def filled(template: dict[str, Any], given: dict[str, str]) -> Any:
    """Returns a template as Argo makes its pod of it: each reference to an input is that input's value."""
    values = {one["name"]: given.get(one["name"], one.get("default")) for one in template["inputs"]["parameters"]}

    def fill(found: Any) -> Any:
        if isinstance(found, dict):
            return {key: fill(value) for key, value in found.items()}
        if isinstance(found, list):
            return [fill(one) for one in found]
        if not isinstance(found, str):
            return found
        whole = DOUBLED.sub(lambda match: str(values[match[1]]).replace("$", "$$"), found)
        return REFERENCE.sub(lambda match: str(values[match[1]]), whole) if whole == found else whole

    return fill({key: value for key, value in template.items() if key != "inputs"})
