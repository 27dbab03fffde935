"""Prints a table: on a terminal as wide as that is, and elsewhere as wide as its rows, for `grep` and the like."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

_WIDEST = 1 << 16
"""Characters of a line where there is no terminal."""


def print_table(table: Table) -> None:
    """Prints a table; a row is one line, unless a terminal is too narrow for it."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDEST)
    console.print(table)
