"""A pod template that can't be a node's pod: it is said before anything is made, in the API server's own words."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.engines.kubernetes.nodes.dry_run import try_out
from elastic_launcher.engines.kubernetes.objects.names import JOB_LABEL
from elastic_launcher.options import ConfigError
from tests.support.cluster.namespaces import space
from tests.support.cluster.stage import staged
from tests.support.pod_templates import plan, template

QUOTA = {"metadata": {"name": "jobs"}, "spec": {"hard": {"count/jobs.batch": "0"}}}


@pytest.mark.parametrize(
    ("container", "spec", "said"),
    [
        ({"imagee": "x"}, {}, r'unknown field "spec.containers\[0\].imagee"'),
        ({}, {"nodeSelectors": {"a": "b"}}, r'unknown field "spec.nodeSelectors"'),
        ({"resources": {"limits": {"memory": "4 GB"}}}, {}, "quantities must match"),
        ({"resources": {"limits": {"memory": ["4Gi"]}}}, {}, "cannot be handled as a Job"),
        ({"ports": [{"containerPort": "http"}]}, {}, r"spec\.containers\.ports\.containerPort of type int32"),
        ({"imagePullPolicy": "Sometimes"}, {}, r"spec.containers\[0\].imagePullPolicy: Unsupported value"),
        ({"volumeMounts": [{"name": "none", "mountPath": "/x"}]}, {}, r"volumeMounts\[0\].name: Not found"),
        ({"env": [{"name": "A=B"}]}, {}, r"spec.containers\[0\].env\[0\].name: Invalid value"),
        ({}, {"tolerations": {"operator": "Exists"}}, "cannot be handled as a Job"),
    ],
)
def test_what_is_wrong_with_a_template_is_told_with_the_path(
    container: dict[str, Any], spec: dict[str, Any], said: str
) -> None:
    async def steps() -> None:
        async with space("template") as (api, name):
            with pytest.raises(ConfigError, match=f"^--pod-template pod.yaml: the API server .*{said}"):
                await try_out(api, name, plan(template(container, **spec)), "--pod-template pod.yaml")

    asyncio.run(steps())


def test_what_is_wrong_in_a_section_for_one_kind_of_nodes_is_told_with_its_name() -> None:
    kinds = {"overQuota": {"tolerations": [{"key": "spot", "operator": "Sometimes"}]}}

    async def steps() -> None:
        async with space("template") as (api, name):
            said = r"^--pod-template pod.yaml, with its section overQuota: .*spec.tolerations\[0\].operator: "
            with pytest.raises(ConfigError, match=said):
                await try_out(api, name, plan(template() | kinds), "--pod-template pod.yaml")

    asyncio.run(steps())


@pytest.mark.thorough
def test_a_quota_that_allows_no_job_is_no_mistake_of_the_template_and_a_dry_run_makes_none() -> None:
    async def steps() -> None:
        async with space("template") as (api, name):
            jobs = f"/apis/batch/v1/namespaces/{name}/jobs"
            await try_out(api, name, plan(template()), "--pod-template pod.yaml")
            await api.request("POST", f"/api/v1/namespaces/{name}/resourcequotas", QUOTA)
            await try_out(api, name, plan(template()), "--pod-template pod.yaml")
            assert (await api.request("GET", jobs))["items"] == []

    asyncio.run(steps())


@pytest.mark.machine
def test_a_launcher_with_such_a_template_ends_with_2_and_has_made_nothing(tmp_path: Path) -> None:
    with staged(tmp_path, "template") as stage:
        stage.launch("--nodes=1:1", script="", argument="none", template={"nodeSelectors": {"a": "b"}}, retries=0)
        assert stage.wait() == 2
        assert '--pod-template /code/pod.yaml: the API server refuses the nodes\' pods: Job in version "v1" cannot' in (
            stage.log()
        )
        assert 'unknown field "spec.nodeSelectors"' in stage.log()
        assert [stage.get(kind, "-l", JOB_LABEL) for kind in ("services", "secrets", "jobs", "pods")] == [
            [],
            [],
            [],
            [],
        ]


@pytest.mark.machine
def test_an_image_in_which_no_node_can_begin_is_told_by_the_last_line_of_their_logs(tmp_path: Path) -> None:
    with staged(tmp_path, "template") as stage:
        (stage.folder / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
        lacking = {"PYTHONPATH": str(stage.folder)}
        stage.launch("--nodes=1:1", script="", argument="none", variables=lacking, retries=0)
        assert stage.wait() == 1
        assert "node 1: ModuleNotFoundError: No module named 'torch'" in stage.log()
