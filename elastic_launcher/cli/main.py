"""The ``elastic-launcher`` command: its subcommands by name, each loaded only when it is called."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from elastic_launcher import __version__


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand that is not loaded yet.

    Attributes:
        target: Where its function, or its typer application, is: ``module:name``.
        help: Its line in the overview.
        settings: What its parser does differently.
        parser: The name, in the same module, of its parser's class; "" for the usual one.
    """

    target: str
    help: str
    settings: dict[str, Any] = field(default_factory=dict)
    parser: str = ""


COMMANDS = {
    "run": Command(
        "elastic_launcher.cli.run:run",
        "Train a script on as many nodes as the quota allows right now.",
        {"allow_interspersed_args": False},  # what follows the script is the script's
        "RunCommand",
    ),
    "plan": Command(
        "elastic_launcher.cli.plan:plan",
        "Show how a step is divided among ranks, and what another GPU is worth to a job.",
    ),
    "hints": Command("elastic_launcher.cli.hints:hints_app", "Check, show and edit quota hints."),
    "quota": Command("elastic_launcher.cli.quota.app:quota_app", "Divide GPUs among projects with guaranteed quotas."),
    "status": Command("elastic_launcher.cli.status:status", "Show how a job is doing, or how it ended."),
    "checkpoint": Command(
        "elastic_launcher.cli.checkpoint:checkpoint", "Save a running job now, or export what is saved."
    ),
    "stop": Command("elastic_launcher.cli.stop:stop", "Have a running job save itself and end; it can go on later."),
    "logs": Command("elastic_launcher.cli.logs:logs", "Print what a job's ranks wrote; --follow goes on with it."),
    "report": Command("elastic_launcher.cli.report:report", "Write a job's timeline and summary."),
    "lint": Command("elastic_launcher.cli.lint:lint", "Find what API servers let through in workflows and pipelines."),
}


class _Lazy(TyperGroup):
    """Loads a subcommand where it is called, and none to list them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the names, in the order of the overview."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns a subcommand, loaded; None where there is none of that name."""
        command = COMMANDS.get(cmd_name)
        return None if command is None else _load(cmd_name, command)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the overview from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in COMMANDS.items()])


def _load(name: str, command: Command) -> Any:
    name_of_module, _, attribute = command.target.partition(":")
    module = importlib.import_module(name_of_module)
    target = getattr(module, attribute)
    if not isinstance(target, typer.Typer):
        function, target = target, typer.Typer(add_completion=False, rich_markup_mode=None)
        parser = getattr(module, command.parser) if command.parser else None
        target.command(name, cls=parser, context_settings=command.settings)(function)
    loaded = typer.main.get_command(target)
    loaded.name = name
    return loaded


_OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What the system says where the file that the output goes to takes no more."""

app = typer.Typer(
    cls=_Lazy,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"elastic-launcher {__version__}")
        raise typer.Exit


@app.callback()
def overview(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train on as many GPUs as the quota allows right now: the same model at every size."""


def main() -> None:
    """Runs the command line; does not return."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a job's name must not end a command that can't encode it
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="elastic-launcher")
    except OSError as error:
        if error.errno not in _OF_OUTPUT or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left of the output is not tried again
        print(f"elastic-launcher: the output can't be written: {error.strerror}", file=sys.stderr)
        sys.exit(1)
