"""What is exported is what was saved, in a file or folder that torch alone reads, running nothing of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from elastic_launcher.checkpoint import check, find_newest
from elastic_launcher.checkpoint.remote import RemoteStore
from elastic_launcher.checkpoint.shards import read_shards
from elastic_launcher.cli.main import app
from elastic_launcher.torch.state.export import gather
from tests.support.checkpoints import publish_on
from tests.support.training_states import Outcome, flat, training


def command(*words: str | Path, most: int | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the command; no file takes more than ``most`` bytes."""
    limit = [] if most is None else ["prlimit", f"--fsize={most}"]
    arguments = [*limit, sys.executable, "-m", "elastic_launcher", "checkpoint", *map(str, words)]
    return subprocess.run(arguments, capture_output=True, text=True)


def test_an_export_holds_what_was_saved(tmp_path: Path) -> None:
    state = training(3)
    (tmp_path / "events.jsonl").touch()
    Outcome(tmp_path / "checkpoints").save(state)
    done = command("export", tmp_path, "--to", tmp_path / "model.pt")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"step 21, saved in {tmp_path}/checkpoints/step-00000021, is in {tmp_path}/model.pt\n"
    found = torch.load(tmp_path / "model.pt", weights_only=True)
    assert flat(found["model"]) == flat(state.models[0].state_dict())
    assert (found["step"], found["epoch"], found["samples"], found["state"]) == (21, 2, 640, {"best": 3.5})
    optimizer = found["optimizers"][0]
    assert optimizer["param_groups"][0]["lr"] == state.optimizers[0].param_groups[0]["lr"]
    theirs = state.optimizers[0].state[state.models[0].embedding.weight]
    assert flat(optimizer["state"]["embedding.weight"]) == flat(theirs)
    other = training()
    other.models[0].load_state_dict(found["model"])


def test_what_an_optimizer_keeps_of_no_parameter_is_exported_too(tmp_path: Path) -> None:
    """As the optimizer's own `state_dict` has it."""
    state = training(3)
    state.optimizers[0].state["steps"] = {"done": 3}  # type: ignore[index]
    Outcome(tmp_path).save(state)
    found = find_newest(tmp_path)
    assert found.folder is not None and found.manifest is not None
    exported = gather(found.folder, found.manifest)["optimizers"][0]["state"]
    assert exported["steps"] == {"done": 3} and "embedding.weight" in exported


@pytest.mark.parametrize("form", ["torch", pytest.param("dcp", marks=pytest.mark.thorough)])
def test_a_disk_that_takes_no_more_is_said(tmp_path: Path, form: str) -> None:
    (tmp_path / "events.jsonl").touch()
    Outcome(tmp_path / "checkpoints").save(training(3))
    done = command("export", tmp_path, "--to", tmp_path / "model", "--format", form, most=700)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert f"{tmp_path}/model can't be written: " in done.stderr and "File too large" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "events.jsonl"]


@pytest.mark.parametrize("form", ["torch", "dcp"])
def test_what_a_job_saves_and_removes_meanwhile_costs_no_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    (tmp_path / "events.jsonl").touch()
    outcome, state = Outcome(tmp_path / "checkpoints"), training(3)
    outcome.save(state)
    steps = iter((22, 23))

    def read_late(*arguments: Any) -> Any:
        for step in steps:
            outcome.save(state, step)
        return read_shards(*arguments)

    monkeypatch.setattr("elastic_launcher.torch.state.export.read_shards", read_late)
    words = ["checkpoint", "export", str(tmp_path), "--to", str(tmp_path / "m"), "--format", form]
    done = CliRunner().invoke(app, words)
    told = f"step 23, saved in {outcome.folder}/step-00000023, is in {tmp_path}/m\n"
    assert (done.exit_code, done.output) == (0, told)


def test_an_export_from_a_url_leaves_the_copy_alone_that_the_job_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "events.jsonl").touch()
    url, cache = (tmp_path / "store").as_uri(), tmp_path / "checkpoints"
    publish_on(RemoteStore(url, cache), 10)
    read = RemoteStore(url, cache).find_newest().folder
    publish_on(RemoteStore(url, cache), 20)
    monkeypatch.setattr("elastic_launcher.cli.checkpoint._place", lambda layout: url)
    monkeypatch.setattr("elastic_launcher.torch.state.export.export", lambda folder, manifest, to: check(folder))
    done = CliRunner().invoke(app, ["checkpoint", "export", str(tmp_path), "--to", str(tmp_path / "m")])
    assert (done.exit_code, "step 20, saved in" in done.output) == (0, True), done.output
    assert read is not None and list(cache.iterdir()) == [read] and check(read).step == 10


@pytest.mark.parametrize("form", ["torch", "dcp"])
def test_a_disk_that_does_not_give_the_checkpoint_is_not_said_of_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    (tmp_path / "events.jsonl").touch()
    outcome = Outcome(tmp_path / "checkpoints")
    outcome.save(training(3))

    def refused(*arguments: Any) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("elastic_launcher.torch.state.export.read_shards", refused)
    done = CliRunner().invoke(app, ["checkpoint", "export", str(tmp_path), "--to", "m", "--format", form])
    assert done.exit_code == 2
    assert "step-00000021 can't be read: [Errno 5] Input/output error" in done.output


@pytest.mark.parametrize("form", ["torch", "dcp"])
@pytest.mark.parametrize("to", [".", "/"])
def test_a_place_that_is_a_folder_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, form: str) -> None:
    (tmp_path / "events.jsonl").touch()
    Outcome(tmp_path / "checkpoints").save(training(3))
    before = sorted(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["checkpoint", "export", str(tmp_path), "--to", to, "--format", form])
    assert done.exit_code == 2 and f"{to} can't be written: " in done.output, done.exception
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.thorough
def test_the_distributed_form_is_read_by_a_plain_process(tmp_path: Path) -> None:
    state = training(3)
    (tmp_path / "events.jsonl").touch()
    Outcome(tmp_path / "checkpoints").save(state)
    folder = tmp_path / "dcp"
    done = command("export", tmp_path, "--to", folder, "--format", "dcp")
    assert (done.returncode, done.stderr) == (0, "")
    model = state.models[0]
    reader = (
        "import sys, torch, torch.distributed.checkpoint as dcp; found = torch.load(sys.argv[2], weights_only=True);"
        "wanted = {'model': found, 'step': 0, 'state': {'best': 0.0}}; dcp.load(wanted, checkpoint_id=sys.argv[1]);"
        "torch.save(wanted, sys.argv[2])"
    )
    torch.save({name: torch.zeros_like(value) for name, value in model.state_dict().items()}, tmp_path / "read.pt")
    subprocess.run([sys.executable, "-W", "ignore", "-c", reader, folder, tmp_path / "read.pt"], check=True)
    found = torch.load(tmp_path / "read.pt", weights_only=True)
    assert flat(found["model"]) == flat(model.state_dict())
    assert (found["step"], found["state"]) == (21, {"best": 3.5})
    again = command("export", tmp_path, "--to", folder, "--format", "dcp")
    assert again.returncode == 2
    assert f"{folder} can't be written: Directory not empty" in again.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".dcp")] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("job",), "the job in job is not running"),
        (("export", "job"), "--to PATH says where an export goes"),
        (("job", "--to", "x"), "--to PATH says where an export goes"),
        (("export", "job", "--to", "x"), "job has no checkpoint that can be used"),
        (("export", "job", "--to", "x", "--format", "onnx"), "--format is 'onnx': it must be torch or dcp"),
        (("import", "job"), "give [export] WORK_DIR, not import job"),
        (("nowhere",), "nowhere is not there"),
    ],
)
def test_what_cannot_be_done_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "events.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    refused = command(*words)
    assert refused.returncode == 2
    assert said in refused.stderr and "Traceback" not in refused.stderr
