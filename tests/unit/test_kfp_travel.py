"""Data and model get to the nodes and back by the first way that there is; where there is none, that is said."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_launcher.kfp_steps.travel import Meeting, fetch, model_place, read_beside, send
from elastic_launcher.options import ConfigError
from tests.object_store import object_store


def artifact(path: Path | str, uri: str = "minio://mlpipeline/x") -> Any:
    return SimpleNamespace(path=str(path), uri=uri)


def test_what_lies_in_a_volume_stays_there(tmp_path: Path) -> None:
    inside = artifact(tmp_path / "digits")
    meeting = Meeting([str(tmp_path)], "")
    assert send(inside, meeting) == inside.path
    assert model_place(inside, meeting) == inside.path


@pytest.mark.parametrize("path", ["/data", "/data/x", "/data/../data/x"])
def test_a_volume_holds_what_is_below_it(path: str) -> None:
    assert Meeting(["/data/"], "").holds(path)
    assert Meeting(["/"], "").holds(path)


@pytest.mark.parametrize("path", ["/database", "/data/../etc", "data/x", "s3://data/x"])
def test_a_volume_holds_nothing_else(path: str) -> None:
    assert not Meeting(["/data"], "").holds(path)


@pytest.mark.parametrize("as_folder", [True, False])
def test_a_copy_goes_to_the_folder_and_back(tmp_path: Path, as_folder: bool) -> None:
    made = tmp_path / "step" / "x"
    (made if as_folder else made.parent).mkdir(parents=True)
    file = made / "part" if as_folder else made
    file.write_text("pixels")
    meeting = Meeting([str(tmp_path / "work")], str(tmp_path / "work" / "job"))
    for _ in range(2):  # an attempt that is a retry finds the first one's copy
        place = Path(send(artifact(made), meeting))
        assert (place / "part" if as_folder else place).read_text() == "pixels"
    model = artifact(tmp_path / "step" / "model")
    fetch(str(place), model)
    assert (Path(model.path) / "part" if as_folder else Path(model.path)).read_text() == "pixels"


@pytest.mark.parametrize("as_folder", [True, False])
def test_a_copy_goes_under_a_url_and_back(tmp_path: Path, as_folder: bool) -> None:
    made = tmp_path / "step" / "x"
    (made if as_folder else made.parent).mkdir(parents=True)
    file = made / "part" if as_folder else made
    file.write_text("pixels")
    place = send(artifact(made), Meeting([], f"file://{tmp_path}/bucket/job"))
    assert place == f"file://{tmp_path}/bucket/job/data"
    (tmp_path / "bucket" / "job" / "database").write_text("another")
    model = artifact(tmp_path / "back")
    fetch(place, model)
    assert (Path(model.path) / "part" if as_folder else Path(model.path)).read_text() == "pixels"


@pytest.mark.parametrize("as_folder", [True, False])
def test_a_copy_goes_to_an_object_store_and_back(tmp_path: Path, as_folder: bool) -> None:
    made = tmp_path / "step" / "x"
    (made if as_folder else made.parent).mkdir(parents=True)
    (made / "part" if as_folder else made).write_text("pixels")
    with object_store(tmp_path / "buckets") as store:
        meeting = Meeting([], store.url)
        place = send(artifact(made), meeting)
        assert place == f"{store.url}/data"
        back, none = artifact(tmp_path / "back"), artifact(tmp_path / "none")
        fetch(place, back)
        fetch(model_place(none, meeting), none)
        assert read_beside(place, ".classes.json") == ""
        (store.bucket / "jobs" / "digits" / "data.classes.json").write_text("{}")
        assert read_beside(place, ".classes.json") == "{}"
    assert (Path(back.path) / "part" if as_folder else Path(back.path)).read_text() == "pixels"
    assert not Path(none.path).exists(), "the script left no model"


def test_nodes_take_a_uri_that_can_be_opened() -> None:
    there = artifact("/s3/digits", uri="file:///bucket/digits")
    assert send(there, Meeting([], "")) == there.uri
    assert model_place(there, Meeting([], "/not/mounted")) == there.uri
    fetch(there.uri, there)


@pytest.mark.parametrize("folder", ["", "/not/mounted", "minio://mlpipeline/x"])
def test_without_a_way_it_is_said_what_to_do(folder: str) -> None:
    for go in (send, model_place):
        with pytest.raises(ConfigError, match="no way to minio://mlpipeline/x: mount a volume claim on the task"):
            go(artifact("/minio/x"), Meeting(["/data"], folder))


def test_a_script_that_leaves_no_model_is_none_of_its_business(tmp_path: Path) -> None:
    fetch(str(tmp_path / "nothing"), artifact(tmp_path / "model"))
    assert not (tmp_path / "model").exists()


def test_what_stands_beside_a_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "model.classes.json").write_text("{}")
    for place in (str(tmp_path / "model"), f"file://{tmp_path}/model"):
        assert read_beside(place, ".classes.json") == "{}"
        assert read_beside(place, ".other.json") == ""
