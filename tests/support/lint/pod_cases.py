"""Cases of the rules about pods, patches of pods, and what stands in other files."""

from __future__ import annotations

from tests.support.lint.case import Case, template, workflow


def patch(text: str, more: str = "") -> str:
    lines = "\n".join(f"  {line}" for line in text.splitlines())
    return template(f"podSpecPatch: |\n{lines}\n{more}")


def mount(volumes: str, kind: str = "Workflow") -> str:
    return workflow(
        f"""
        entrypoint: main
        volumes: [{{name: {volumes}, emptyDir: {{}}}}]
        templates:
        - name: main
          container:
            command: [python]
            volumeMounts:
            - name: data  # here
              mountPath: /data
        """,
        kind,
    )


def condition(text: str) -> str:
    return workflow(
        f"""
        templates:
        - name: main
          resource:
            action: create
            successCondition: {text}
        """
    )


def amount(text: str) -> str:
    return template("", f"\n      command: [a]\n      resources:\n        limits:\n          nvidia.com/gpu: {text}")


CALL = """
entrypoint: main
{spec}
templates:
- name: main
  steps:
  - - name: train
      templateRef: {ref}
"""


def call(spec: str = "", ref: str = "  # here\n        {name: lib, template: train}") -> str:
    return workflow(CALL.format(spec=spec or "priority: 1", ref=ref))


def library(spec: str, fields: str = "") -> str:
    train = "- name: train\n  container: {command: [a], volumeMounts: [{name: v, mountPath: /v}]}"
    text = f"entrypoint: train\n{V}\n{spec}\ntemplates:\n{train}\n{fields}"
    return "---\n" + workflow(text, "WorkflowTemplate", "lib")


V = "volumes: [{name: v, emptyDir: {}}]"
OURS = """  # here
        {name: elastic-train, template: elastic-train, clusterScope: true}
      arguments: {parameters: [{name: module, value: train}]}"""


def configmap(label: str = "Parameter", key: str = "size", mark: str = "") -> str:
    label = f"labels: {{workflows.argoproj.io/configmap-type: {label}}}"
    return f"---\nkind: ConfigMap\napiVersion: v1\nmetadata:{mark}\n  name: sizes\n  {label}\ndata: {{{key}: '1'}}\n"


def sized(reference: str, default: str = "\n      default: '1'") -> str:
    source = f"inputs:\n  parameters:\n  - name: nodes\n    valueFrom:{default}\n      configMapKeyRef:{reference}"
    return template(source)


REFERENCE = "\n        name: sizes\n        key: size"


def label(place: str) -> str:
    return workflow(f"entrypoint: main\n{place}")


WITHOUT_COMMAND = "templates:\n- name: a\n  container: {image: python}"
STEPS = "  steps: [[{name: a, template: b}]]"
POD = "templates:\n- name: main\n  container: {command: [a]}"

CASES = [
    Case("volume-mount", mount("other"), mount("data")),
    Case("volume-from-caller", mount("other", "WorkflowTemplate"), mount("data", "WorkflowTemplate")),
    Case("volume-mount", mount("other"), workflow("workflowTemplateRef: {name: lib}\ntemplates: []")),
    Case("missing-command", template("", "{image: python}  # here"), template("", "{image: python, command: [a]}")),
    Case("missing-command", workflow("templates:\n- name: a\n  script: {source: x}  # here"), template("")),
    *(
        Case(
            "missing-command",
            workflow(f"{bad}\ntemplates:\n- name: a\n  container: {{image: python}}  # here"),
            workflow(f"templateDefaults: {{container: {{command: [a]}}}}\n{WITHOUT_COMMAND}"),
        )
        for bad in (
            "templateDefaults: {timeout: 5s}",
            "templateDefaults: {container: {image: python, command: []}}",
            "templateDefaults: {script: {command: [a]}}",
        )
    ),
    Case(
        "missing-command",
        workflow("templateDefaults: {container: {command: [a]}}\ntemplates:\n- name: a\n  script: {source: x}  # here"),
        workflow("templateDefaults: {script: {command: [a]}}\ntemplates:\n- name: a\n  script: {source: x}"),
    ),
    Case("quantity", amount('"{{inputs.parameters.gpus}}"  # here'), amount("2")),
    Case("quantity", amount("two  # here"), amount("'2'")),
    Case("success-condition", condition("status.completionTime != ''  # here"), condition("status.completionTime")),
    Case("success-condition", condition("a == 1 && b == 2  # here"), condition("status.succeeded == 2, b in (x, y)")),
    Case("success-condition", condition("status.succeeded >= 2  # here"), condition("status.succeeded > 1,!x,y!=z")),
    Case("pod-patch-syntax", template("podSpecPatch: '{\"containers\": ['  # here"), patch('{"containers": []}')),
    Case(
        "pod-patch-syntax",
        template("podSpecPatch: nothing  # here"),
        template('podSpecPatch: "{{inputs.parameters.p}}"'),
    ),
    Case(
        "pod-patch-field",
        patch("terminationGracePeriod: 90  # here"),
        patch("terminationGracePeriodSeconds: 90\n$retainKeys: [x]"),
    ),
    Case(
        "pod-patch-field",
        patch("containers:\n- name: main\n  resources:\n    limit: {}  # here"),
        patch("containers:\n- name: main\n  resources:\n    limits: {nvidia.com/gpu: {{inputs.parameters.gpus}}}"),
    ),
    Case(
        "pod-patch-field",
        workflow('podSpecPatch: \'{"priority_class": "a"}\'  # here'),
        workflow('podSpecPatch: \'{"priorityClassName": "{{workflow.parameters.p}}"}\''),
    ),
    Case("pod-patch-value", patch("priorityClassName: 5  # here"), patch("priorityClassName: high")),
    Case("pod-patch-value", patch("affinity: none  # here"), patch("affinity: {}\ncontainers: [{$patch: delete}]")),
    Case("pod-patch-value", patch("tolerations: {}  # here"), patch("tolerations: [{operator: Exists}]")),
    Case("pod-patch-value", patch("nodeSelector: {a: 1}  # here"), patch("nodeSelector: {a: '1'}")),
    Case(
        "pod-patch-value",
        patch("containers:\n- name: main\n  resources:\n    limits:\n      x/gpu: two  # here"),
        patch("containers:\n- name: main\n  resources:\n    limits:\n      x/gpu: 2"),
    ),
    Case(
        "pod-patch-container",
        patch("containers:\n- name: trainer  # here\n  tty: true"),
        patch(
            "containers:\n- name: main\n  tty: true\n- {name: wait}\n- {name: extra, image: a}\n- {name: side}",
            "sidecars: [{name: side}]",
        ),
    ),
    Case("pod-patch-container", patch("containers:\n- tty: true  # here"), patch("initContainers: [{name: init}]")),
    Case(
        "configmap-label",
        sized(REFERENCE) + configmap("Cache", mark="  # here"),
        sized(REFERENCE) + configmap(),
    ),
    Case(
        "configmap-key",
        sized("\n        name: sizes\n        key: size  # here") + configmap(key="sizes"),
        sized(REFERENCE) + configmap(),
    ),
    Case("configmap-default", sized("  # here" + REFERENCE, ""), sized(REFERENCE)),
    Case("configmap-optional", sized(REFERENCE + "\n        optional: true  # here"), sized(REFERENCE)),
    Case("template-ref-volume", call() + library(""), call(V) + library("")),
    Case("template-ref-volume", call() + library(""), call() + library("", f"  {V}")),
    Case(
        "template-ref-service-account",
        call(V) + library("serviceAccountName: a"),
        call(f"{V}\nserviceAccountName: a") + library("serviceAccountName: a"),
    ),
    Case("template-ref-service-account", call("podGC: {}", OURS), call("podGC: {}\nserviceAccountName: a", OURS)),
    Case(
        "template-ref-pod-gc",
        call(V) + library("podGC: {strategy: OnPodCompletion}"),
        call(f"{V}\npodGC: {{strategy: OnPodCompletion}}") + library("podGC: {strategy: OnPodCompletion}"),
    ),
    Case("template-ref-pod-gc", call("serviceAccountName: a", OURS), call("podGC: {}\nserviceAccountName: a", OURS)),
    Case(
        "elastic-label",
        label(f"workflowMetadata:\n  labels:\n    elastic: 'true'  # here\n{POD}"),
        label(f"podMetadata:\n  labels:\n    elastic: 'true'\n{POD}"),
    ),
    Case(
        "elastic-label",
        label(POD).replace("{name: train}", "\n  name: a\n  labels:\n    elastic: 'true'  # here"),
        label(POD + "\n  metadata: {labels: {elastic: 'true'}}"),
    ),
    Case(
        "elastic-label",
        label(f"templates:\n- name: main\n{STEPS}\n  metadata:\n    labels:\n      elastic: 'true'  # here"),
        label(f"workflowMetadata: {{labels: {{elastic: 'true'}}}}\n{POD}\n  metadata: {{labels: {{elastic: 'true'}}}}"),
    ),
    Case(
        "elastic-label",
        label(f"workflowMetadata:\n  annotations:\n    elastic-launcher/nodes: '1:4'  # here\n{POD}"),
        label(f"podMetadata:\n  annotations:\n    elastic-launcher/nodes: '1:4'\n{POD}"),
    ),
    Case(
        "elastic-label",
        label(
            f"templates:\n- name: main\n{STEPS}\n  metadata:\n"
            "    annotations:\n      elastic-launcher/nodes: '1:4'  # here"
        ),
        label(POD + "\n  metadata: {annotations: {elastic-launcher/nodes: '1:4'}}"),
    ),
]
