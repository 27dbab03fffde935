"""Lanes over Parquet files."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet as written

from elastic_launcher.integrations.streams import parquet


def write(path: Path, numbers: range, rows_of_a_group: int) -> str:
    table = pyarrow.table({"number": list(numbers), "text": [f"text {n}" for n in numbers], "left out": list(numbers)})
    written.write_table(table, path, row_group_size=rows_of_a_group)
    return str(path)


@pytest.mark.parametrize("rows_of_a_group", [3, 5000])
def test_rows_are_read_from_any_one_on(tmp_path: Path, rows_of_a_group: int) -> None:
    counts = [3000, 7, 12]
    files = [write(tmp_path / f"{n}.parquet", range(count), rows_of_a_group) for n, count in enumerate(counts)]
    found = parquet.lanes([*files[:2], f"file://{files[2]}"], lanes=2, columns=["number", "text"])
    assert sorted(found.lengths) == [19, 3000]
    long = found.lengths.index(3000)
    for start in (0, 1, 2, 3, 1023, 1024, 1025, 2999):
        rows = list(found.open(long, 0, start))
        assert rows == [{"number": n, "text": f"text {n}"} for n in range(start, 3000)]
    assert [row["number"] for row in found.open(1 - long, 0, 0)] == [*range(7), *range(12)]
    assert [row["number"] for row in found.open(1 - long, 0, 6)] == [6, *range(12)]


def test_files_that_are_one_string_are_refused() -> None:
    with pytest.raises(TypeError, match=r"files is 'a.parquet'; give a list of files"):
        parquet.lanes("a.parquet", lanes=1)


def test_columns_are_those_of_the_files(tmp_path: Path) -> None:
    table = pyarrow.table({"list": [[1, 2], None], "inner.dot": [{"x": 1, "y": 2}] * 2})
    written.write_table(table, tmp_path / "a.parquet")
    found = parquet.lanes([tmp_path / "a.parquet"], lanes=1, columns=["list", "inner.dot.y"])
    assert list(found.open(0, 0, 0)) == [{"list": [1, 2], "inner.dot": {"y": 2}}, {"list": None, "inner.dot": {"y": 2}}]


@pytest.mark.parametrize("column", ["lists", "lis", "list.x"])
def test_a_column_that_a_file_does_not_have_is_refused(tmp_path: Path, column: str) -> None:
    written.write_table(pyarrow.table({"list": [[1, 2], None]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=rf"a.parquet has no column '{column}'; it has \['list'\]"):
        parquet.lanes([str(tmp_path / "a.parquet")], lanes=1, columns=[column])


def test_columns_that_are_one_string_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="columns is 'number'; give a list of columns"):
        parquet.lanes([write(tmp_path / "a.parquet", range(3), 3)], lanes=1, columns="number")


def test_a_column_that_a_file_has_twice_is_refused_if_it_is_read(tmp_path: Path) -> None:
    """A row as a dict holds the last one."""
    table = pyarrow.Table.from_arrays(
        [pyarrow.array([1]), pyarrow.array([2]), pyarrow.array([3])], names=["a", "b", "a"]
    )
    written.write_table(table, tmp_path / "a.parquet")
    for columns in (None, ["b", "a"]):
        with pytest.raises(ValueError, match=r"a.parquet has 2 columns 'a'.*write it with other names"):
            parquet.lanes([tmp_path / "a.parquet"], lanes=1, columns=columns)
    assert list(parquet.lanes([tmp_path / "a.parquet"], lanes=1, columns=["b"]).open(0, 0, 0)) == [{"b": 2}]
