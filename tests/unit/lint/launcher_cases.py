"""Cases of the rules about the launcher in a workflow's container."""

from __future__ import annotations

from tests.unit.lint.case import Case, template

BOTH = "\n      command: [elastic-launcher, run]"
LIMIT = "\n      resources:\n        limits:\n          nvidia.com/gpu: {}"


def launch(arguments: str, limit: str) -> str:
    return template("", f"{BOTH}\n      args: [{arguments}]{LIMIT.format(limit)}")


CASES = [
    Case("gpus-per-node", launch("--nproc-per-node, '4'", "2  # here"), launch("--nproc-per-node, '4'", "4")),
    Case("gpus-per-node", launch("--nproc-per-node=4", "'2'  # here"), launch("--nproc-per-node=4", "0")),
    Case(
        "gpus-per-node",
        launch("'--nodes 1:2 --nproc-per-node 4 -- train.py'", "1  # here"),
        launch("--nproc-per-node=4, --engine=kubernetes", "1"),
    ),
    Case(
        "gpus-per-node",
        launch("\"echo it's\", --nproc-per-node, '4'", "1  # here"),
        launch("--nproc-per-node, '{{inputs.parameters.ranks}}'", "1"),
    ),
]
