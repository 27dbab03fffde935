"""Cases of the rules about the launcher in a workflow's container."""

from __future__ import annotations

from textwrap import indent

from tests.support.lint.case import Case, template, workflow

BOTH = "\n      command: [{}]"
LIMIT = "\n      resources:\n        limits:\n          nvidia.com/gpu: {}"


def launch(arguments: str, limit: str, command: str = "elastic-launcher, run") -> str:
    return template("", f"{BOTH.format(command)}\n      args: [{arguments}]{LIMIT.format(limit)}")


def shell(line: str, limit: str) -> str:
    """Returns a workflow whose container has a shell run a line."""
    return launch(f"'{line}'", limit, "sh, -c")


ARGUMENTS = """
  parameters:
  - {{name: module, value: package.train}}
  - {{name: checkpoint_dir, value: 's3://models/a'}}
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


def referred(fields: str = "", *parameters: str, kind: str = "Workflow") -> str:
    """Returns a workflow that is our template, and has other fields."""
    lines = "\n".join(f"  - {one}" for one in parameters)
    arguments = f"arguments:\n  parameters:\n{lines}\n" if parameters else ""
    text = f"workflowTemplateRef: {{name: elastic-train}}\nserviceAccountName: a\n{fields}\n{arguments}"
    if kind != "CronWorkflow":
        return workflow(text, kind)
    return workflow("schedules: ['0 4 * * *']\nworkflowSpec:\n" + indent(text, "  "), kind)


def given(*parameters: str, template: str = "train") -> str:
    """Returns a workflow with a step that is our template, and is given parameters."""
    head = "entrypoint: main\nserviceAccountName: a\npodGC: {strategy: OnPodCompletion}\ntemplates:\n- name: main\n"
    call = f"  steps:\n  - - name: train\n      templateRef: {{name: elastic-train, template: {template}}}"
    lines = "\n".join(f"- {one}" for one in ("{name: module, value: package.train}", *parameters))
    return workflow(f"{head}{call}\n      arguments:\n        parameters:\n{indent(lines, ' ' * 8)}")


def labelled(*templates: str) -> str:
    """Returns a workflow with the label for elastic jobs, and with templates."""
    text = workflow("entrypoint: main\ntemplates:\n" + "\n".join(templates))
    return text.replace("metadata: {name: train}", "metadata:\n  name: train\n  labels:\n    elastic: 'true'  # here")


def pod(name: str, command: str, label: str = "") -> str:
    metadata = f", metadata: {{labels: {{{label}}}}}" if label else ""
    return f"- {{name: {name}, container: {{image: python, command: [{command}]}}{metadata}}}"


ON_CLUSTER = "{name: engine, value: kubernetes}"
OF_MAP = "{{name: {}, valueFrom: {{configMapKeyRef: {{name: a, key: b}}, default: x}}}}"
PLACE = "{name: checkpoint_dir, value: /work/checkpoints}"
POD = """name: pod_template
  value: |{mark}
    spec:
      containers:
      - name: node
        resources:
          limits:
            nvidia.com/gpu: {gpus}
        volumeMounts:
        - {{name: work, mountPath: /work}}
      volumes:
      - {{name: work, {volume}}}"""


def nodes_pod(gpus: str = "4", volume: str = "nfs: {}", mark: str = "", ranks: str = "4", more: str = "") -> str:
    """Returns a workflow whose nodes are pods of a template, which may have more beside its ``spec``."""
    template = POD.format(gpus=gpus, volume=volume, mark=mark) + more
    return given(ON_CLUSTER, PLACE, f"{{name: nproc_per_node, value: '{ranks}'}}", template)


HERE = "  # here"
SPOT = """
    overQuota:
      priorityClassName: spot
      nodeSelector: {{machine: spot}}
      tolerations:
      - {{{0}: spot, operator: Exists}}{1}
      labels: {{team: a}}"""
MISSPELT = '{name: pod_template, value: \'{"spec": {"nodeSelektor": {"a": "b"}}}\'}'
CASES = [
    Case("pod-template", nodes_pod().replace("resources:", "resource:  # here"), nodes_pod()),
    Case("pod-template", nodes_pod().replace("nfs: {}", "emtpyDir: {}}  # here").replace("here}", "here"), nodes_pod()),
    Case(
        "pod-template",
        launch("run, '--script=a.py', '--engine=kubernetes', '--pod-template={\"spec\": {\"hosts\": 1}}'", "1").replace(
            "1}}']", "1}}']  # here"
        ),
        launch("run, '--script=a.py', '--engine=kubernetes', '--pod-template={\"spec\": {}}'", "1"),
    ),
    Case(
        "pod-template",
        launch(
            "run, '--script=a.py', '--engine=kubernetes', '--pod-template={\"spec\": {}, \"overquota\": {}}'", "1"
        ).replace("{}}']", "{}}']  # here"),
        launch("run, '--script=a.py', '--engine=kubernetes', '--pod-template={\"spec\": {}, \"overQuota\": {}}'", "1"),
    ),
    Case("elastic-argument", given("{name: node, value: '1:3'}" + HERE), given("{name: nodes, value: '1:3'}")),
    Case(  # the one parameter without a default
        "elastic-argument",
        given(template="train-on-claim").replace("on-claim}", "on-claim}" + HERE),
        given("{name: claim, value: ''}", template="train-on-claim"),
    ),
    Case(
        "elastic-argument",
        given(template="trian").replace("trian}", "trian}" + HERE),
        given(template="a-step-of-our-own"),
    ),
    Case("elastic-argument", given("{name: nodes, value: '3'}" + HERE), given("{name: nodes, value: '{{item}}'}")),
    Case(
        "elastic-argument",
        given("{name: script, value: train.py}" + HERE),
        given("{name: claim, value: work}", template="train-on-claim"),
    ),
    Case(
        "elastic-argument",
        given("{name: global_batch_size, value: '0'}" + HERE, "{name: max_runtime, value: soon}" + HERE),
        given("{name: global_batch_size, value: ''}"),
    ),
    Case("elastic-argument", given(ON_CLUSTER + HERE), given(ON_CLUSTER, PLACE)),
    Case(
        "elastic-argument",
        given(ON_CLUSTER, PLACE, "{name: hints, value: configmap/Quota}" + HERE),
        given(ON_CLUSTER, PLACE, "{name: hints, value: 'configmap/{{workflow.parameters.hints}}'}"),
    ),
    Case(
        "elastic-argument",
        given(
            "{name: engine, value: '{{item}}'}", "{name: resize, value: '{{item}}'}", "{name: share, value: 3/2}" + HERE
        ),
        given("{name: share, valueFrom: {configMapKeyRef: {name: a, key: b}, default: 1/2}}"),
    ),
    Case("pod-template", nodes_pod(more=SPOT.format("keyy", HERE)), nodes_pod(more=SPOT.format("key", ""))),
    Case(
        "elastic-argument",
        nodes_pod(mark=HERE, more="\n    overquota: {priorityClassName: spot}"),
        nodes_pod(more="\n    overQuota: {priorityClassName: spot}"),
    ),
    Case("elastic-argument", nodes_pod(gpus="'2'", mark="  # here"), nodes_pod(gpus="'2'", ranks="{{item}}")),
    Case("elastic-argument", nodes_pod(gpus="'2'", mark="  # here"), nodes_pod(gpus="'{{item}}'")),
    Case("elastic-argument", nodes_pod(volume="secret: {secretName: a}").replace(PLACE, PLACE + HERE), nodes_pod()),
    Case(
        "elastic-argument",
        given().replace("template: train}", "template: train}  # here").replace("module", "name"),
        workflow("workflowTemplateRef: {name: elastic-train}\nserviceAccountName: a"),
    ),
    Case(
        "gpus-per-node",
        given(
            "{name: nodes, value: '3:4'}",
            "name: pod_patch\n  value: " + indent(BLOCK.format("2  # here"), "    ").lstrip(),
        ),
        given("{name: nodes, value: '2:4'}", "name: pod_patch\n  value: " + indent(BLOCK.format("2"), "    ").lstrip()),
    ),
    Case(
        "gpus-per-node",
        launch("--nodes=2:4, --nproc-per-node=2", "3  # here"),
        launch("'--nodes={{inputs.parameters.nodes}}', --nproc-per-node=2", "3"),
    ),
    Case(
        "elastic-label",
        labelled(pod("main", "elastic-launcher, run"), pod("other", "echo", "elastic: 'true'")),
        labelled(pod("main", "elastic-launcher, run", "elastic: 'true'"), pod("other", "echo")),
    ),
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
        shell("elastic-launcher run --nodes 1:2 --nproc-per-node 4 -- train.py", "1  # here"),
        launch("--nproc-per-node=4, --engine=kubernetes", "1"),
    ),
    Case(
        "gpus-per-node",
        launch("--name, \"it's\", --nproc-per-node, '4'", "1  # here"),
        launch("--nproc-per-node, '{{inputs.parameters.ranks}}'", "1"),
    ),
    # what the launcher is given, and not its script, nor a command beside it
    Case(
        "gpus-per-node",
        shell("cd /work && python -m elastic_launcher run --nproc-per-node=4 -- train.py", "2  # here"),
        shell("pip install elastic-launcher && python train.py --nproc-per-node 4", "2"),
    ),
    Case(
        "gpus-per-node",
        launch("--nproc-per-node=4, --, train.py, --nproc-per-node=2", "2  # here"),
        launch("--, train.py, --nodes=64, --nproc-per-node=4", "2"),
    ),
    Case(
        "gpus-per-node",
        shell("(/opt/bin/elastic-launcher run --nproc-per-node 4 || true)", "2  # here"),
        shell("elastic-launcher run train.py; report --nproc-per-node 4", "2"),
    ),
    Case(
        "gpus-per-node",
        template(
            "",
            f"""{BOTH.format("sh, -c")}
      args:
      - |
        elastic-launcher run \\
          --nproc-per-node 4
        # and --nproc-per-node 1
{LIMIT.format("2  # here").lstrip(chr(10))}""",
        ),
        launch("--nproc-per-node=" + "9" * 5000, "2"),
    ),
    Case(
        "elastic-label",
        labelled(pod("main", "elastic-launcher, run"), pod("other", "elastic-launcher, report", "elastic: 'true'")),
        labelled(pod("main", "elastic-launcher, report", "elastic: 'true'")),
    ),
    # what only the running workflow knows
    Case(
        "elastic-argument",
        given("{name: script, value: train.py}" + HERE),
        given("{name: script, value: '{{workflow.parameters.script}}'}"),
    ),
    Case(
        "elastic-argument",
        given("{name: accept_changes, value: sead}" + HERE),
        given("{name: accept_changes, value: '{{item}}'}"),
    ),
    Case(
        "elastic-argument",
        given("{name: script, value: a.py}" + HERE),
        given(OF_MAP.format("script")).replace("{name: module, value: package.train}", OF_MAP.format("module")),
    ),
    # what a workflow that is our template uses itself, or gets when it is submitted
    Case(
        "elastic-argument",
        referred("", "{name: channel, value: ml}" + HERE),
        referred(
            "synchronization: {mutexes: [{name: 'a-{{workflow.parameters.channel}}'}]}", "{name: channel, value: ml}"
        ),
    ),
    Case(
        "elastic-argument",
        referred("", "{name: chanel, value: ml}" + HERE, "{name: lr, value: '1'}" + HERE),
        referred("podMetadata: {labels: {a: '{{workflow.parameters.json}}'}}", "{name: channel, value: ml}"),
    ),
    Case(
        "elastic-argument",
        referred("", "{name: engine, value: kubernetes}", "{name: nproc_per_node, value: '0'}" + HERE),
        referred("", "{name: engine, value: kubernetes}"),
    ),
    Case(
        "elastic-argument",
        given("{name: require_hints, value: 'true'}" + HERE),
        referred("", "{name: require_hints, value: 'true'}"),
    ),
    Case(
        "elastic-argument",
        referred(kind="CronWorkflow").replace("elastic-train}", "elastic-train}  # here"),
        referred("", "{name: module, value: train}", kind="CronWorkflow"),
    ),
    # the template that is meant
    Case(
        "elastic-argument",
        given("{name: claim, value: work}" + HERE),
        given("{name: size, value: '3'}", template="prepare"),
    ),
    Case(
        "elastic-argument",
        referred("", "{name: claim, value: work}" + HERE),
        referred("entrypoint: train-on-claim", "{name: claim, value: work}"),
    ),
]
