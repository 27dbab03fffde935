"""Texts of a task's author are in the step what they were in the pipeline, whatever they are passed through."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kfp import compiler, dsl

from elastic_launcher.kfp import elastic_cleanup, elastic_plan, elastic_train
from elastic_launcher.kfp_steps.arrival import protected, revealed
from elastic_launcher.options import ConfigError
from tests.support.expansion import expanded
from tests.support.kfp_bodies import Step

VARIABLES = {"HOME": "/root", "A": "$(HOME)"}
TEXTS = st.text(st.one_of(st.sampled_from("$()AHOME{}%24:,"), st.characters(blacklist_categories=("Cs",))))
NEAR = TEXTS.map("data:text/x.elastic-launcher,{}".format)
SCRIPT = "price = '$$5 $(HOME)'\nprint(f'{{100 % 7}}')\n"


@given(st.one_of(TEXTS, NEAR, st.lists(TEXTS), st.dictionaries(st.just("queue"), TEXTS)))
def test_a_constant_arrives_through_any_number_of_containers(constant: Any) -> None:
    def passed(sent: Any) -> Any:
        match sent:
            case str():
                assert "{{" not in sent or "{{$" in sent, "Argo would fill it in"
                return expanded(expanded(sent, VARIABLES), VARIABLES)
            case list():
                return [passed(one) for one in sent]
        return {key: passed(one) for key, one in sent.items()}

    try:
        sent = protected(constant, "arguments")
    except ConfigError:
        assert "{{$" in str(constant)
    else:
        assert revealed(passed(sent)) == constant


def test_what_nothing_changes_is_readable_on_its_way() -> None:
    for text in ("import torch\nprint(f'{1}', 5 % 2)\n", "--rate", "{{$.pipeline_job_uuid}}", "$x ${y}"):
        assert protected(text, "script") == text


@pytest.mark.parametrize("text", ["data:,price%20%24", "data:text/plain,100%25", "data:;base64,JCQ=", "data:"])
def test_a_data_url_of_the_users_own_stays_what_it_is(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert protected(text, "arguments") == text
    step = Step(tmp_path / "artifacts", monkeypatch)
    step.run("elastic_train", script="a.py", arguments=["--icon", text])  # as a run's parameter brings it
    assert step.asked["arguments"] == ["--icon", text]


def constants(folder: Path, component: Any = elastic_train, **inputs: Any) -> dict[str, Any]:
    """Returns the constants of a pipeline's one training, as they were compiled."""

    @dsl.pipeline(name="train")
    def pipeline(word: str = "w"):  # type: ignore[no-untyped-def]
        component(**{key: value(word) if callable(value) else value for key, value in inputs.items()})

    compiler.Compiler().compile(pipeline, str(folder / "train.yaml"))
    (task,) = next(yaml.safe_load_all((folder / "train.yaml").read_text()))["root"]["dag"]["tasks"].values()
    given = task["inputs"]["parameters"]
    return {name: one["runtimeValue"]["constant"] for name, one in given.items() if "runtimeValue" in one}


def test_the_pipeline_sends_what_the_step_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = constants(tmp_path, script=SCRIPT, arguments=["pa$$word", "x"], match={"queue": "$$a"})
    assert "$$" not in str(found) and "$(" not in str(found)
    step = Step(tmp_path / "artifacts", monkeypatch)
    step.run(
        "elastic_train",
        **{key: expanded(one, VARIABLES) if isinstance(one, str) else one for key, one in found.items()},
    )
    assert step.asked["script"] == SCRIPT
    assert step.asked["arguments"] == ["pa$$word", "x"]
    assert step.asked["options"]["match"] == {"queue": "$$a"}


def test_a_step_that_reads_constants_as_they_are_is_sent_them_so(tmp_path: Path) -> None:
    assert constants(tmp_path, elastic_plan, hints="h", match={"queue": "$$a"})["match"] == {"queue": "$$a"}


def test_a_plan_is_matched_by_the_words_that_its_training_is_matched_by(tmp_path: Path) -> None:
    for component, inputs in ((elastic_plan, {"hints": "h"}), (elastic_train, {"script": "a.py"})):
        assert constants(tmp_path, component, match={"queue": 7}, **inputs)["match"] == {"queue": "7"}


def test_numbers_and_booleans_are_words_as_json_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--epochs", 3, 1.0, True, "{{$.pipeline_job_uuid}}"]
    words = ["--epochs", "3", "1.0", "true", "{{$.pipeline_job_uuid}}"]
    assert constants(tmp_path, script="a.py", arguments=arguments)["arguments"] == words
    step = Step(tmp_path / "artifacts", monkeypatch)
    step.run("elastic_train", script="a.py", arguments=arguments[:-1])  # of component.yaml
    assert step.asked["arguments"] == words[:-1]


def test_a_number_that_is_to_be_found_is_sent_as_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = constants(tmp_path, script="a.py", max_batch_per_gpu="auto")
    assert found["max_batch_per_gpu"] == -1
    step = Step(tmp_path / "artifacts", monkeypatch)
    step.run("elastic_train", **found)
    assert step.asked["options"]["max_batch_per_gpu"] == "auto"


def test_a_number_that_only_the_run_knows_is_left_to_the_run(tmp_path: Path) -> None:
    """A parameter of a pipeline equals anything: it answers `==` with a condition."""

    @dsl.pipeline(name="train")
    def pipeline(most: int = 8):  # type: ignore[no-untyped-def]
        elastic_train(script="a.py", max_batch_per_gpu=most)

    compiler.Compiler().compile(pipeline, str(tmp_path / "train.yaml"))
    (task,) = yaml.safe_load((tmp_path / "train.yaml").read_text())["root"]["dag"]["tasks"].values()
    assert task["inputs"]["parameters"]["max_batch_per_gpu"] == {"componentInputParameter": "most"}


def test_seconds_may_be_a_whole_number(tmp_path: Path) -> None:
    assert constants(tmp_path, script="a.py", wait_for_quota=600, max_nodes=3)["wait_for_quota"] == 600.0
    assert constants(tmp_path, elastic_cleanup, wait_seconds=60)["wait_seconds"] == 60.0


def test_a_text_that_kubeflow_completes_and_kubernetes_would_change_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"arguments: Kubeflow fills in a part of a text"):
        constants(tmp_path, script="a.py", arguments=lambda word: [f"{word}$$"])


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ({"script": "x = 1\n" * 20_000}, "script"),
        ({"script": "a.py", "arguments": ["x" * 2**17]}, "arguments"),
    ],
)
def test_what_no_container_can_be_started_with_is_refused_in_words(
    tmp_path: Path, inputs: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{named} is too long: .* 122880 is the most"):
        constants(tmp_path, **inputs)
