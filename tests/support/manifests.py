"""Reads what lies in ``manifests/``, as kustomize does where a kustomization is no more than a list of resources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.support.places import ROOT

MANIFESTS = ROOT / "manifests"
KUSTOMIZATION = "kustomization.yaml"
OVERLAYS = sorted(path.parent for path in MANIFESTS.glob("overlays/*/kustomization.yaml"))


def documents(file: Path) -> list[dict[str, Any]]:
    """Returns the objects of a file."""
    return [one for one in yaml.safe_load_all(file.read_text()) if one is not None]


def files(folder: Path) -> list[Path]:
    """Returns the files that a kustomization is made of, those of others that it names included."""
    found: list[Path] = []
    for name in documents(folder / KUSTOMIZATION)[0].get("resources", ()):
        path = (folder / name).resolve()
        found += files(path) if path.is_dir() else [path]
    return found


def generated(folder: Path) -> dict[str, list[Path]]:
    """Returns the files that a kustomization makes ConfigMaps of, by the ConfigMaps' names."""
    generators = documents(folder / KUSTOMIZATION)[0].get("configMapGenerator", ())
    return {one["name"]: [folder / name for name in one["files"]] for one in generators}


def objects(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """Returns the objects of some kinds that a kustomization is made of; of all kinds where none is named."""
    found = [one for file in files(folder) for one in documents(file)]
    return [one for one in found if not kinds or one["kind"] in kinds]


def rights(roles: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    """Returns what Roles grant: group, resource, verb."""
    return {
        (group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
