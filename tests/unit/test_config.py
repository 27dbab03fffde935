"""One configuration, whatever way it comes in; what is wrong is said with its name and the fix."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.config import CONFIG_VERSION, ExitCode, JobConfig
from elastic_launcher.options import GIVEN_KEYS, OPTIONS, ConfigError, command_line

SCRIPT = ("train.py",)


def test_nodes_in_a_cluster_are_given_what_they_can_all_see() -> None:
    texts = {"engine": "kubernetes", "checkpoint_dir": "/claim/checkpoints"}
    for place in ("/claim/checkpoints", "s3://models/digits"):
        assert JobConfig.from_texts({**texts, "checkpoint_dir": place}, SCRIPT).checkpoint_dir == place
    with pytest.raises(ConfigError, match="--engine kubernetes needs --checkpoint-dir: a folder that all pods see"):
        JobConfig.from_texts({"engine": "kubernetes"}, SCRIPT)
    with pytest.raises(ConfigError, match="--resize respawn works with --engine local only"):
        JobConfig.from_texts({**texts, "resize": "respawn"}, SCRIPT)


def test_the_defaults_of_the_table_are_those_of_the_configuration() -> None:
    assert JobConfig.from_texts({}, SCRIPT) == JobConfig(script="train.py")


def test_each_option_fills_its_fields_and_no_others() -> None:
    texts = {
        "nodes": "2:5",
        "engine": "local",
        "pod_template": "pod.yaml",
        "node_image": "registry/train:1",
        "gpu_resource": "amd.com/gpu",
        "nproc_per_node": "4",
        "hints": "hints.json",
        "match": ["queue=team-a,pipeline=x, y", "job=bert"],
        "project": "nlp",
        "priority": " -3 ",
        "share": "2/3",
        "require_hints": True,
        "wait_for_quota": "12.5",
        "node_timeout": "900",
        "work_dir": "out",
        "max_runtime": "1.5h",
        "metrics_port": "9400",
        "start_timeout": "30",
        "pending_timeout": "10m",
        "min_wait": "90",
        "orphan_timeout": "5",
        "heartbeat_timeout": "20",
        "progress_timeout": "90",
        "silence_timeout": "2m",
        "grace_period": "120",
        "resize": "respawn",
        "rdzv_backend": "c10d",
        "max_failures": "3",
        "global_batch_size": "256",
        "max_batch_per_gpu": "64",
        "autoscale_batch_size": "2048",
        "checkpoint_every": "100 steps",
        "keep_checkpoints": "3",
        "checkpoint_dir": "s3://models/digits",
        "accept_changes": "seed,dataset",
        "data": "/data",
        "output": "/model",
        "name": "digits",
        "module": "pkg.train",
        "arguments": "--lr '0.1'",
    }
    assert set(texts) == {option.key for option in OPTIONS} - {"script"}
    assert JobConfig.from_texts(texts, ()) == JobConfig(
        module="pkg.train",
        arguments=("--lr", "0.1"),
        name="digits",
        min_nodes=2,
        max_nodes=5,
        engine="local",
        pod_template="pod.yaml",
        node_image="registry/train:1",
        gpu_resource="amd.com/gpu",
        nproc_per_node=4,
        hints="hints.json",
        match={"queue": "team-a", "pipeline": "x, y", "job": "bert", "project": "nlp"},
        project="nlp",
        priority=-3,
        share=(2, 3),
        require_hints=True,
        wait_for_quota=12.5,
        node_timeout=900.0,
        work_dir="out",
        max_runtime=5400.0,
        metrics_port=9400,
        start_timeout=30.0,
        pending_timeout=600.0,
        min_wait=90.0,
        orphan_timeout=5.0,
        heartbeat_timeout=20.0,
        progress_timeout=90.0,
        silence_timeout=120.0,
        grace_period=120.0,
        resize="respawn",
        rdzv_backend="c10d",
        max_failures=3,
        global_batch_size=256,
        max_batch_per_gpu=64,
        autoscale_batch_size=2048,
        checkpoint_every="100 steps",
        keep_checkpoints=3,
        checkpoint_dir="s3://models/digits",
        accept_changes="seed,dataset",
        data="/data",
        output="/model",
    )


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("nodes", "3", "--nodes is '3': it must be MIN:MAX with whole numbers, 1 <= MIN <= MAX"),
        ("nodes", "3", "write --nodes 3:3"),
        ("nodes", "0:2", "--nodes is '0:2'"),
        ("nodes", "3:2", "--nodes is '3:2'"),
        ("nodes", "1:2:3", "--nodes is '1:2:3'"),
        ("nodes", "a:b", "--nodes is 'a:b'"),
        ("nodes", "1:", "--nodes is '1:'"),
        ("nodes", "-1:2", "--nodes is '-1:2'"),
        ("nodes", "1.0:2", "--nodes is '1.0:2'"),
        ("nodes", "١:٢", "1 <= MIN <= MAX"),
        ("nproc_per_node", "0", "--nproc-per-node is '0': it must be a whole number, 1 or more"),
        ("global_batch_size", "0", "--global-batch-size is '0': it must be a whole number, 1 or more"),
        ("global_batch_size", "-8", "--global-batch-size is '-8'"),
        ("global_batch_size", "2.5", "--global-batch-size is '2.5'"),
        ("global_batch_size", "1e3", "--global-batch-size is '1e3'"),
        ("global_batch_size", "many", "--global-batch-size is 'many'"),
        ("max_batch_per_gpu", "0", "--max-batch-per-gpu is '0': it must be a whole number, 1 or more, or auto"),
        ("max_batch_per_gpu", "most", "--max-batch-per-gpu is 'most'"),
        ("global_batch_size", "auto", "--global-batch-size is 'auto': it must be a whole number, 1 or more"),
        ("max_batch_per_gpu", "0.5", "--max-batch-per-gpu is '0.5'"),
        ("match", ["colour=red"], "unknown key 'colour'; known are namespace, project, queue, pipeline, job"),
        ("match", "queue=a,colour=red", "unknown key 'colour'"),
        ("match", "id=bert-1f2e", "--match gives the id 'bert-1f2e', and the launcher itself gives a job its id"),
        ("match", ["queue"], "--match is 'queue': it must be KEY=VALUE"),
        ("match", ["=x"], "it must be KEY=VALUE"),
        ("match", ["queue=a", "queue=b"], "--match gives queue twice: 'a' and 'b'"),
        ("priority", "high", "--priority is 'high': it must be a whole number, -1000 to 1000"),
        ("priority", "1.5", "--priority is '1.5'"),
        ("priority", "1001", "--priority is 1001: it must be a whole number, -1000 to 1000"),
        ("priority", "-1001", "--priority is -1001"),
        ("priority", "9" * 20, "--priority is '999"),
        ("share", "0/2", "--share is '0/2': it must be I/N"),
        ("share", "3/2", "--share is '3/2'"),
        ("share", "half", "--share is 'half'"),
        ("wait_for_quota", "-1", "--wait-for-quota is -1: it must be a number of seconds, 0 or more"),
        ("wait_for_quota", "soon", "--wait-for-quota is 'soon': it must be a number of seconds"),
        ("wait_for_quota", "inf", "--wait-for-quota is inf"),
        ("start_timeout", "0", "--start-timeout is 0:"),
        ("orphan_timeout", "nan", "--orphan-timeout is nan"),
        ("require_hints", True, "--require-hints needs --hints FILE"),
        ("max_runtime", "100 steps", "--max-runtime is '100 steps': it must be a time above 0"),
        ("max_runtime", "later", "--max-runtime is 'later': it must be a time above 0, for example 90s, 30m or 12h"),
        ("max_runtime", "0.01s", "--max-runtime is 0.01: it must be a number of seconds, 0.1 or more"),
        ("checkpoint_every", "often", "--checkpoint-every is 'often': it must be a time or a number of steps above 0"),
        ("checkpoint_every", "0s", "--checkpoint-every is '0s'"),
        ("checkpoint_every", "2.5 steps", "--checkpoint-every is '2.5 steps'"),
        (
            "accept_changes",
            "model",
            "--accept-changes is 'model': it must be one or more of arguments",
        ),
        ("engine", "slurm", "--engine is 'slurm': it must be local or kubernetes"),
        ("engine", "kubernetes", "--engine kubernetes needs --checkpoint-dir: a folder that all pods see"),
        ("work_dir", "s3://b/jobs", "--work-dir is 's3://b/jobs': give a folder"),
        ("checkpoint_dir", "s3://", "--checkpoint-dir is 's3://', which names no place: give a folder, or a URL"),
        (
            "checkpoint_dir",
            "memory://x",
            "--checkpoint-dir is 'memory://x', which is lost with each process: give a folder",
        ),
        ("autoscale_batch_size", "0", "--autoscale-batch-size is '0': it must be a whole number, 1 or more"),
        ("keep_checkpoints", "0", "--keep-checkpoints is '0': it must be a whole number, 1 or more"),
        ("engines", "5", "unknown option 'engines'"),
        ("require_hints", "maybe", "--require-hints is 'maybe': it must be true or false"),
        ("arguments", "--lr '0.1", "--arguments is \"--lr '0.1\": it can't be split (No closing quotation)"),
        ("arguments", "[1,", "it must be as on a command line, or a JSON list"),
    ],
)
def test_bad_options_are_refused_by_name_with_the_fix(key: str, text: object, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        JobConfig.from_texts({key: text}, SCRIPT)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ((), "the script is missing"),
        (("",), "the script is missing"),
        (("-m",), "-m needs the name of a module"),
        (("--lr", "1"), "expected a script after --, or -m and a module, but found '--lr'"),
    ],
)
def test_a_command_without_script_is_refused(command: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        JobConfig.from_texts({}, command)


@pytest.mark.parametrize(
    ("texts", "command", "expected"),
    [
        ({"script": "train.py"}, (), ("train.py",)),
        ({"script": "train.py", "module": ""}, ("--lr", "1"), ("train.py", "--lr", "1")),
        ({"module": "pkg.train", "arguments": '["--lr", "0.1", 3]'}, (), ("-m", "pkg.train", "--lr", "0.1", "3")),
        ({"script": "train.py", "arguments": "--lr 'a b'"}, ("-v",), ("train.py", "--lr", "a b", "-v")),
        ({"arguments": ["--lr", "1"]}, ("train.py", "-v"), ("train.py", "--lr", "1", "-v")),
    ],
)
def test_fronts_say_the_command_by_options(
    texts: dict[str, object], command: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert JobConfig.from_texts(texts, command).command == expected


def test_script_and_module_exclude_each_other_as_options_too() -> None:
    with pytest.raises(ConfigError, match="--script and --module are both given"):
        JobConfig.from_texts({"script": "train.py", "module": "pkg.train"}, ())


@pytest.mark.parametrize(("text", "wanted"), [("true", True), ("False", False), (True, True), (None, False)])
def test_a_switch_may_be_said_in_words(text: object, wanted: bool) -> None:
    assert JobConfig.from_texts({"require_hints": text, "hints": "h.json"}, SCRIPT).require_hints is wanted


@pytest.mark.parametrize("key", ["data", "output", "checkpoint_dir", "work_dir", "name", "hints", "script"])
def test_a_line_break_at_the_end_is_none_of_an_options_text(key: str) -> None:
    """As YAML's ``|`` and a ConfigMap made from a file have it."""
    config = JobConfig.from_texts({"script": "train.py", key: "/mnt/a folder \n"}, ())
    assert getattr(config, key) == "/mnt/a folder"


def test_a_text_of_several_lines_stays_as_it_is() -> None:
    script = "\n\nimport torch\nprint(1)\n\n"
    assert JobConfig.from_texts({"script": script}, ()).script == script


def test_an_option_of_nothing_but_a_line_break_is_left_out() -> None:
    assert JobConfig.from_texts({"script": "train.py", "data": "\n"}, ()).data is None


def test_a_script_given_as_a_text_has_no_name() -> None:
    assert JobConfig.from_texts({"script": "import torch\nprint(1/2)\n"}, ()).name == "train"


@given(
    st.dictionaries(
        st.sampled_from(["work_dir", "data", "output", "name", "node_image"]),
        st.text(min_size=1),
    ),
    st.dictionaries(st.sampled_from(GIVEN_KEYS), st.from_regex(r"[a-z]([-a-z0-9]{0,9}[a-z0-9])?", fullmatch=True)),
    st.lists(st.text(st.characters(exclude_characters="\0"))),  # which no program can be given
    st.booleans(),
)
def test_what_a_front_says_is_what_the_command_line_reads(
    texts: dict[str, str], match: dict[str, str], arguments: list[str], required: bool
) -> None:
    said = {"match": match, "arguments": arguments, "require_hints": required, "hints": "h", "script": "train.py"}
    given = {**texts, **said}
    read: dict[str, Any] = {}
    for word in command_line(given):
        flag, equals, value = word.partition("=")
        (option,) = (one for one in OPTIONS if one.flag == flag)
        read[option.key] = [*read.get(option.key, []), value] if option.kind == "pairs" else value if equals else True
    assert JobConfig.from_texts(read, ()) == JobConfig.from_texts(given, ())


def test_a_configuration_made_in_python_passes_the_same_checks() -> None:
    with pytest.raises(ConfigError, match="--nodes"):
        JobConfig(script="train.py", min_nodes=3, max_nodes=2)
    with pytest.raises(ConfigError, match="--global-batch-size"):
        JobConfig(script="train.py", global_batch_size=0)
    with pytest.raises(ConfigError, match="one script"):
        JobConfig(script="train.py", module="train")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("train.py",), "train"),
        (("scripts/digits.train.py",), "digits.train"),
        (("-m", "pkg.bert"), "bert"),
        (("./run",), "run"),
    ],
)
def test_the_job_is_named_after_its_script_and_matched_by_that(command: tuple[str, ...], name: str) -> None:
    config = JobConfig.from_texts({}, command)
    assert (config.name, config.match["job"]) == (name, name)


@pytest.mark.parametrize(
    ("texts", "project"),
    [
        ({}, None),
        ({"project": "nlp"}, "nlp"),
        ({"match": "project=nlp,queue=a"}, "nlp"),
        ({"project": "nlp", "match": "project=nlp"}, "nlp"),
    ],
)
def test_the_project_may_be_given_as_an_option_or_as_a_match_key(texts: dict[str, str], project: str | None) -> None:
    config = JobConfig.from_texts(texts, SCRIPT)
    assert (config.project, config.match.get("project")) == (project, project)


def test_a_batch_that_adapts_does_not_begin_above_its_maximum() -> None:
    with pytest.raises(ConfigError, match="--autoscale-batch-size is 32, below --global-batch-size, 64, with which"):
        JobConfig(script="train.py", global_batch_size=64, autoscale_batch_size=32)
    assert JobConfig(script="train.py", global_batch_size=64, autoscale_batch_size=64).environment()


def test_two_projects_of_one_job_are_refused() -> None:
    with pytest.raises(ConfigError) as error:
        JobConfig.from_texts({"project": "nlp", "match": "project=vision"}, SCRIPT)
    assert str(error.value) == "--project is 'nlp', and --match gives the project 'vision': leave one of them out"


@pytest.mark.parametrize("priority", [1.0, True, None, "1"])
def test_a_priority_made_in_python_is_a_whole_number_too(priority: Any) -> None:
    with pytest.raises(ConfigError, match="--priority is .*: it must be a whole number, -1000 to 1000"):
        JobConfig(script="train.py", priority=priority)


def test_ranks_find_what_was_given_in_their_environment() -> None:
    config = JobConfig(script="train.py", global_batch_size=256, data="/data")
    assert config.environment() == {
        "ELASTIC_GLOBAL_BATCH_SIZE": "256",
        "ELASTIC_KEEP_CHECKPOINTS": "2",
        "ELASTIC_DATA": "/data",
    }


def test_the_command_is_what_was_typed() -> None:
    typed = ("-m", "pkg.train", "--", "-m", "x", "")
    assert JobConfig.from_texts({}, typed).command == typed


@given(
    minimum=st.integers(1, 1000),
    more=st.integers(0, 1000),
    match=st.dictionaries(st.sampled_from(GIVEN_KEYS), st.text(min_size=1)),
    arguments=st.lists(st.text()),
    batch=st.none() | st.integers(1, 10**9),
    priority=st.integers(-1000, 1000),
    share=st.none() | st.integers(1, 9).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n))),
)
def test_what_job_json_holds_reads_back_the_same(
    minimum: int,
    more: int,
    match: dict[str, str],
    arguments: list[str],
    batch: int | None,
    priority: int,
    share: tuple[int, int] | None,
) -> None:
    config = JobConfig(
        script="train.py",
        min_nodes=minimum,
        max_nodes=minimum + more,
        match=match,
        arguments=tuple(arguments),
        global_batch_size=batch,
        priority=priority,
        share=share,
    )
    assert JobConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_a_field_of_a_later_version_is_left_aside() -> None:
    config = JobConfig(script="train.py")
    assert JobConfig.from_dict(config.to_dict() | {"of_a_later_version": 1}) == config


def test_a_written_configuration_says_its_version_and_a_later_one_is_refused() -> None:
    document = JobConfig(script="train.py").to_dict()
    assert document["v"] == CONFIG_VERSION
    del document["v"]
    assert JobConfig.from_dict(document) == JobConfig(script="train.py"), "as written before versions were"
    with pytest.raises(ConfigError, match="of version 2, and this elastic-launcher reads up to 1"):
        JobConfig.from_dict(document | {"v": 2})


def test_every_field_of_the_configuration_is_an_option() -> None:
    fields = {field.name for field in dataclasses.fields(JobConfig)}
    assert fields - {option.key for option in OPTIONS} == {"min_nodes", "max_nodes"}


def test_every_option_but_nodes_is_a_field_of_its_own() -> None:
    fields = {field.name for field in dataclasses.fields(JobConfig)}
    assert {option.key for option in OPTIONS} - fields == {"nodes"}


def test_exit_codes_are_those_of_the_contract() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "DONE": 0,
        "SCRIPT_FAILED": 1,
        "BAD_USAGE": 2,
        "LAUNCHER_FAILED": 70,
        "STOPPED": 75,
        "NO_QUOTA": 76,
        "INTERRUPTED": 130,
    }


@pytest.mark.parametrize(("given", "heartbeat", "seconds"), [(None, 10.0, 60.0), (None, 30.0, 180.0), (5.0, 30.0, 5.0)])
def test_any_rank_may_be_silent_for_a_minute_or_six_heartbeat_timeouts(
    given: float | None, heartbeat: float, seconds: float
) -> None:
    config = JobConfig(script="train.py", heartbeat_timeout=heartbeat, silence_timeout=given)
    assert config.silence_seconds == seconds


def test_pairs_that_a_command_line_would_read_otherwise_are_refused_where_they_are_given() -> None:
    for value in ("train, lr=0.1", "train,job=other", ""):
        with pytest.raises(ConfigError, match="--match"):
            JobConfig.from_texts({"match": {"pipeline": value}}, ["train.py"])
    assert JobConfig.from_texts({"match": {"pipeline": " a, b "}}, ["train.py"]).match["pipeline"] == "a, b"
