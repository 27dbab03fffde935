"""Lanes over Parquet files, whose footers say how many rows they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from elastic_launcher.integrations.streams.shards import File, check_files, lanes_of_files, open_file, shown
from elastic_launcher.torch.data.lanes import Decode, Lanes

ROWS = 1024  # that are decoded at once


def lanes(
    files: Sequence[File],
    *,
    lanes: int,
    columns: Sequence[str] | None = None,
    decode: Decode | None = None,
    seed: int | None = None,
    shuffle_block: int = 1024,
) -> Lanes:
    """Describes Parquet files for `Job.dataloader`; a sample is a row, as a dict of Python values by column.

    Args:
        files: Paths or URLs, the same on all ranks. Each process reads the footer of each.
        lanes: How many lanes read them, at most as many as there are files.
        columns: Which are read; all by default.
        decode: Makes a sample of a row; as of `elastic_launcher.torch.lanes`.
        seed: Has each lane read its files in another order in each epoch.
        shuffle_block: As of `elastic_launcher.torch.lanes`.

    Raises:
        ImportError: If pyarrow is missing.
        TypeError: If files are no list, or columns one string.
        ValueError: If there are fewer files than lanes, or a file does not have one of the columns, or has one twice.
    """
    check_files(files)
    if isinstance(columns, str):
        raise TypeError(f"columns is {columns!r}; give a list of columns")
    wanted = None if columns is None else list(columns)
    counts = [_count(file, wanted) for file in files]
    read = partial(_read, columns=wanted)
    return lanes_of_files(read, files, counts, lanes=lanes, decode=decode, seed=seed, shuffle_block=shuffle_block)


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow: pip install 'elastic-launcher[streams]'") from error
    return pyarrow.parquet


def _count(file: File, columns: Sequence[str] | None) -> int:
    """Returns the number of rows of a file, which must have these columns: pyarrow leaves out what is not there."""
    parquet = _parquet()
    with open_file(file) as content:
        footer = parquet.read_metadata(content)
    paths = [footer.schema.column(number).path + "." for number in range(footer.num_columns)]
    names = footer.schema.to_arrow_schema().names
    for column in columns or ():
        if not any(path.startswith(column + ".") for path in paths):
            raise ValueError(f"{shown(file)} has no column {column!r}; it has {names}")
    for name in {name for name in names if names.count(name) > 1}:
        if columns is None or any(f"{column}.".startswith(f"{name}.") for column in columns):
            raise ValueError(
                f"{shown(file)} has {names.count(name)} columns {name!r}, and a row, as a dict, holds one: write it "
                "with other names, or leave them out of columns="
            )
    return int(footer.num_rows)


def _read(file: File, start: int, columns: list[str] | None) -> Iterator[dict[str, Any]]:
    """Reads rows; row groups before the first one that is wanted are skipped."""
    with open_file(file) as content:
        table = _parquet().ParquetFile(content)
        for group in range(table.num_row_groups):
            rows = table.metadata.row_group(group).num_rows
            if start < rows:
                for batch in table.iter_batches(ROWS, row_groups=[group], columns=columns):
                    yield from batch.slice(min(start, batch.num_rows)).to_pylist()
                    start = max(0, start - batch.num_rows)
            else:
                start -= rows
