"""The layers of the package: nothing imports upwards, and nothing imports in a circle, wherever the import stands."""

from __future__ import annotations

import re
from pathlib import Path

import networkx
import pytest
from grimp import ImportGraph, build_graph

ROOT = "elastic_launcher"
LAYERS = (
    {
        "argument",
        "batch",
        "batch_schedule",
        "config",
        "content",
        "field_types",
        "lane_order",
        "logged",
        "options",
        "period",
        "resume_advice",
        "sampling",
        "variables",
        "virtual_ranks",
        "weighted_sampling",
    },
    {"checkpoint", "control", "events", "hints", "host", "kube", "workdir"},
    {"adaptive", "agent", "engines", "quota", "report", "torch"},
    {"coordinator"},
    {"integrations", "keras", "launcher"},
    {"__main__", "_components", "argo", "cli", "hera", "kfp", "kfp_steps", "lint", "pipeline_step"},
)
"""From the ground up; `docs/architecture.md` says what each holds."""
MOST_MODULES = 14


@pytest.fixture(scope="module")
def graph() -> ImportGraph:
    """Returns what imports what, also within functions and for types alone."""
    return build_graph(ROOT, cache_dir=None)


def imports(graph: ImportGraph) -> list[tuple[str, str]]:
    return [(one, other) for one in sorted(graph.modules) for other in graph.find_modules_directly_imported_by(one)]


def part(module: str, package: str) -> str:
    """Returns which child of a package a module is, or is in; "" for the package itself, or what is elsewhere."""
    return module.removeprefix(f"{package}.").split(".")[0] if module.startswith(f"{package}.") else ""


def test_every_part_has_a_layer(graph: ImportGraph) -> None:
    parts = {part(module, ROOT) for module in graph.modules} - {""}
    assert parts == set().union(*LAYERS) and len(parts) == sum(map(len, LAYERS))


def test_nothing_imports_upwards(graph: ImportGraph) -> None:
    layer = {name: number for number, names in enumerate(LAYERS) for name in names} | {"": 0}
    upwards = [
        f"{a} imports {b}" for a, b in imports(graph) if layer[part(b, ROOT)] > layer[part(a, ROOT)] and a != ROOT
    ]
    assert upwards == []


def test_no_module_imports_itself_in_a_circle(graph: ImportGraph) -> None:
    circles = networkx.strongly_connected_components(networkx.DiGraph(imports(graph)))
    assert [sorted(circle) for circle in circles if len(circle) > 1] == []


def test_no_two_parts_of_a_package_import_each_other(graph: ImportGraph) -> None:
    found = {}
    for package in (module for module in graph.modules if graph.find_children(module)):
        parts = [(part(a, package), part(b, package)) for a, b in imports(graph)]
        circles = networkx.strongly_connected_components(networkx.DiGraph([(a, b) for a, b in parts if a and b]))
        found[package] = [sorted(circle) for circle in circles if len(circle) > 1]
    assert {package: circles for package, circles in found.items() if circles} == {}


def test_no_folder_holds_more_modules_than_one_sees_at_a_glance(graph: ImportGraph) -> None:
    packages = [module for module in graph.modules if module != ROOT and graph.find_children(module)]
    counts = {one: sum(not graph.find_children(child) for child in graph.find_children(one)) for one in packages}
    assert {one: count for one, count in counts.items() if count > MOST_MODULES} == {}


def test_the_architecture_page_names_files_that_are_there() -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", Path("docs/architecture.md").read_text(encoding="utf-8")))
    assert len(named) > 40
    assert {name for name in named if not Path(name).exists() and not Path(ROOT, name).exists()} == set()
