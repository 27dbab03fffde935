"""Hera's models know the fields that Argo's published CRDs have, but for the newer ones that the linter names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

import yaml
from hera.workflows import models

from elastic_launcher.lint.workflows.schema import NEWER, _inner
from tests.support.cluster.argo_crds import crd_file


def unknown(schema: Mapping[str, Any], annotation: Any, seen: set[Any]) -> Iterator[tuple[str, str]]:
    """Yields the fields, with their model, that a schema has and the model of the same object has not."""
    found = _inner(annotation)
    if get_origin(found) in (list, dict):
        below = schema.get("items") or schema.get("additionalProperties")
        if isinstance(below, dict):
            yield from unknown(below, get_args(found)[-1], seen)
        return
    properties: Mapping[str, Any] = schema.get("properties", {})
    if found in seen or not properties:
        return
    seen.add(found)
    fields = {field.alias or name: field.annotation for name, field in found.model_fields.items()}
    for name, below in properties.items():
        if name in fields:
            yield from unknown(below, fields[name], seen)
        else:
            yield found.__name__, name


def test_the_models_know_what_the_crds_have() -> None:
    missing: set[str] = set()
    for kind in ("Workflow", "CronWorkflow"):
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        crd = yaml.load(crd_file(f"{kind.lower()}s").read_text(), Loader=loader)
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        spec = getattr(models, f"{kind}Spec")
        missing |= {name for _, name in unknown(schema, spec, set())}
    assert missing == NEWER
