"""What pipelines hand over that a shell would not: switches in words, a script's text, words on the launcher's pod."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.cli.pipeline_arguments import add_words_on_the_pod, keep_script, plain_switches
from elastic_launcher.cli.run import read
from elastic_launcher.config import JobConfig
from elastic_launcher.options import ConfigError
from elastic_launcher.variables import POD_LABEL, POD_NODES

TEXT = "import torch\nprint(torch)\n"


@pytest.mark.parametrize(
    ("words", "plain"),
    [
        (["--require-hints=true", "--", "t.py"], ["--require-hints", "--", "t.py"]),
        (["--nodes=1:2", "--require-hints=false", "--", "t.py"], ["--nodes=1:2", "--", "t.py"]),
        (["--require-hints=", "--hints=", "t.py"], ["--hints=", "t.py"]),
        (["--require-hints", "t.py", "--require-hints=true"], ["--require-hints", "t.py", "--require-hints=true"]),
        (["--name", "--require-hints=true", "t.py"], ["--name", "--require-hints=true", "t.py"]),
        (["--", "t.py", "--require-hints=true"], ["--", "t.py", "--require-hints=true"]),
        (["--name"], ["--name"]),
        ([], []),
    ],
)
def test_switches_of_ours_may_have_a_value_and_all_else_stays(words: list[str], plain: list[str]) -> None:
    assert plain_switches(words) == plain


def test_a_switch_that_is_neither_ends_the_launcher_with_2() -> None:
    command = [sys.executable, "-m", "elastic_launcher", "run", "--require-hints=perhaps", "--", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--require-hints is 'perhaps': it must be true or false" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("label", "wanted", "given", "nodes"),
    [
        ("true", "1:4", None, "1:4"),
        ("true", "1:4", "", "1:4"),
        ("true", "1:4", "2:3", "2:3"),
        ("false", "1:4", None, None),
        ("", "1:4", None, None),
        ("true", "", None, None),
    ],
)
def test_the_pod_says_how_many_nodes_where_the_command_does_not(
    label: str, wanted: str, given: str | None, nodes: str | None
) -> None:
    texts: dict[str, Any] = {"nodes": given}
    told = add_words_on_the_pod(texts, {POD_LABEL: label, POD_NODES: wanted})
    assert texts["nodes"] == nodes
    assert bool(told) == (label == "true" and not given), "who only moves here is told what counted"


def test_an_annotation_that_is_no_range_is_named() -> None:
    with pytest.raises(ConfigError, match="annotation elastic-launcher/nodes of the launcher's pod: --nodes is '4'"):
        add_words_on_the_pod({}, {POD_LABEL: "true", POD_NODES: "4"})


def test_the_annotation_counts_on_the_command_line(tmp_path: Path) -> None:
    words = {POD_LABEL: "true", POD_NODES: "3:2"}
    for given, code in ([], "annotation elastic-launcher/nodes"), (["--nodes=1:1"], "the script none.py is not there"):
        command = [sys.executable, "-m", "elastic_launcher", "run", *given, "--", "none.py"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, **words})
        assert done.returncode == 2
        assert code in done.stderr


def test_a_scripts_text_is_at_the_same_path_each_time_and_alone_there(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("")
    config = JobConfig(script=TEXT, name="digits", work_dir="jobs/one/")
    kept = [keep_script(config, tmp_path) for _ in range(2)]
    assert kept[0] == kept[1]
    path = Path(str(kept[0].script))
    assert path.name == "digits.py" and path.parent.parent == tmp_path / "jobs" / "one.code"
    assert path.read_text() == TEXT and list(path.parent.iterdir()) == [path]


def test_another_text_for_the_same_folder_leaves_the_first_ones_file_as_it_is(tmp_path: Path) -> None:
    config = JobConfig(script=TEXT, name="digits", work_dir="job")
    first = Path(str(keep_script(config, tmp_path).script))
    other = Path(str(keep_script(replace(config, script=f"{TEXT}#"), tmp_path).script))
    assert (first.read_text(), other.read_text()) == (TEXT, f"{TEXT}#")
    assert first.name == other.name, "by its name the script is known"


def test_without_a_work_directory_a_text_has_a_folder_of_its_own(tmp_path: Path) -> None:
    paths = {str(keep_script(JobConfig(script=text), tmp_path).script) for text in (TEXT, TEXT, TEXT + "#")}
    assert len(paths) == 2
    assert {Path(path).name for path in paths} == {"train.py"}


def test_a_place_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="the script's text can't be written to .*choose another place"):
        keep_script(JobConfig(script=TEXT, work_dir="file/job"), tmp_path)


def test_a_front_gives_script_and_pod_template_as_texts(tmp_path: Path) -> None:
    texts = {"script": TEXT, "engine": "kubernetes", "checkpoint_dir": "ckpt", "pod_template": '{"spec": {}}'}
    config = read(texts, [], tmp_path)
    assert Path(str(config.script)).read_text() == TEXT
    assert (config.pod_template, config.checkpoint_dir) == ('{"spec": {}}', str(tmp_path / "ckpt"))
