"""Pod templates: every usual form is read, and what is none is refused with its place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from elastic_launcher.engines.kubernetes.objects.job import node_job
from elastic_launcher.engines.kubernetes.objects.template import (
    PodFields,
    check_template,
    read_template,
    scheduling,
    template_of,
)
from elastic_launcher.options import ConfigError
from tests.support.pod_templates import SHAPE, SPEC, TEMPLATES, plan

BODY = """
metadata:
  labels: {team: vision}
spec:
  containers:
  - name: train
    image: registry.example/train:3
"""


def indented(text: str) -> str:
    return text.replace("\n", "\n  ")


@pytest.mark.parametrize(
    "text",
    [
        BODY,
        f"apiVersion: v1\nkind: Pod{BODY}",
        f"apiVersion: v1\nkind: PodTemplate\nmetadata: {{name: t}}\ntemplate:{indented(BODY)}",
        f"---{BODY}---\n",
    ],
)
def test_every_usual_form_is_read(text: str) -> None:
    assert read_template(text) == {
        "metadata": {"labels": {"team": "vision"}},
        "spec": {"containers": [{"name": "train", "image": "registry.example/train:3"}]},
    }


KINDS = """
guaranteed: {priorityClassName: owned, labels: {kueue.x-k8s.io/priority-class: owned}}
overQuota: {nodeSelector: {machine: spot}, tolerations: [{key: spot, operator: Exists}]}
"""


@pytest.mark.parametrize("text", [f"{BODY}{KINDS}", f"kind: PodTemplate\ntemplate:{indented(BODY + KINDS)}"])
def test_sections_for_kinds_of_nodes_stand_beside_the_spec(text: str) -> None:
    assert read_template(text) == read_template(BODY) | {
        "guaranteed": {"priorityClassName": "owned", "labels": {"kueue.x-k8s.io/priority-class": "owned"}},
        "overQuota": {"nodeSelector": {"machine": "spot"}, "tolerations": [{"key": "spot", "operator": "Exists"}]},
    }


def test_what_a_template_says_of_machines_is_reported_by_the_kind_of_nodes() -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}
    template = check_template(
        {
            "spec": {
                "nodeSelector": {"gpu": "a100"},
                "affinity": {"nodeAffinity": {**required, "preferredDuringSchedulingIgnoredDuringExecution": []}},
                "priorityClassName": "training",
            },
            "overQuota": {"nodeSelector": {"machine": "spot"}, "tolerations": [{"key": "spot", "operator": "Exists"}]},
        }
    )
    affinity = {"nodeAffinity": required}
    assert scheduling(template) == {
        "guaranteed": {"nodeSelector": {"gpu": "a100"}, "affinity": affinity},
        "overQuota": {
            "nodeSelector": {"gpu": "a100", "machine": "spot"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "affinity": affinity,
        },
    }
    assert scheduling(check_template({"spec": {}})) == {"guaranteed": {}, "overQuota": {}}


@pytest.mark.parametrize("section", ["guaranteed", "overQuota"])
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("[x]", r" of the pod template is \['x'\]; it must be an object"),
        (
            "{affinity: {}}",
            " of the pod template has the unknown key 'affinity'; it may have priorityClassName, nodeSelector, "
            "tolerations, labels$",
        ),
        ("{nodeSelektor: {a: b}}", " .* unknown key 'nodeSelektor'; .*; did you mean 'nodeSelector'\\?"),
        ("{priorityClassName: 7}", r"\.priorityClassName .* is 7; it must be a text: put it in quotes"),
        ("{nodeSelector: {gpu: yes}}", r"\.nodeSelector\['gpu'\] .* is True; .* put it in quotes"),
        ("{tolerations: {key: spot}}", r"\.tolerations .* must be a list"),
        ("{tolerations: [spot]}", r"\.tolerations\[0\] .* is 'spot'; it must be an object"),
        ("{labels: {rank: 1}}", r"\.labels\['rank'\] .* is 1; it must be a text: put it in quotes"),
        (
            "{labels: {elastic-launcher/job: mine}}",
            r"\.labels of the pod template has elastic-launcher/job, which the launcher sets; leave it out",
        ),
    ],
)
def test_a_bad_section_is_refused_with_its_place(section: str, fields: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{section}{said}"):
        read_template(f"spec: {{}}\n{section}: {fields}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("spec: {}\noverquota: {}", "^the top .* unknown key 'overquota'; .*; did you mean 'overQuota'"),
        ("kind: PodTemplate\ntemplate: {spec: {}}\noverQuota: {}", "^the top .* 'overQuota'; it may have template,"),
        ("kind: PodTemplate\ntemplate: {spec: {}, guarantee: {}}", "^template .*; did you mean 'guaranteed'"),
    ],
)
def test_a_section_that_is_misspelt_or_misplaced_is_not_ignored(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_template(text)


@given(TEMPLATES)
def test_a_template_is_returned_as_it_was_written(given: dict[str, Any]) -> None:
    assert check_template(given) == given


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("spec: [", "is not YAML"),
        ("", "has 0 documents"),
        (f"{BODY}---{BODY}", "has 2 documents"),
        ("just words", "the top of the pod template is 'just words'"),
        ("kind: Deployment\nspec: {}", "of kind 'Deployment'"),
        ("kind: PodTemplate\nspec: {}", "^template of the pod template is missing"),
        ("metadata: {}", "spec of the pod template is missing"),
        ("spec: {restartPolicy: Always}", "restartPolicy .* 'Always'; leave it out"),
        ("spec: {containers: {name: x}}", "spec.containers .* must be a list"),
        ("spec: {containers: [{image: x}]}", r"spec.containers\[0\] .* has no name"),
        ("spec: {volumes: [x]}", r"spec.volumes\[0\] .* must be an object"),
        ("metadata: {labels: {version: 1}}\nspec: {}", "labels.*'version'.* is 1; .* put it in quotes"),
        (
            "metadata: {annotations: {kubectl.kubernetes.io/default-container: main}}\nspec: {containers: [{name: x}]}",
            "is 'main'; the template has x",
        ),
        (
            "metadata: {annotations: {kubectl.kubernetes.io/default-container: main}}\nspec: {}",
            "is 'main'; the template has none",
        ),
        ("metadata: []\nspec: []", r"^spec of the pod template is \[\]; it must be an object"),
        ("metadata: [x]\nspec: {}", r"^metadata of the pod template is \['x'\]; it must be an object"),
        ("metadata: {labels: [x]}\nspec: {}", r"metadata.labels .* is \['x'\]; it must be an object"),
        ("metadata: {labels: {x: null}}\nspec: {}", r"metadata.labels\['x'\] .* is null; it must be a text"),
        ("spec: {containers: [null]}", r"spec.containers\[0\] .* is null; it must be an object"),
        ("spec: {containers: [{name: 3}]}", r"spec.containers\[0\].name .* is 3; it must be a text: put it in quotes"),
        ("spec: {nodeSelector: {gpu: yes}}", r"spec.nodeSelector\['gpu'\] .* is True; .* put it in quotes"),
        ("spec: {securityContext: [x]}", r"spec.securityContext .* must be an object"),
        ("spec: {affinity: {nodeAffinity: [x]}}", r"spec.affinity.nodeAffinity .* must be an object"),
        ("spec: {serviceAccountName: {name: x}}", r"spec.serviceAccountName .* must be a text"),
        ("spec: {date: 2026-11-22}", r"spec.date of .* datetime.date.*; put it in quotes"),
        ("spec: {date: 2026-13-45}", "is not YAML: month must be in 1..12"),
        ("spec: {share: .nan}", "spec.share of the pod template is nan; put it in quotes"),
        ("spec: {on: x}", "spec of the pod template has the key True; put it in quotes"),
        ("spec: !!bool x", "is not YAML: "),
        ("spec: !!int ''", "is not YAML: "),
        ("spec: !!float ''", "is not YAML: "),
        ("spec: !!timestamp foo", "is not YAML: "),
        ("spec: " + "9" * 5000, "is not YAML: "),
        ("spec: " + "[" * 600 + "]" * 600, "is nested too deeply"),
        ("spec: " + "[" * 60 + "]" * 60, "is nested too deeply"),
        ("[" * 60 + "]" * 60, "is nested too deeply"),
        ("\n".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9 if n else ['1'])}]" for n in range(9)), "too large"),
        ("spec: &a {volumes: [*a]}", r"spec.volumes\[0\] of the pod template holds itself"),
    ],
)
def test_what_is_no_template_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_template(text)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("image: [x]", r"\.image .* is \['x'\]; it must be a text$"),
        ("command: sleep 1", r"\.command .* is 'sleep 1'; it must be a list"),
        ("args: [1]", r"\.args\[0\] .* is 1; .* put it in quotes"),
        ("env: {LR: x}", r"\.env .* must be a list"),
        ("env: [{value: x}]", r"\.env\[0\] .* has no name; give it one"),
        ("env: [{name: LR, value: 0.1}]", r"\.env\[0\].value .* is 0.1; it must be a text: put it in quotes"),
        ("resources: []", r"\.resources .* must be an object"),
        ("resources: {limits: 4Gi}", r"\.resources.limits .* is '4Gi'; it must be an object"),
        ("volumeMounts: [{name: data}]", r"\.volumeMounts\[0\] .* has no mountPath; give it one"),
        ("volumeMounts: [{name: data, mountPath: 3}]", r"\.volumeMounts\[0\].mountPath .* is 3"),
        ("securityContext: restricted", r"\.securityContext .* must be an object"),
        ("securityContext: {capabilities: [ALL]}", r"\.securityContext.capabilities .* must be an object"),
        ("securityContext: {capabilities: {drop: ALL}}", r"\.securityContext.capabilities.drop .* must be a list"),
    ],
)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_what_is_no_container_is_refused_with_its_place(field: str, said: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"^spec\.{kind}\[0\]{said}"):
        read_template(f"spec: {{{kind}: [{{name: x, {field}}}]}}")


NOTHING = (
    "metadata: {labels: null}\nspec: {containers: [{name: x, image: null, env: null, resources: null}], volumes: null}"
)


def test_a_null_is_what_was_left_out() -> None:
    pod = node_job(plan(read_template(NOTHING)), SPEC)["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == SHAPE.image


def test_fields_say_the_same_as_a_template() -> None:
    fields = PodFields(
        image="registry.example/train:3",
        image_pull_secrets=["pull"],
        env=[{"name": "LR", "value": "0.1"}],
        resources={"limits": {"memory": "4Gi"}},
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        volume_mounts=[{"name": "data", "mountPath": "/data"}],
        tolerations=[{"key": "gpu", "operator": "Exists"}],
        node_selector={"zone": "a"},
        affinity={"nodeAffinity": {}},
        labels={"team": "vision"},
        annotations={"note": "x"},
        priority_class="low",
        scheduler="kai-scheduler",
        runtime_class="nvidia",
        service_account="trainer",
        pod_security={"fsGroup": 2000},
        security={"runAsUser": 1000},
    )
    assert template_of(fields) == read_template(
        """
        metadata: {labels: {team: vision}, annotations: {note: x}}
        spec:
          containers:
          - name: node
            image: registry.example/train:3
            env: [{name: LR, value: "0.1"}]
            resources: {limits: {memory: 4Gi}}
            volumeMounts: [{name: data, mountPath: /data}]
            securityContext: {runAsUser: 1000}
          imagePullSecrets: [{name: pull}]
          volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
          tolerations: [{key: gpu, operator: Exists}]
          nodeSelector: {zone: a}
          affinity: {nodeAffinity: {}}
          priorityClassName: low
          schedulerName: kai-scheduler
          runtimeClassName: nvidia
          serviceAccountName: trainer
          securityContext: {fsGroup: 2000}
        """
    )


def test_no_field_is_no_more_than_a_container() -> None:
    assert template_of(PodFields()) == {"metadata": {}, "spec": {"containers": [{"name": "node"}]}}
