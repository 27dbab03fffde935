"""What the commands of ``elastic-launcher quota`` share: the projects document, tables, errors in one line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from elastic_launcher.cli.job_argument import refuse
from elastic_launcher.cli.table import print_table
from elastic_launcher.quota.projects import Projects, QuotaError
from elastic_launcher.quota.projects_document import parse_projects

AsJson = Annotated[bool, typer.Option("--json", help="As one JSON object.")]


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Turns what is wrong with the input into one line and exit code 2."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        refuse(f"quota: {where}{error.strerror or error}")
    except ValueError as error:
        refuse(f"quota: {error}")


def read_projects(path: Path) -> Projects:
    """Reads a projects document.

    Raises:
        OSError: If it can't be read.
        QuotaError: If it can't be used; the message names the file.
    """
    try:
        return parse_projects(path.read_bytes())
    except QuotaError as error:
        raise QuotaError(f"{path}: {error}") from error


def show_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints a table."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in head:
        numbers = name not in ("PROJECT", "JOB", "WHY", "TIME", "CAUSE")
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("-" if value is None else str(value)) for value in row))  # a name may have brackets
    print_table(table)
