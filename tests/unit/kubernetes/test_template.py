"""Pod templates: every usual form is read, and what is none is refused with its place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from elastic_launcher.engines.kubernetes.template import PodFields, check_template, read_template, template_of
from elastic_launcher.options import ConfigError
from tests.unit.kubernetes.templates import TEMPLATES

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
    ],
)
def test_what_is_no_template_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_template(text)


def test_fields_say_the_same_as_a_template() -> None:
    fields = PodFields(
        image="registry.example/train:3",
        image_pull_secrets=["pull"],
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
