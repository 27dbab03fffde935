"""What a job is known by besides its options: texts, and where its data is from."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import pytest

from elastic_launcher.checkpoint import raise_fence
from elastic_launcher.config import JobConfig
from elastic_launcher.content import Content, changed, source_of
from elastic_launcher.events import EventLog
from elastic_launcher.launcher.script_bundle import code_of, content_of
from elastic_launcher.report import write_report
from elastic_launcher.variables import DATA_SOURCE
from elastic_launcher.workdir import CLASSES, claim, write_json

RUN, FIRST, SECOND = (f"{digit * 8}-aaaa-bbbb-cccc-{digit * 12}" for digit in "123")
V2 = "minio://mlpipeline/v2/artifacts/digits"


def test_code_is_known_by_its_text_and_not_by_where_it_lies(tmp_path: Path) -> None:
    for name, text in (("a", "one"), ("b", "one\n\n"), ("c", "two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(text)
        (tmp_path / name / "helper.py").write_text(name)
    found = {name: content_of(JobConfig(script=f"{name}/train.py"), tmp_path, {}) for name in "abc"}
    assert found["a"] == found["b"] != found["c"]
    assert changed(found["a"].code, found["c"].code) == ["train.py"]


def test_what_nodes_of_a_cluster_are_handed_counts_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import helper")
    (tmp_path / "helper.py").write_text("one")
    config = JobConfig(script="train.py", engine="kubernetes", checkpoint_dir="/claim")
    before = content_of(config, tmp_path, {})
    (tmp_path / "helper.py").write_text("two")
    (tmp_path / "model.yaml").write_text("width: 3")
    assert changed(before.code, content_of(config, tmp_path, {}).code) == ["helper.py", "model.yaml"]


def test_a_pod_template_and_hints_beside_the_script_are_no_code(tmp_path: Path) -> None:
    for name in ("train.py", "pod.yaml", "hints.json"):
        (tmp_path / name).write_text(name)
    config = JobConfig(
        script="train.py",
        engine="kubernetes",
        checkpoint_dir="/claim",
        pod_template=str(tmp_path / "pod.yaml"),
        hints="hints.json",
    )
    assert [one.partition(" ")[0] for one in content_of(config, tmp_path, {}).code] == ["train.py"]
    text = dataclasses.replace(config, pod_template="spec:\n  containers: []\n", hints="configmap/quota/gpu-hints")
    assert len(content_of(text, tmp_path, {}).code) == 3


@pytest.mark.parametrize(
    ("output", "model"), [("model.json", ("model.json", f"model.json{CLASSES}")), (".", ("config.json",))]
)
def test_what_a_job_writes_beside_its_script_is_no_code_of_it(
    tmp_path: Path, output: str, model: tuple[str, ...]
) -> None:
    for name in ("train.py", "model.yaml"):
        (tmp_path / name).write_text(name)
    here = str(tmp_path)
    config = JobConfig(
        script="train.py", engine="kubernetes", work_dir=here, checkpoint_dir=here, output=str(tmp_path / output)
    )
    handed = code_of(config, tmp_path).files
    with claim(config, tmp_path, content_of(config, tmp_path, {})) as first:
        write_json(first.layout.control, {"key": "secret"}, mode=0o600)
        write_json(first.layout.origin, {"checkpoint": ""})
        with contextlib.closing(EventLog(first.layout.events)) as events:
            events.append("job_finished", 1, exit_code=75)
        write_report(first.path)
        raise_fence(tmp_path, 1)
        for name in model:
            (tmp_path / name).write_text("{}")
    with claim(config, tmp_path, content_of(config, tmp_path, {})) as second:
        assert (second.past.term, second.recoded) == (2, False)
    there = set(model if output == "." else ())  # nobody can tell the model's own settings from the script's
    assert {*code_of(config, tmp_path).files} == {*handed} | there, "the job's key is for nobody"


def test_data_is_known_by_where_it_is_from(tmp_path: Path) -> None:
    def of(data: str | None, **environment: str) -> str:
        return content_of(JobConfig(module="train", data=data), tmp_path, environment).data

    assert of(None) == of(None, **{DATA_SOURCE: "s3://a"}) == ""
    assert of("/copy/1", **{DATA_SOURCE: "s3://a"}) == of("/copy/2", **{DATA_SOURCE: "s3://a"}) == "s3://a"
    assert of("s3://a") == "s3://a"
    assert of(f"{tmp_path}/digits") == "digits", "both may be moved"
    assert of("/mnt/digits") == "/mnt/digits"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (f"{V2}/{RUN}/load/{FIRST}/data", f"{V2}/{RUN}/load/{SECOND}/data", True),
        (f"{V2}/{RUN}/load/{FIRST}/data", f"{V2}/{SECOND}/load/{FIRST}/data", False),
        (f"{V2}/{RUN}/load/{FIRST}/data", f"{V2}/{RUN}/other/{FIRST}/data", False),
        (f"{V2}/{RUN}/load/data", f"{V2}/{SECOND}/load/data", False),
        (f"s3://bucket/{FIRST}/data", f"s3://bucket/{SECOND}/data", False),
        ("/out/p-2026-11-25-08-00-00-123456/load/data", "/out/p-2026-11-25-09-00-00-654321/load/data", True),
        ("/out/p-2026-11-25-08-00-00-123456/load/data", "/out/p-2026-11-25-08-00-00-123456/other/data", False),
    ],
    ids=["attempts", "runs", "tasks", "older backends", "a store's own names", "local runs", "local tasks"],
)
def test_an_artifact_is_the_same_for_each_attempt_of_a_run_to_make_it(one: str, other: str, same: bool) -> None:
    assert (source_of(one) == source_of(other)) == same


def test_it_comes_back_from_what_is_written() -> None:
    content = Content(("train.py 1a2b",), "s3://a")
    assert Content.from_dict(content.to_dict()) == content
    assert Content.from_dict({}) == Content()
