"""The body of ``elastic_train`` and ``elastic_train_distributed``: parameters in, the step's outputs out."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from elastic_launcher import __version__, variables
from elastic_launcher.checkpoint.storage import StorageError, is_url, open_storage
from elastic_launcher.config import RETRIED, ExitCode, JobConfig
from elastic_launcher.content import source_of
from elastic_launcher.engines.kubernetes.objects.names import STEP_VARIABLE, job_id_of
from elastic_launcher.engines.kubernetes.objects.template import node_container
from elastic_launcher.events import EventError
from elastic_launcher.host.machine import gpus
from elastic_launcher.kfp_steps.arrival import AUTO_NUMBER, received, untouched
from elastic_launcher.kfp_steps.classification import FORM, metrics_text, read_classes
from elastic_launcher.kfp_steps.release import CHOICES as RELEASES
from elastic_launcher.kfp_steps.release import ended_by_shrink
from elastic_launcher.kfp_steps.travel import FIX, Meeting, fetch, model_place, read_beside, remove, send
from elastic_launcher.options import AUTO, BY_KEY, OPTIONS, ConfigError, read_option
from elastic_launcher.pipeline_step import (
    Companion,
    StepFailed,
    Trained,
    left_behind,
    nothing_left,
    say,
    train,
    what_to_run,
)
from elastic_launcher.report.write import framed_timeline
from elastic_launcher.workdir import CLASSES

FAILURES = ("raise", "report")
"""What ``on_failure`` may be: red at once, or green with a report that ``elastic_verdict`` turns red."""
BARE_IMAGE = "python:3.11"
"""What the components run in by default: the launcher is installed when the step starts, which nodes don't do."""
SCRATCH = "/tmp/elastic-launcher"

Outputs = tuple[int, int, float, int, str, int, str]


@dataclass(frozen=True, slots=True)
class _Run:
    """The work of a step's launcher.

    Attributes:
        options: By the keys of the option table.
        output: Where the script leaves its model.
        work_dir: The run's folder; "" for a new one beside the step's artifacts.
        copy: The copy of the data set, which is of no use once the step has ended well; "" for none.
        source: By what name that is known in each attempt; "" for none.
    """

    options: Mapping[str, object]
    output: str
    work_dir: str
    copy: str = ""
    source: str = ""


def train_step(given: Mapping[str, Any]) -> Outputs:
    """Trains, and fills the step's artifacts, given by name like the parameters; returns the scalar outputs in order.

    Raises:
        StepFailed: If the training did not end well, and that is not to be reported.
        SystemExit: Likewise, with the launcher's exit code, where another attempt may help.
    """
    given = received(given)
    try:
        with _refusals():
            failure, release = given["on_failure"], given.get("release", RELEASES[0])
            for name, value, choices in (("on_failure", failure, FAILURES), ("release", release, RELEASES)):
                if value not in choices:
                    raise ConfigError(f"{name} is {value!r}: it must be {' or '.join(choices)}")
            if is_url(given["report_uri"]):
                try:
                    open_storage(given["report_uri"])
                except StorageError as error:
                    raise ConfigError(f"report_uri: {error}") from error
            run = _distributed(given) if "task_config" in given else _in_pod(given)
            done = _train(given, run, release)
            _take_model(given, run, Path(done.work_dir))
            classes = _classes(run.output)
        code, reason = int(ExitCode.DONE), "done"
    except StepFailed as failed:
        if given["on_failure"] != "report":
            _end(failed)
        say(str(failed))
        done = left_behind(failed.folder) if failed.folder else nothing_left(str(failed))
        code, reason, classes = failed.exit_code, failed.account, None
    _write(given, done, classes)
    return (*_scalars(done), _place(given, done.work_dir), code, untouched(reason))


def _end(failed: StepFailed) -> NoReturn:
    if failed.exit_code in RETRIED:
        say(str(failed))
        sys.exit(int(failed.exit_code))
    raise failed


def _in_pod(given: Mapping[str, Any]) -> _Run:
    """Nodes are processes of the step's own pod, as many as it has GPUs where nobody says how many."""
    options = _options(given)
    ranks = given["nproc_per_node"]
    most = given["max_nodes"] or max(given["min_nodes"], len(gpus()) // max(1, ranks))
    if given["hints"] and given["release"] == "keep" and most > given["min_nodes"]:
        say(
            "nodes are processes of this step's pod, which keeps its GPUs to its end: a shrink frees none for others; "
            'release="exit" saves and ends the step then, elastic_train_distributed gives each node a pod of its own'
        )
    options["nodes"] = f"{given['min_nodes']}:{most}"
    return _here(given, options)


def _here(given: Mapping[str, Any], options: dict[str, object]) -> _Run:
    """Nodes see all that the step sees.

    The model of a job that outlives the step is kept beside its folder: a later step that finds it done has that too.
    """
    _check(given, options)
    options["data"] = given["data"].path if given.get("data") else None
    folder = given["work_dir"].rstrip("/")
    output = f"{folder}.model" if folder else given["model"].path
    return _Run(options, output, given["work_dir"], source=_source(given))


def _distributed(given: Mapping[str, Any]) -> _Run:
    """Nodes are pods, made of what the author has set on the task; the step's own pod is the coordinator's."""
    # both load an HTTP client, for which a step whose nodes are processes need not wait
    from elastic_launcher.kfp_steps.own_pod import image_of, own_pod, run_of
    from elastic_launcher.kfp_steps.task_config import gpus_of, mounts_of, nodes_template

    options = _options(given)
    task = given["task_config"]
    resource, asked = gpus_of(task.resources, given["gpu_resource"])
    ranks = given["nproc_per_node"] or asked or 1
    if asked is not None and ranks != asked:
        raise ConfigError(
            f"nproc_per_node is {ranks}, and set_accelerator_limit gives each node {asked} GPUs: leave one of them out"
        )
    options |= {"nproc_per_node": ranks, "gpu_resource": resource}
    options["nodes"] = f"{given['min_nodes']}:{given['max_nodes'] or given['min_nodes']}"
    if given["engine"] != "kubernetes":  # a laptop, where nodes are processes and see all that the step sees
        for key in ("pod_template", "node_image", "gpu_resource"):
            options[key] = None
        return _here(given, options)
    with _errors_as("the step's own pod can't be read"):
        pod = own_pod()
    template = nodes_template(task, given["pod_template"], run_of(pod))
    if not (given["node_image"] or _image(template)) and image_of(pod).rpartition("/")[2] == BARE_IMAGE:
        raise ConfigError(
            f"nodes would run {image_of(pod)}, which has no elastic-launcher: give node_image, an image that has "
            f"elastic-launcher[torch] {__version__} and what the script imports"
        )
    job = job_id_of(pod, given["name"])
    folder = f"{given['shared_dir'].rstrip('/')}/{job}" if given["shared_dir"] else ""
    checkpoints = given["checkpoint_dir"] or (f"{folder}/checkpoints" if folder else "")
    # by default both see the folder of checkpoints
    common = folder or (f"{checkpoints.rstrip('/')}/jobs/{job}" if checkpoints else "")
    meeting = Meeting(mounts_of(task, template), common, is_asked=bool(folder))
    options |= {"pod_template": json.dumps(template), "checkpoint_dir": checkpoints}
    if not checkpoints:
        raise ConfigError(f"nodes need a place that they all see for checkpoints: {FIX}")
    _check(given, options)  # before anything is copied
    with _errors_as(f"model: no place can be made for it at {common}"):
        output = model_place(given["model"], meeting)
    options["data"] = None
    if given.get("data"):
        with _errors_as(f"data: {given['data'].path} can't be copied to {meeting.data}"):
            options["data"] = send(given["data"], meeting)
    copy = meeting.data if options["data"] == meeting.data else ""
    # an attempt that finds the events of the one before takes its nodes over; the launcher finds those under a URL
    work_dir = given["work_dir"] or (f"{common}/job" if meeting.holds(common) else f"{SCRATCH}/{job}")
    return _Run(options, output, work_dir, copy, _source(given))


def _source(given: Mapping[str, Any]) -> str:
    return source_of(given["data"].uri) if given.get("data") else ""


def _options(given: Mapping[str, Any]) -> dict[str, object]:
    """Returns the options that the component's parameters give; 0 leaves an optional one out.

    Kubeflow's inputs have one type each: where a number may be ``auto``, that is -1.
    """
    found: dict[str, object] = {}
    for option in OPTIONS:
        if option.key in given and option.key not in ("script", "module", "arguments", "work_dir", "data"):
            value = given[option.key]
            if option.kind in ("whole", "whole_or_auto", "seconds") and option.default is None:
                value = value or None
            found[option.key] = AUTO if option.kind == "whole_or_auto" and value == AUTO_NUMBER else value
    return found


def _check(given: Mapping[str, Any], options: Mapping[str, object]) -> None:
    """Refuses here what the launcher would refuse, in its words.

    Raises:
        ConfigError: If the parameters are no job.
    """
    JobConfig.from_texts({**options, "work_dir": given["work_dir"]}, what_to_run(given["script"], given["module"]))


def _train(given: Mapping[str, Any], run: _Run, release: str) -> Trained:
    beside: list[Companion] = [ended_by_shrink] if release == "exit" else []
    if given["report_uri"]:
        from elastic_launcher.kfp_steps.report_copy import copied_to

        beside.append(copied_to(given["report_uri"]))
    return train(
        script=given["script"],
        module=given["module"],
        arguments=list(read_option(BY_KEY["arguments"], given["arguments"] or ())["arguments"]),
        options={**run.options, "output": run.output},
        work_dir=run.work_dir,
        artifacts=str(Path(given["timeline"].path).parent),
        environment={**({variables.DATA_SOURCE: run.source} if run.source else {}), **_words(run)},
        beside=beside,
    )


def _words(run: _Run) -> dict[str, str]:
    """Returns how the training goes on after this step, as its launcher is to say it."""
    if not os.environ.get(STEP_VARIABLE):
        return {}
    if run.work_dir or run.options.get("checkpoint_dir"):
        return {variables.GOES_ON: "; Retry of the run resumes from there"}
    return {variables.GOES_ON: ", in this step's pod, and goes with that: give checkpoint_dir to go on from it"}


def _take_model(given: Mapping[str, Any], run: _Run, folder: Path) -> None:
    """Brings the model where the next step finds it, and says what the model is made with."""
    model = given["model"]
    with _errors_as(f"model: {run.output} can't be copied to {model.path}", folder):
        if not fetch(run.output, model):
            say("the script left nothing at $ELASTIC_OUTPUT: the model artifact is empty")
    model.framework = "pytorch"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        model.metadata["framework_version"] = importlib.metadata.version("torch")
    model.metadata["elastic_launcher_version"] = __version__
    if run.copy:
        try:
            remove(run.copy)
        except OSError as error:
            say(f"the copy of the data stays at {run.copy}: {error}")


def _classes(output: str) -> dict[str, Any] | None:
    """Returns the classification that the script left; an invalid one causes a message, and no failure."""
    try:
        text = read_beside(output, CLASSES)
        return read_classes(text) if text else None
    except (OSError, ValueError, RecursionError) as error:
        say(f"$ELASTIC_OUTPUT{CLASSES} can't be shown ({error}): {FORM}")
        return None


def _write(given: Mapping[str, Any], done: Trained, classes: Mapping[str, Any] | None) -> None:
    for name, value in done.metrics.items():
        given["metrics"].log_metric(name, value)
    texts = {"metrics": metrics_text(done.metrics, classes), "timeline": _timeline(done), "summary": done.summary}
    for name, text in texts.items():
        try:
            Path(given[name].path).write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError as error:  # a full disk, say; how the training has ended is not lost by that
            say(f"{name}: {given[name].path} can't be written: {error}")
    say(f"summary:\n{done.summary}")


def _scalars(done: Trained) -> tuple[int, int, float, int]:
    found = done.metrics
    return int(found["world_size_final"]), int(found["resizes_total"]), float(found["goodput"]), int(found["steps"])


def _place(given: Mapping[str, Any], work_dir: str) -> str:
    """Returns where the job's files can be opened; "" where they go with the step's pod, and no copy was asked for."""
    own = (SCRATCH, str(Path(given["timeline"].path).parent))
    goes = STEP_VARIABLE in os.environ and any(Path(work_dir).is_relative_to(one) for one in own)
    if not goes or not given["report_uri"]:
        return "" if goes else work_dir
    from elastic_launcher.kfp_steps.report_copy import own_folder

    with contextlib.suppress(OSError, EventError):
        return own_folder(Path(work_dir), str(given["report_uri"]))
    return str(given["report_uri"])


def _timeline(done: Trained) -> str:
    """Returns the timeline as Kubeflow shows it, in a small frame of a white page."""
    with contextlib.suppress(OSError, EventError):
        return framed_timeline(Path(done.work_dir))
    return done.timeline


def _image(template: Mapping[str, Any]) -> str:
    containers = template["spec"].get("containers") or [{}]
    return str(containers[node_container(template)].get("image", ""))


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Reports a refusal before the launcher ran as the launcher would have."""
    try:
        yield
    except ConfigError as error:
        raise StepFailed(f"{error} (exit code {int(ExitCode.BAD_USAGE)})", ExitCode.BAD_USAGE) from error


@contextlib.contextmanager
def _errors_as(what: str, folder: Path | None = None) -> Iterator[None]:
    """Reports what can't be read, or copied to its place (which, and where); another attempt may help.

    ``folder`` is what the run has left behind, if it had one.
    """
    try:
        yield
    except OSError as error:
        code = ExitCode.LAUNCHER_FAILED
        raise StepFailed(f"{what}: {error} (exit code {int(code)})", code, folder) from error
