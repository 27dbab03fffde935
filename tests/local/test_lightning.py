"""A Lightning module under the launcher equals Lightning's own fit in one process, logs included."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from tests.support.launches import launched
from tests.support.lightning_modules import MODULES, deciding, train, train_with_fabric
from tests.support.places import SCRIPTS
from tests.support.plays import launch_training, notify_rank_0, resize, stop_and_resume, train_twice
from tests.support.resizes import LONG, allow, formed

SCRIPT = SCRIPTS / "lightning_train.py"
EPOCHS = 3


class StopsAt(Callback):
    """Decides after a step that the training ends."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        trainer.should_stop |= trainer.global_step == self._step


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def assert_as_plain(folder: Path, kind: str, **options: Any) -> int:
    """Fails unless the weights, the history and the log are those of Lightning alone; returns the number of epochs."""
    history = json.loads((folder / "history.json").read_text())
    epochs = int(max(row[0] for row in history)) + 1 - options.get("again", 0)
    plain, expected = train(kind, folder / "plain", epochs, **options)
    assert len(history) == len(expected)
    for ours, theirs in zip(history, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)
    for (name, theirs), ours in zip(
        plain.state_dict().items(), torch.load(folder / "weights.pt", map_location="cpu").values(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9, msg=name)
    log, other = (max((one / "log").glob("*/metrics.csv")).read_text() for one in (folder, folder / "plain"))
    assert len(log.splitlines()) == len(other.splitlines())
    return epochs


def trained(folder: Path, kind: str, nodes: str, environment: dict[str, str] | None = None) -> list[Any]:
    """Trains under the launcher; returns the sizes of the generations."""
    options = json.dumps({"folder": str(folder), "kind": kind, "epochs": EPOCHS})
    return launch_training(SCRIPT, options, folder, nodes, environment)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", MODULES)
def test_two_ranks_train_what_lightning_alone_does(kind: str, tmp_path: Path) -> None:
    trained(tmp_path, kind, "2:2")
    assert assert_as_plain(tmp_path, kind) == EPOCHS


@pytest.mark.thorough
@pytest.mark.parametrize("micro", [24, 2])
def test_three_ranks_train_what_lightning_alone_does(micro: int, tmp_path: Path) -> None:
    options = json.dumps({"folder": str(tmp_path), "kind": "measured", "epochs": EPOCHS, "micro": micro})
    launch_training(SCRIPT, options, tmp_path, "3:3")
    assert assert_as_plain(tmp_path, "measured") == EPOCHS


@pytest.mark.thorough
def test_epochs_that_end_early(tmp_path: Path) -> None:
    options = {"folder": str(tmp_path), "kind": "adam", "epochs": EPOCHS, "trainer": {"limit_train_batches": 4}}
    launch_training(SCRIPT, json.dumps(options), tmp_path, "2:2")
    assert assert_as_plain(tmp_path, "adam", limit_train_batches=4) == EPOCHS


@pytest.mark.thorough
def test_a_second_fit_on_two_ranks(tmp_path: Path) -> None:
    options = {"folder": str(tmp_path), "kind": "measured", "epochs": 2, "trainer": {"again": 2}}
    launch_training(SCRIPT, json.dumps(options), tmp_path, "2:2")
    assert assert_as_plain(tmp_path, "measured", again=2) == 2


@pytest.mark.thorough
def test_two_ranks_continue_from_a_checkpoint_of_lightning(tmp_path: Path) -> None:
    train("adam", tmp_path / "first", 2, *deciding(tmp_path / "saved"))
    options = {"folder": str(tmp_path), "kind": "adam", "epochs": EPOCHS}
    options["trainer"] = {"ckpt_path": str(tmp_path / "saved" / "mid-step=10.ckpt")}
    launch_training(SCRIPT, json.dumps(options), tmp_path, "2:2")
    plain, expected = train("adam", tmp_path / "plain", EPOCHS)
    history = json.loads((tmp_path / "history.json").read_text())
    assert history[0][:3] == [1, 1, 11] and history[-1] == pytest.approx(expected[-1], rel=1e-9)
    for name, ours in torch.load(tmp_path / "weights.pt", map_location="cpu").items():
        torch.testing.assert_close(ours, plain.state_dict()[name], rtol=0, atol=1e-9)


@pytest.mark.thorough
def test_callbacks_save_and_stop_on_all_ranks_alike_through_the_loss_of_rank_0(tmp_path: Path) -> None:
    options = json.dumps({"folder": str(tmp_path), "kind": "adam", "epochs": 9, "decides": True})
    fault = {"ELASTIC_FAULT": "reduction@12:1"}
    launch_training(SCRIPT, options, tmp_path, "2:2", fault)
    plain, expected = train("adam", tmp_path / "plain", 9, *deciding(tmp_path / "plain_saved"))
    history = json.loads((tmp_path / "history.json").read_text())
    assert len(history) == len(expected) < 80
    assert history[-1] == pytest.approx(expected[-1], rel=1e-9)
    names = [sorted(path.name for path in (tmp_path / folder).iterdir()) for folder in ("saved", "plain_saved")]
    assert names[0] == names[1]
    for name in names[0]:
        ours, theirs = (torch.load(tmp_path / folder / name, weights_only=False) for folder in ("saved", "plain_saved"))
        assert ours["global_step"] == theirs["global_step"]
        for key, value in theirs["state_dict"].items():
            torch.testing.assert_close(ours["state_dict"][key], value, rtol=0, atol=1e-9)


def test_resizes_in_the_middle_of_epochs(tmp_path: Path) -> None:
    options = json.dumps({"folder": str(tmp_path), "kind": "measured", "epochs": 10_000, "pace": 0.2})
    resize(SCRIPT, options, tmp_path)
    assert assert_as_plain(tmp_path, "measured") > 1


@pytest.mark.thorough
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_is_killed_in_a_validation(rank: int, tmp_path: Path) -> None:
    options = json.dumps({"folder": str(tmp_path), "kind": "measured", "epochs": EPOCHS, "dies": [rank, 9]})
    launch_training(SCRIPT, options, tmp_path, "3:3")
    assert (tmp_path / "died").exists()
    assert assert_as_plain(tmp_path, "measured") == EPOCHS


@pytest.mark.thorough
def test_a_loop_over_fabric_trains_what_fabric_alone_does(tmp_path: Path) -> None:
    options = json.dumps({"folder": str(tmp_path), "epochs": EPOCHS, "fabric": True})
    launch_training(SCRIPT, options, tmp_path, "2:2")
    plain = train_with_fabric("auto", range(EPOCHS)).state_dict()
    for name, ours in torch.load(tmp_path / "weights.pt", map_location="cpu").items():
        torch.testing.assert_close(ours, plain[name], rtol=0, atol=1e-9)


@pytest.mark.thorough
def test_a_process_that_joins_a_second_loop_finds_what_fabric_reduced_after_the_first(tmp_path: Path) -> None:
    hints = tmp_path / "hints.json"
    allow(hints, 1)
    options = json.dumps({"folder": str(tmp_path), "fabric_twice": True})
    with launched("--nodes", "1:2", "--hints", hints, "--", SCRIPT, options, cwd=tmp_path) as job:
        first = formed(job, 1, 0)
        job.events.wait("progress", lambda event: event["step"] > 18, LONG)  # in the second loop
        allow(hints, 2)
        formed(job, 2, first["generation"])
        (tmp_path / "stop").touch()
        assert job.wait(LONG) == 0, job.stderr
    steps = [json.loads((tmp_path / f"steps-{rank}.json").read_text()) for rank in range(2)]
    assert steps[0] == steps[1] and steps[0][0] == 18


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["reduction@7:1", "reduced@8:1", "step@17:2"])
def test_a_rank_is_killed(fault: str, tmp_path: Path) -> None:
    sizes = trained(tmp_path, "measured", "2:2", {"ELASTIC_FAULT": fault})
    assert len(sizes) > 1
    assert assert_as_plain(tmp_path, "measured") == EPOCHS


@pytest.mark.thorough
def test_the_node_of_rank_0_gets_notice(tmp_path: Path) -> None:
    options = json.dumps({"folder": str(tmp_path), "kind": "measured", "epochs": 10_000, "pace": 0.2})
    notify_rank_0(SCRIPT, options, tmp_path)
    assert_as_plain(tmp_path, "measured")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["measured", "manual"])
def test_a_stopped_job_resumes_at_another_size(kind: str, tmp_path: Path) -> None:
    options = json.dumps({"folder": str(tmp_path), "kind": kind, "epochs": 10_000, "pace": 0.2})
    stop_and_resume(SCRIPT, options, tmp_path)
    assert_as_plain(tmp_path, kind)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("ends", "plain"),
    [
        pytest.param({"trainer": {"max_steps": 12}}, {"options": {"max_steps": 12}}, id="max_steps"),
        pytest.param({"stops": 12}, {"callbacks": [StopsAt(12)]}, id="a callback"),
    ],
)
def test_a_training_that_has_done_its_steps_ends_at_once_where_it_resumes(
    ends: dict[str, Any], plain: dict[str, Any], tmp_path: Path
) -> None:
    options = json.dumps({"folder": str(tmp_path), "kind": "adam", "epochs": EPOCHS, **ends})
    train_twice(SCRIPT, options, tmp_path, "ended by Lightning's Trainer): 12 steps", every=12)
    _, expected = train("adam", tmp_path / "plain", EPOCHS, *plain.get("callbacks", ()), **plain.get("options", {}))
    history = json.loads((tmp_path / "history.json").read_text())
    assert len(history) == len(expected)  # nothing is done again but the validation after fit
    assert history[-2] == pytest.approx(expected[-2], rel=1e-9)


@pytest.mark.thorough
def test_early_stopping_counts_on_where_a_job_resumes(tmp_path: Path) -> None:
    options = json.dumps({"folder": str(tmp_path), "kind": "adam", "epochs": 9, "decides": True})
    train_twice(SCRIPT, options, tmp_path, "ended by Lightning's Trainer): ", every=10)
    plain, expected = train("adam", tmp_path / "plain", 9, *deciding(tmp_path / "plain_saved"))
    history = json.loads((tmp_path / "history.json").read_text())
    assert len(expected) < 80
    assert history[-1] == pytest.approx(expected[-1], rel=1e-9)
    for name, ours in torch.load(tmp_path / "weights.pt", map_location="cpu").items():
        torch.testing.assert_close(ours, plain.state_dict()[name], rtol=0, atol=1e-9, msg=name)
