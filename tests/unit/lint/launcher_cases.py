"""Cases of the rules about the launcher in a workflow's container."""

from __future__ import annotations

from textwrap import indent

from tests.unit.lint.case import Case, template, workflow

BOTH = "\n      command: [elastic-launcher, run]"
LIMIT = "\n      resources:\n        limits:\n          nvidia.com/gpu: {}"


def launch(arguments: str, limit: str) -> str:
    return template("", f"{BOTH}\n      args: [{arguments}]{LIMIT.format(limit)}")


ARGUMENTS = """
  parameters:
  - {{name: nproc_per_node, value: '{ranks}'}}
  - {{name: engine, value: {engine}}}
  - name: pod_patch
    value: {patch}
"""
BLOCK = """|
      containers:
      - name: main
        resources:
          limits:
            nvidia.com/gpu: {}"""
LINE = """'{{"containers": [{{"name": "main", "resources": {{"limits": {{"nvidia.com/gpu": "{}"}}}}}}]}}'"""


def refer(patch: str, ranks: str = "4", engine: str = "local", template: str = "elastic-train") -> str:
    """Returns a workflow with a step that is a template from elsewhere, whose pod is patched."""
    arguments = ARGUMENTS.format(ranks=ranks, engine=engine, patch=patch)
    head = "entrypoint: main\nserviceAccountName: a\npodGC: {strategy: OnPodCompletion}\ntemplates:\n- name: main\n"
    call = f"  steps:\n  - - name: train\n      templateRef: {{name: {template}, template: train}}\n      arguments:"
    return workflow(head + call + indent(arguments, " " * 6))


def whole(patch: str) -> str:
    """Returns a workflow that is our template."""
    arguments = ARGUMENTS.format(ranks="4", engine="''", patch=patch)
    return workflow(f"workflowTemplateRef: {{name: elastic-train}}\nserviceAccountName: a\narguments:{arguments}")


CASES = [
    Case("gpus-per-node", refer(BLOCK.format("2  # here")), refer(BLOCK.format("4"))),
    Case("gpus-per-node", refer(LINE.format("2") + "  # here"), refer(LINE.format("2"), template="other")),
    Case("gpus-per-node", refer(BLOCK.format("2  # here")), refer(BLOCK.format("2"), engine="kubernetes")),
    Case("gpus-per-node", refer(BLOCK.format("2  # here")), refer(BLOCK.format("2"), engine="'{{item}}'")),
    Case("gpus-per-node", refer(BLOCK.format("2  # here")), refer(BLOCK.format("2"), ranks="{{item}}")),
    Case("gpus-per-node", refer(BLOCK.format("2  # here")), refer(BLOCK.format("'{{item}}'"))),
    Case("pod-patch-field", refer("'{container: []}'  # here"), refer("'{containers: []}'")),
    Case("pod-patch-container", refer("'{containers: [{name: train}]}'  # here"), refer("'{{item}}'")),
    Case("pod-patch-value", whole(BLOCK.format("many  # here")), whole(BLOCK.format("'{{item}}'"))),
    Case("pod-patch-syntax", whole("'{containers: ['  # here"), whole("'{}'")),
    Case("gpus-per-node", whole(BLOCK.format("2  # here")), whole(BLOCK.format("8"))),
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
