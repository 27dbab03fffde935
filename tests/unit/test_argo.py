"""The templates of ``manifests/argo``: made from the one configuration, readable by the command line, restricted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main
from hera.workflows import models
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from elastic_launcher import argo
from elastic_launcher.cli import main
from elastic_launcher.cli.pipeline_arguments import ARGS_FILE, check_arrival
from elastic_launcher.config import ExitCode, JobConfig
from elastic_launcher.engines.kubernetes.leadership.bootstrap import own_pod_name
from elastic_launcher.engines.kubernetes.objects.template import read_template
from elastic_launcher.kube.expansion import literal
from elastic_launcher.launcher.step_outputs import OUTPUTS, tell_outputs
from elastic_launcher.options import OPTIONS, ConfigError, Option
from elastic_launcher.variables import STEP_OUTPUTS
from tests.support.argo_templates import filled
from tests.support.expansion import expanded
from tests.support.manifests import MANIFESTS, documents, objects

FOLDER = MANIFESTS / "argo"
EXAMPLES = {path.stem: path for path in (FOLDER / "examples").glob("*.yaml")}
WORKFLOWS = [path for name, path in sorted(EXAMPLES.items()) if name != "size"]
MODELS: dict[str, type[BaseModel]] = {
    "Workflow": models.Workflow,
    "WorkflowTemplate": models.WorkflowTemplate,
    "ClusterWorkflowTemplate": models.ClusterWorkflowTemplate,
}
VARIABLES = {"HOME": "/home/elastic", "A": "$(HOME)", "": "empty"}
"""Of the container, say."""
TEMPLATES = {
    (kind, template["name"]): template
    for kind in argo.KINDS
    for template in argo.workflow_template(kind)["spec"]["templates"]
}


def asked(template: dict[str, Any], given: dict[str, str]) -> JobConfig:
    """Returns the job that the command line reads from a step's container."""
    args = [expanded(word, VARIABLES) for word in filled(template, given)["container"]["args"]]
    command, (name, *words) = typer.main.get_command(main.app), args
    run = command.get_command(None, name)  # type: ignore[attr-defined]
    texts = run.make_context(name, words).params
    return JobConfig.from_texts(texts, texts.pop("command") or ())


def unknown(model: BaseModel, path: str = "") -> list[str]:
    """Returns the places of what a model takes and does not know."""
    found = [f"{path}.{key}" for key in model.model_extra or {}]
    for key in type(model).model_fields:
        value = getattr(model, key)
        for index, one in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(one, BaseModel):
                found += unknown(one, f"{path}.{key}[{index}]")
    return found


@pytest.mark.parametrize(("kind", "file"), argo.KINDS.items())
def test_the_committed_template_is_what_the_configuration_gives(kind: str, file: str) -> None:
    made = argo.render(argo.workflow_template(kind))
    assert (FOLDER / file).read_text() == made, "`make golden` writes it again"


@pytest.mark.parametrize("path", [*(FOLDER / file for file in argo.KINDS.values()), *WORKFLOWS], ids=str)
def test_heras_models_read_each_manifest_and_know_all_of_it(path: Path) -> None:
    for document in documents(path):
        model = MODELS[document["kind"]].model_validate(document)
        assert unknown(model) == []
        assert model.model_dump(exclude_none=True, by_alias=True)["spec"] == document["spec"]


@pytest.mark.parametrize("key", TEMPLATES, ids=str)
def test_every_option_is_a_parameter_with_its_default_and_its_words(key: tuple[str, str]) -> None:
    inputs = {one["name"]: one for one in TEMPLATES[key]["inputs"]["parameters"]}
    of_the_pod = {option.key for option in argo.OF_THE_POD} | ({"claim"} if key[1] == argo.ON_CLAIM else set())
    assert set(inputs) == {option.key for option in OPTIONS} | of_the_pod
    for option in OPTIONS:
        assert inputs[option.key]["description"].endswith(option.help)
        defaults = {"nodes": "", "require_hints": "false"}
        assert inputs[option.key]["default"] == defaults.get(option.key, option.default or "")


@pytest.mark.parametrize("kind", argo.KINDS)
def test_a_whole_workflow_has_the_same_parameters_as_its_step(kind: str) -> None:
    arguments = argo.workflow_template(kind)["spec"]["arguments"]["parameters"]
    inputs = TEMPLATES[kind, argo.ENTRYPOINT]["inputs"]["parameters"]
    assert {one["name"]: one["value"] for one in arguments} == {one["name"]: one["default"] for one in inputs}


@pytest.mark.parametrize("key", TEMPLATES, ids=str)
def test_a_step_that_is_told_only_its_script_is_the_default_job(key: tuple[str, str]) -> None:
    assert asked(TEMPLATES[key], {"script": "train.py"}) == JobConfig(script="train.py")


def test_what_an_author_sets_is_what_the_launcher_reads() -> None:
    given = {
        "script": "import torch\nprint('{1}')\n",
        "arguments": "--lr '0.1'",
        "nodes": "2:5",
        "engine": "kubernetes",
        "pod_template": '{"spec": {}}',
        "hints": "configmap/quota/gpu-hints",
        "match": "queue=team-a,pipeline=p",
        "project": "nlp",
        "priority": "-5",
        "share": "2/3",
        "require_hints": "true",
        "max_runtime": "12h",
        "global_batch_size": "256",
        "max_batch_per_gpu": "auto",
        "checkpoint_every": "100 steps",
        "checkpoint_dir": "s3://models/digits",
        "name": "digits",
    }
    assert asked(TEMPLATES["WorkflowTemplate", argo.ENTRYPOINT], given) == JobConfig.from_texts(given, ())


TEXTS = st.text(
    st.one_of(st.sampled_from("$()AHOME{}"), st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"))
)


def outcome(read: Callable[[], JobConfig]) -> JobConfig | str:
    """Returns what was read, or why it is refused: a blank script, or a URL for a folder."""
    try:
        return read()
    except ConfigError as error:
        return str(error)


@given(st.dictionaries(st.sampled_from(["work_dir", "data", "output", "name", "script"]), TEXTS), st.lists(TEXTS))
def test_whatever_a_text_holds_it_stays_one_word(texts: dict[str, str], arguments: list[str]) -> None:
    template = TEMPLATES["WorkflowTemplate", argo.ENTRYPOINT]
    given = {"script": "train.py", **{key: value for key, value in texts.items() if value}}
    given["arguments"] = json.dumps(arguments)
    assert outcome(lambda: asked(template, given)) == outcome(lambda: JobConfig.from_texts(given, ()))


@given(TEXTS)
def test_a_literal_is_what_kubernetes_makes_of_it(text: str) -> None:
    assert expanded(literal(text), VARIABLES) == text


def test_dollars_of_an_author_reach_the_script() -> None:
    given = {"script": "price = '$$5 $(HOME) ${x}'\nprint(price)\n", "arguments": "'pa$$word' '$(HOME)' '$x'"}
    config = asked(TEMPLATES["WorkflowTemplate", argo.ENTRYPOINT], given)
    assert (config.script, config.arguments) == (given["script"], ("pa$$word", "$(HOME)", "$x"))


@pytest.mark.parametrize(
    ("word", "becomes"),
    [
        ("--script=a$b", "--script=a$$b"),
        ("--nodes={{inputs.parameters.n}}", "--nodes={{inputs.parameters.n}}"),
        ("--work-dir=/$/{{workflow.name}}", "--work-dir=/$$/{{workflow.name}}"),
        ("--data={{ inputs.parameters.my-data }}", "--data={{=replace(inputs.parameters['my-data'], '$', '$$')}}"),
        ("--data={{workflow.parameters.d}}$", "--data={{=replace(workflow.parameters['d'], '$', '$$')}}$$"),
        ("--data={{=inputs.parameters.d + '$'}}", "--data={{=inputs.parameters.d + '$'}}"),
    ],
)
def test_what_argo_fills_in_is_doubled_by_argo(word: str, becomes: str) -> None:
    assert argo.as_written(["run", word]) == ["run", becomes]


def test_the_scripts_own_words_are_doubled_whatever_they_look_like() -> None:
    assert argo.as_written(["run", "--", "--nodes=$"]) == ["run", "--", "--nodes=$$"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"script": "\n" + "#" * 2**17}, "--script is too long"),
        ({"script": "\n" + "$" * 2**16}, "--script is too long"),
        ({"script": "\n" * 2**16}, "--script is too long"),
        ({"script": "\n" + "<" * 22_000}, "--script is too long"),
        ({"script": "a.py", "arguments": json.dumps(["x" * 2**17])}, "--arguments is too long"),
        ({"script": "a.py", "pod_template": "#" * 2**17 + "\n"}, "--pod-template is too long"),
    ],
)
def test_what_argo_would_hand_over_unexpanded_is_refused(given: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named}: .* 131072 is the most"):
        argo.check_known(given)


@pytest.mark.parametrize(
    ("given", "words", "named"),
    [
        ({"nodes": "{{=1"}, (), "--nodes is '{{=1': Argo refuses '{{' without '}}' after it"),
        ({"data": "{{item}}/{{"}, (), "--data is '{{item}}/{{': Argo refuses"),
        ({}, ("it's {{item}}", "{{"), "--arguments is '{{': Argo refuses"),
        ({"arguments": "--rate '{{item}}"}, (), "--arguments is \"--rate '{{item}}\": it can't be split (No closing"),
    ],
)
def test_what_is_wrong_whatever_argo_fills_in_is_refused(
    given: dict[str, str], words: tuple[str, ...], named: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        argo.check_known({"script": "a.py"} | given, words)
    assert str(raised.value).startswith(named)


def test_a_script_that_just_fits_is_taken() -> None:
    argo.check_known({"script": "#" * 130_000 + "\n"})


def test_what_argo_handed_over_in_a_file_is_refused_by_name() -> None:
    check_arrival({STEP_OUTPUTS: "/tmp/elastic-outputs"})
    check_arrival({ARGS_FILE: "/argo/config/args"})
    with pytest.raises(ConfigError, match="more than 128 KiB, which Argo hands over in a file"):
        check_arrival({STEP_OUTPUTS: "/tmp/elastic-outputs", ARGS_FILE: "/argo/config/args"})


ENDS = [
    ("Error", "-1", "pod deleted", True),
    ("Failed", "137", "main: Error (exit code 137)", True),
    ("Failed", "143", "main: Error (exit code 143)", True),
    ("Failed", "137", 'Usage of EmptyDir volume "fill" exceeds the limit "1Mi". ', True),
    ("Failed", "-1", "Preempted in order to admit critical pod", True),
    ("Failed", "137", "main: OOMKilled (exit code 137)", False),
    ("Failed", "75", "Pod was active on the node longer than the specified deadline", False),
    ("Failed", "137", "Pod was active on the node longer than the specified deadline", False),
]
"""Ends of a pod as Argo 4.1.2 tells them: status, exit code, message; and whether another attempt helps."""


HELPED = {
    ExitCode.DONE: False,
    ExitCode.SCRIPT_FAILED: False,
    ExitCode.BAD_USAGE: False,
    ExitCode.LAUNCHER_FAILED: True,
    ExitCode.STOPPED: True,
    ExitCode.NO_QUOTA: True,
    ExitCode.INTERRUPTED: False,
}
"""Whether another attempt may help, for each way in which the launcher ends by itself."""


def tried_again(status: str, code: str, message: str) -> object:
    """Reads the retry expression as Python: the words in which the two differ are few."""
    text = re.sub(r'lastRetry\.message matches ("[^"]*")', r"bool(search(\1, message))", str(argo.RETRY["expression"]))
    for theirs, ours in (("!(", "not ("), ("&&", "and"), ("||", "or"), ("asInt(", "int(")):
        text = text.replace(theirs, ours)
    text = text.replace("lastRetry.status", "status").replace("lastRetry.exitCode", "code")
    return eval(text, {"search": re.search, "status": status, "code": code, "message": message})


@pytest.mark.parametrize(("status", "code", "message", "again"), ENDS)
def test_what_was_taken_away_is_tried_again_and_mistakes_are_not(
    status: str, code: str, message: str, again: bool
) -> None:
    assert tried_again(status, code, message) is again


@pytest.mark.parametrize("code", ExitCode, ids=lambda code: code.name)
def test_each_exit_code_of_the_launcher_is_tried_again_where_that_may_help(code: ExitCode) -> None:
    assert tried_again("Failed", str(int(code)), f"main: Error (exit code {int(code)})") is HELPED[code]


def test_few_attempts_follow_each_other_at_once() -> None:
    assert (argo.RETRY["retryPolicy"], argo.RETRY["limit"]) == ("Always", 3)
    assert "backoff" not in argo.RETRY, "nodes wait for their launcher for --orphan-timeout"


@pytest.mark.parametrize("key", TEMPLATES, ids=str)
def test_the_steps_pod_is_restricted_and_can_write_where_a_node_can(key: tuple[str, str]) -> None:
    template = TEMPLATES[key]
    assert template["securityContext"]["runAsNonRoot"]
    assert template["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    context = template["container"]["securityContext"]
    assert not context["allowPrivilegeEscalation"] and context["readOnlyRootFilesystem"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    mounts = {one["mountPath"]: one["name"] for one in template["container"]["volumeMounts"]}
    assert set(mounts) >= {"/tmp", "/home/elastic", "/dev/shm"}
    assert set(mounts.values()) == {one["name"] for one in template["volumes"]}


@pytest.mark.parametrize("key", TEMPLATES, ids=str)
def test_each_output_is_the_file_that_the_launcher_writes_and_none_is_missed(
    key: tuple[str, str], tmp_path: Path
) -> None:
    template = TEMPLATES[key]
    (told,) = [one["value"] for one in template["container"]["env"] if one["name"] == STEP_OUTPUTS]
    found = {one["name"]: one["valueFrom"] for one in template["outputs"]["parameters"]}
    assert {name: one["default"] for name, one in found.items()} == OUTPUTS, "a missing file fails a step otherwise"
    assert any(Path(told).is_relative_to(one["mountPath"]) for one in template["container"]["volumeMounts"])
    tell_outputs(2, "bad", None, pytest.fail, {STEP_OUTPUTS: str(tmp_path / "told")})
    assert {one["path"] for one in found.values()} == {f"{told}/{one.name}" for one in (tmp_path / "told").iterdir()}


@pytest.mark.parametrize("kind", argo.KINDS)
def test_retry_and_progress_stand_on_the_pods_own_template_and_pod_gc_on_the_workflow(kind: str) -> None:
    document = argo.workflow_template(kind)
    assert document["spec"]["podGC"] == {"strategy": "OnPodCompletion"}
    assert {one["serviceAccountName"] for one in [document["spec"]]} == {
        one["metadata"]["name"] for one in objects(MANIFESTS / "overlays" / "argo", "ServiceAccount")
    }
    for template in document["spec"]["templates"]:
        assert template["retryStrategy"] == argo.RETRY
        assert re.fullmatch(r"\d+/\d+", template["metadata"]["annotations"]["workflows.argoproj.io/progress"])


@pytest.mark.parametrize("name", ["digits", "search", "whole"])
def test_an_example_says_what_does_not_travel_with_a_template(name: str) -> None:
    (workflow,) = documents(EXAMPLES[name])
    spec = workflow["spec"]
    assert spec["serviceAccountName"] == argo.ACCOUNT
    assert "workflowTemplateRef" in spec or spec["podGC"] == argo.POD_GC


def steps_of(name: str) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Returns the template that each elastic step of an example refers to, with the arguments it is given."""
    (workflow,) = documents(EXAMPLES[name])
    spec = workflow["spec"]
    if "workflowTemplateRef" in spec:
        assert spec["workflowTemplateRef"] == {"name": argo.NAME}
        return [(TEMPLATES["WorkflowTemplate", argo.ENTRYPOINT], spec["arguments"]["parameters"])]
    calls = [task for one in spec["templates"] for task in one.get("dag", {}).get("tasks", ())]
    calls += [step for one in spec["templates"] for group in one.get("steps", ()) for step in group]
    found = []
    for call in calls:
        if reference := call.get("templateRef"):
            kind = "ClusterWorkflowTemplate" if reference.get("clusterScope") else "WorkflowTemplate"
            assert reference["name"] == argo.NAME
            found.append((TEMPLATES[kind, reference["template"]], call["arguments"]["parameters"]))
    return found


@pytest.mark.parametrize("name", ["digits", "search", "whole"])
def test_an_examples_arguments_are_parameters_and_make_a_job(name: str) -> None:
    ((template, arguments),) = steps_of(name)
    inputs = {one["name"]: one for one in template["inputs"]["parameters"]}
    given = {one["name"]: one["value"] if "value" in one else one["valueFrom"]["default"] for one in arguments}
    assert set(given) <= set(inputs)
    assert {key for key, one in inputs.items() if "default" not in one} <= set(given)
    assert all(isinstance(value, str) for value in given.values()), "Argo takes texts only"
    given["share"] = given.get("share", "").replace("{{item.share}}", "1/3")
    config = asked(template, given)
    if config.pod_template:
        read_template(config.pod_template)


@pytest.mark.parametrize("name", ["digits", "search", "whole"])
def test_an_example_takes_only_outputs_that_there_are(name: str) -> None:
    taken = re.findall(r"\{\{(?:steps|tasks)\.train\.outputs\.parameters\.(\w+)\}\}", EXAMPLES[name].read_text())
    assert set(taken) <= set(OUTPUTS) and bool(taken) == (name == "digits")


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
@pytest.mark.parametrize("engine", ["local", "kubernetes"])
def test_what_argo_fills_in_is_left_to_the_launcher(option: Option, engine: str) -> None:
    template = '{"spec": {"containers": [{"name": "a", "volumeMounts": [{"name": "b", "mountPath": "/work"}]}]}}'
    given = {"script": "train.py", "engine": engine, "pod_template": template, "checkpoint_dir": "/work", "hints": "a"}
    given["match"] = "project=nlp"
    argo.check_known(given | {option.key: "{{item}}"})


def test_the_size_of_the_next_attempt_comes_from_a_labelled_config_map_with_a_default() -> None:
    (size,) = documents(EXAMPLES["size"])
    ((_, arguments),) = steps_of("digits")
    (nodes,) = [one["valueFrom"] for one in arguments if one["name"] == "nodes"]
    assert nodes["configMapKeyRef"]["name"] == size["metadata"]["name"]
    assert nodes["default"] and nodes["configMapKeyRef"]["key"] in size["data"]
    assert size["metadata"]["labels"] == {"workflows.argoproj.io/configmap-type": "Parameter"}


def test_the_pods_own_words_are_told_to_the_launcher() -> None:
    paths = {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in argo.ENVIRONMENT if "valueFrom" in one}
    assert own_pod_name(paths) == "metadata.name", "a host name is cut where Argo's names are long"
    assert paths == {
        "POD_NAME": "metadata.name",
        "ELASTIC_POD_LABEL": "metadata.labels['elastic']",
        "ELASTIC_POD_NODES": "metadata.annotations['elastic-launcher/nodes']",
    }
    (workflow,) = documents(EXAMPLES["search"])
    assert set(workflow["spec"]["podMetadata"]["labels"]) == {"elastic"}
    assert set(workflow["spec"]["podMetadata"]["annotations"]) == {"elastic-launcher/nodes"}
