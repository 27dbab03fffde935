"""Traces are read in both forms, and what is wrong is said with file, line, column and fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_launcher.quota.simulation.adaptive_batch import AdaptiveBatch
from elastic_launcher.quota.simulation.courses import Amdahl, FixedBatch
from elastic_launcher.quota.simulation.table import TraceError
from elastic_launcher.quota.simulation.trace import read_trace
from tests.support.profiles import write_profile

PLAIN = "name,submitted,gpus,min,max,seconds\n"
PROFILED = "name,time,application,num_replicas,batch_size\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "workloads" / "jobs.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    """Returns a folder with the profile of one application, ``toy``."""
    write_profile(tmp_path / "traces" / "toy")
    return tmp_path / "traces"


def test_a_plain_trace(tmp_path: Path) -> None:
    path = written(tmp_path, "\ufeff" + PLAIN + "one, 5 ,2,1,8,600\n\ntwo,0.5,4,4,4,60.5\n")
    one, two = read_trace(path)
    assert (one.name, one.submitted, one.request, one.minimum, one.limit) == ("one", 5.0, 2, 1, 8)
    assert one.course == Amdahl(600.0, 0.0)
    assert (two.submitted, two.minimum, two.course.steps) == (0.5, 4, 60.5)
    assert (two.delay, two.project, two.priority) == (30.0, "default", 0)


def test_a_plain_trace_with_all_columns(tmp_path: Path) -> None:
    header = PLAIN.strip() + ",serial,delay,project,priority\n"
    one, two = read_trace(written(tmp_path, header + "one,5,2,1,8,600,0.25,10,nlp,3\ntwo,5,2,1,8,600,,,,\n"))
    assert (one.course, one.delay, one.project, one.priority) == (Amdahl(600.0, 0.25), 10.0, "nlp", 3)
    assert (two.course, two.delay, two.project, two.priority) == (Amdahl(600.0, 0.0), 30.0, "default", 0)


def test_a_profiled_trace_finds_the_profiles_beside_its_folder(tmp_path: Path, profiles: Path) -> None:
    (one,) = read_trace(written(tmp_path, PROFILED + "toy-1,60,toy,2,8\n"))
    assert (one.name, one.submitted, one.request, one.limit) == ("toy-1", 60.0, 2, 4)
    assert isinstance(one.course, FixedBatch)
    assert one.course.rate((1, 2)) == 1 / 2.0  # the mean of 12 and 21
    assert read_trace(written(tmp_path / "traces", PROFILED + "toy-1,60,toy,2,8\n"), profiles)[0].limit == 4


def test_jobs_of_a_profiled_trace_may_choose_their_batch(tmp_path: Path, profiles: Path) -> None:
    path = written(tmp_path, PROFILED + "toy-1,60,toy,2,8\ntoy-2,61,toy,1,4\n")
    one, other = read_trace(path, adaptive=True)
    assert (one.name, one.submitted, one.request, one.limit) == ("toy-1", 60.0, 4, 8)
    assert isinstance(one.course, AdaptiveBatch) and one.course is other.course


def test_a_plain_trace_has_no_batch_that_could_adapt(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no batch that could adapt; that needs the columns name, time, application"):
        read_trace(written(tmp_path, PLAIN + "one,5,2,1,8,600\n"), adaptive=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "jobs.csv: the file is empty; its first line must name the columns"),
        (PLAIN, "jobs.csv: nothing below the line of columns; there must be one line or more"),
        ("name,gpus\n", "jobs.csv, line 1: column submitted is missing; the columns are name, submitted, gpus"),
        (
            PLAIN.strip() + ",color\n",
            'jobs.csv, line 1: column "color" is unknown or there twice; the columns are name',
        ),
        (PLAIN.strip() + ",gpus\n", 'jobs.csv, line 1: column "gpus (again)" is unknown or there twice'),
        (PLAIN + "\none,5,2,1,8\n", "jobs.csv, line 3: 5 values; there must be 6, one a column"),
        (PLAIN + ",5,2,1,8,600\n", 'jobs.csv, line 2, column name: "" must be a text that is not empty'),
        (PLAIN + "one,-5,2,1,8,600\n", 'jobs.csv, line 2, column submitted: "-5" must be a number, 0 or more'),
        (PLAIN + "one,nan,2,1,8,600\n", 'line 2, column submitted: "nan" must be a number, 0 or more'),
        (PLAIN + "one,5,2.5,1,8,600\n", 'line 2, column gpus: "2.5" must be a whole number, 1 or more'),
        (PLAIN + "one,5,2,0,8,600\n", 'line 2, column min: "0" must be a whole number, 1 or more'),
        (PLAIN + "one,5,2,3,2,600\n", 'line 2, column max: "2" must be a whole number, 3 or more'),
        (PLAIN + "one,5,9,1,8,600\n", 'line 2, column gpus: "9" must be 1 to 8, as min and max say'),
        (PLAIN + "one,5,2,1,8,0\n", 'line 2, column seconds: "0" must be a number above 0'),
        (PLAIN + "one,5,2,1,8,6\none,5,2,1,8,6\n", 'jobs.csv: two jobs are named "one"; each name must be there once'),
        (
            PLAIN.strip() + ",serial\none,5,2,1,8,6,2\n",
            'line 2, column serial: "2" must be a number, 0 to 1',
        ),
        (PROFILED + "one,5,toi,2,8\n", 'line 2, column application: "toi" must be the name of a folder in '),
        (PROFILED + "one,5,toy,2,32\n", 'line 2, column batch_size: "32" must be 4 to 16, as '),
        (PROFILED + "one,5,toy,5,8\n", 'line 2, column num_replicas: "5" must be 4 at most: a GPU has 2 samples'),
    ],
)
def test_what_is_wrong_is_said_with_line_column_and_fix(
    tmp_path: Path, profiles: Path, text: str, message: str
) -> None:
    with pytest.raises(TraceError) as refusal:
        read_trace(written(tmp_path, text))
    assert message in str(refusal.value)


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="none.csv: No such file"):
        read_trace(tmp_path / "none.csv")
    (tmp_path / "odd.csv").write_bytes(b"name,\xff")
    with pytest.raises(TraceError, match="odd.csv: not UTF-8 at byte 5; save the file as CSV in UTF-8"):
        read_trace(tmp_path / "odd.csv")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("placements.csv", "placement,local_bsz,step_time,sync_time\n1x,2,1,0\n", 'column placement: "1x" must be'),
        ("placements.csv", None, "placements.csv: No such file"),
        ("validation-4.csv", "progress,grad_sqr,grad_var\n10,1,1\n", "have different numbers of epochs"),
        ("validation-x.csv", "progress,grad_sqr,grad_var\n10,1,1\n", "must be validation-BATCH.csv"),
    ],
)
def test_a_profile_that_is_wrong_is_refused(
    tmp_path: Path, profiles: Path, name: str, text: str | None, message: str
) -> None:
    path = profiles / "toy" / name
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    with pytest.raises(TraceError) as refusal:
        read_trace(written(tmp_path, PROFILED + "one,5,toy,2,8\n"))
    assert message in str(refusal.value)
