"""``elastic-launcher run``: one job, from what the user typed to its exit code."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from elastic_launcher.cli.pipeline_arguments import add_words_on_the_pod, check_arrival, keep_script, plain_switches
from elastic_launcher.config import ExitCode, JobConfig
from elastic_launcher.engines import EngineAway
from elastic_launcher.hints.reference import SCHEME, parse_reference
from elastic_launcher.host.transient import may_pass
from elastic_launcher.launcher.output_pump import unblocked
from elastic_launcher.launcher.step_outputs import tell_outputs
from elastic_launcher.options import OPTIONS, ConfigError, Option, holds_text
from elastic_launcher.workdir import Layout

USAGE = "SCRIPT|-m MODULE [ARGS...]"
"""What to train, and its own arguments."""
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask for the end: Ctrl-C gives SIGINT, a terminal that is closed or loses its connection SIGHUP."""
OF_SCRIPTS = {"--data", "--output", "--name", "--script", "--module", "--arguments"}
"""Options of ours that many scripts have too."""


def run(**given: Any) -> None:
    """Trains SCRIPT (or -m MODULE) on as many nodes as the quota hints allow, changing their number while it runs.

    Every optimizer step uses exactly the global batch, at any number of nodes.
    """
    with unblocked():
        code = _launched(given, given.pop("command") or [])
    raise typer.Exit(int(code))


def _launched(given: Mapping[str, Any], command: Sequence[str]) -> int:
    """Runs the job, and returns the exit code after any error."""
    for number in STOPS:  # until the coordinator takes signals: there is nothing to end yet
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP, a shell SIGINT of what is behind `&`
            signal.signal(number, _stop)
    try:
        return _run(given, command)
    except ConfigError as error:
        return _end(ExitCode.BAD_USAGE, str(error))
    except EngineAway as error:
        return _end(ExitCode.LAUNCHER_FAILED, str(error))
    except Exception as error:  # noqa: BLE001 - the exit code says that it was not the script
        traceback.print_exc()
        return _end(ExitCode.LAUNCHER_FAILED, f"the launcher itself failed ({type(error).__name__}: {error})")
    except _Stopped as stopped:
        return _end(stopped.code, f"{stopped} before anything was started")


def _end(code: ExitCode, message: str) -> int:
    """Prints the error of a launch without a job, and returns the exit code."""
    _say(message)
    tell_outputs(code, message, None, _say)
    return code


class RunCommand(TyperCommand):
    """The command's parser: it knows which part of the line is the script's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the line, and says what was probably meant otherwise."""
        given = list(args)
        try:
            args = plain_switches(args)
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from error
        try:
            left = super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "option_name", "") == "-m" and hasattr(error, "message"):
                module = next(iter(given[given.index("-m") + 1 :] if "-m" in given else []), "MODULE")
                error.message = f"No such option: -m; what to train comes after --: write `-- -m {module}`"
            raise
        source = ctx.get_parameter_source("nodes")
        if source is not None and source.name == "DEFAULT":
            ctx.params["nodes"] = None  # the launcher's pod may say it
        command = ctx.params.get("command") or []
        if "--" not in given[: len(given) - len(command)]:
            for flag in misplaced(command):
                _say(
                    f"{flag} comes after the script, so it is the script's argument and not ours: put it before the "
                    f"script, or, if the script has such an option, write -- before the script"
                )
        return left

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Returns the usage line after the command's name."""
        return ["[OPTIONS]", "--", USAGE]


def misplaced(command: Sequence[str]) -> list[str]:
    """Returns our options among a script's arguments, each once, but no `OF_SCRIPTS`."""
    flags = {option.flag for option in OPTIONS} - OF_SCRIPTS
    return list(dict.fromkeys(flag for word in command[1:] if (flag := word.partition("=")[0]) in flags))


class _Stopped(KeyboardInterrupt):
    """A signal asks the launcher to stop, which then ends with ``code``."""

    def __init__(self, number: signal.Signals) -> None:
        by_keyboard = number == signal.SIGINT
        super().__init__("interrupted from the keyboard" if by_keyboard else f"stopped by {number.name}")
        self.code = ExitCode.INTERRUPTED if by_keyboard else ExitCode.STOPPED


def _stop(number: int, frame: object) -> None:
    stopped = _Stopped(signal.Signals(number))
    for each in STOPS:
        if signal.getsignal(each) is _stop:
            signal.signal(each, lambda *_: os._exit(stopped.code))  # a second one ends at once
    raise stopped


def read(texts: Mapping[str, Any], command: Sequence[str], directory: Path) -> JobConfig:
    """Returns the configuration of what the user typed, with what it needs from the file system checked.

    Raises:
        ConfigError: If it can't be run.
    """
    config = keep_script(JobConfig.from_texts(texts, command), directory)
    try:
        return _with_paths(config, directory)
    except OSError as error:
        if may_pass(error):
            raise
        raise ConfigError(f"{error.filename} can't be looked at: {error.strerror}") from error


def _with_paths(config: JobConfig, directory: Path) -> JobConfig:
    """Returns a configuration with absolute paths, and what it needs from the file system checked."""
    if config.script is not None:
        script = directory / config.script
        if not (script.is_file() or (script / "__main__.py").is_file()):
            raise ConfigError(
                f"the script {config.script} is not there (looked in {directory}): give the path of a file"
            )
        if not os.access(script, os.R_OK):
            raise ConfigError(f"the script {config.script} can't be read: see its permissions")
    elif PathFinder.find_spec(str(config.module).partition(".")[0], [str(directory), *sys.path]) is None:
        raise ConfigError(f"there is no module {config.module}: start in the folder that holds it, or install it")
    paths: dict[str, Any] = {
        option.key: _absolute(getattr(config, option.key), directory) for option in OPTIONS if option.is_path
    }
    if paths["data"] is not None and "://" not in paths["data"] and not Path(paths["data"]).exists():
        raise ConfigError(f"--data is {config.data!r}: there is nothing at {paths['data']}")
    config = dataclasses.replace(config, **paths)
    if config.hints is not None and parse_reference(config.hints) is None:
        if not _may_have_begun(config):  # one that has holds the last hint that it followed
            _check_hints(Path(config.hints), required=config.require_hints)
    return config


def _may_have_begun(config: JobConfig) -> bool:
    """Returns whether there may be something of the job that it goes on with."""
    known = config.work_dir is not None and Layout(Path(config.work_dir)).job.exists()
    return known or config.checkpoint_dir is not None


def _check_hints(path: Path, *, required: bool) -> None:
    from elastic_launcher.hints import HintError, parse
    from elastic_launcher.hints.file import read_now

    found = read_now(path)
    if found.text is None:
        if required:
            raise ConfigError(f"hints: {path}: {found.error or 'it is not there'}; --require-hints asks for them")
        return
    try:
        parse(found.text)
    except HintError as error:
        raise ConfigError(f"hints: {path}: {error}")


def _run(texts: Mapping[str, Any], command: Sequence[str]) -> int:
    if not sys.platform.startswith("linux"):
        raise ConfigError(f"run needs Linux, and this is {sys.platform}; plan, hints and report work here")
    check_arrival()
    texts = dict(texts)
    remark = add_words_on_the_pod(texts)
    if remark:
        _say(remark)
    config = read(texts, command, Path.cwd())
    from elastic_launcher.launcher.launch import launch  # what is needed only when all is well

    return launch(config, Path.cwd())


def _absolute(path: str | None, directory: Path) -> str | None:
    if path is None or "://" in path or path.startswith(SCHEME) or holds_text(path):
        return path
    return os.path.abspath(directory / path)


def _say(message: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may have gone
        print(f"elastic-launcher: {message}", file=sys.stderr, flush=True)


def _parameter(option: Option) -> inspect.Parameter:
    """Returns what typer makes a flag of."""
    kinds: dict[str, Any] = {"switch": bool, "pairs": list[str] | None}
    default = False if option.kind == "switch" else option.default
    info = typer.Option(option.flag, metavar=option.unit or None, help=option.help, show_default=bool(default))
    annotated: Any = Annotated
    annotation = annotated[kinds.get(option.kind, str | None), info]
    return inspect.Parameter(option.key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_COMMAND = inspect.Parameter(
    "command",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        list[str] | None,
        typer.Argument(metavar=USAGE, hidden=True),  # the usage line has it
    ],
)
run.__signature__ = inspect.Signature([*map(_parameter, OPTIONS), _COMMAND])  # type: ignore[attr-defined]
