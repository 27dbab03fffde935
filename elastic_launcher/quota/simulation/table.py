"""Reads tables of comma-separated values, with errors that name the file, the line, the column and the fix."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

_WHOLE = re.compile(r"[0-9]{1,9}", re.ASCII)


class TraceError(ValueError):
    """A trace that can't be read."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table.

    Attributes:
        path: The file.
        line: Its number in the file, from 1.
        values: What it says by column, without blanks around it.
    """

    path: Path
    line: int
    values: Mapping[str, str]

    def error(self, column: str, must: str) -> TraceError:
        """Returns the error of a value, by what it must be."""
        return TraceError(f'{self.path}, line {self.line}, column {column}: "{self.values[column]}" must be {must}')

    def text(self, column: str, default: str = "") -> str:
        """Returns a text, or the default where there is none.

        Raises:
            TraceError: If there is neither.
        """
        if not (found := self.values.get(column) or default):
            raise self.error(column, "a text that is not empty")
        return found

    def number(self, column: str, least: float = 0.0, most: float = math.inf, default: float | None = None) -> float:
        """Returns a number, or the default where there is none.

        Raises:
            TraceError: If it is no number, or not from the least to the most.
        """
        text = self.values.get(column, "")
        if not text and default is not None:
            return default
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not (least <= found <= most and math.isfinite(found)):
            raise self.error(column, f"a number, {least:g} " + ("or more" if most == math.inf else f"to {most:g}"))
        return found

    def whole(self, column: str, least: int = 1, default: int | None = None) -> int:
        """Returns a whole number, or the default where there is none.

        Raises:
            TraceError: If it is no whole number, or below the least.
        """
        text = self.values.get(column, "")
        if not text and default is not None:
            return default
        if not _WHOLE.fullmatch(text) or int(text) < least:
            raise self.error(column, f"a whole number, {least} or more")
        return int(text)


def read_table(path: Path, required: Collection[str], optional: Collection[str] = ()) -> list[Row]:
    """Returns the lines of a table below the first, which names its columns.

    Args:
        path: The file.
        required: Columns that it must have.
        optional: Columns that it may have.

    Raises:
        TraceError: If the file can't be read, has other columns, or has no line below them.
    """
    rows = []
    header = read_header(path)
    if missing := [column for column in required if column not in header]:
        raise TraceError(f"{path}, line 1: column {missing[0]} is missing; the columns are {', '.join(required)}")
    if unknown := [column for column in header if column not in (*required, *optional)]:
        known = ", ".join([*required, *(f"[{column}]" for column in optional)])
        raise TraceError(f'{path}, line 1: column "{unknown[0]}" is unknown or there twice; the columns are {known}')
    for line, values in _lines(path)[1:]:
        if len(values) != len(header):
            raise TraceError(f"{path}, line {line}: {len(values)} values; there must be {len(header)}, one a column")
        rows.append(Row(path, line, dict(zip(header, values, strict=True))))
    if not rows:
        raise TraceError(f"{path}: nothing below the line of columns; there must be one line or more")
    return rows


def read_header(path: Path) -> list[str]:
    """Returns the columns of a table; one that is there twice has a mark the second time.

    Raises:
        TraceError: If the file can't be read or is empty.
    """
    lines = _lines(path)
    if not lines:
        raise TraceError(f"{path}: the file is empty; its first line must name the columns")
    columns = lines[0][1]
    return [f"{column} (again)" if column in columns[:place] else column for place, column in enumerate(columns)]


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """Returns the lines that are not blank, with their numbers."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            return [(reader.line_num, [value.strip() for value in values]) for values in reader if any(values)]
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8 at byte {error.start}; save the file as CSV in UTF-8") from error
    except csv.Error as error:
        raise TraceError(f"{path}, line {reader.line_num}: not CSV: {error}") from error
