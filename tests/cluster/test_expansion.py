"""What an author wrote is what a container gets, after Kubernetes has expanded its arguments and variables."""

from __future__ import annotations

import json

import pytest

from elastic_launcher.argo import as_written
from elastic_launcher.kube.expansion import literal
from tests.cluster.machine import cluster
from tests.cluster.machine.kubectl import Kubectl
from tests.cluster.machine.places import Places
from tests.support.cluster import pods
from tests.support.expansion import expanded

pytestmark = pytest.mark.machine

PLACES = Places.default()
TEXTS = ["pa$$word", "$(HOME)", "$$(HOME)", "$$$(HOME)$", "${HOME} $(", "$(date) $x\nü $"]
PROGRAM = "import json, os, sys; print(json.dumps([*sys.argv[1:], os.environ['GIVEN']]))"


def test_texts_with_dollars_arrive_and_the_tests_own_rule_is_kubernetes() -> None:
    kubectl = Kubectl(PLACES, cluster.running(PLACES).programs)
    with pods.namespace(kubectl, "expansion") as space:
        pod = pods.python_pod(space, "main", "-c", PROGRAM)
        (container,) = pod["spec"]["containers"]
        container["args"] = [*as_written(["run", "--", *TEXTS]), *TEXTS]
        container["env"].append({"name": "GIVEN", "value": literal(TEXTS[3])})
        kubectl.apply(pod)
        pods.wait(kubectl, space, "main", "{.status.phase}", ["Succeeded"])
        found = json.loads(kubectl("logs", "main", f"--namespace={space}"))
    assert found == ["run", "--", *TEXTS, *(expanded(text, {"HOME": "/tmp"}) for text in TEXTS), TEXTS[3]]
