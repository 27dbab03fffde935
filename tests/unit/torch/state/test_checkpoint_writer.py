"""What is saved comes back bit by bit, each memory is stored once, and a save never costs the training."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elastic_launcher.checkpoint import CheckpointDamaged, Manifest, Mark, check, find_newest, raise_fence
from elastic_launcher.torch.gradients.noise_meter import NoiseMeter
from elastic_launcher.torch.state.checkpoint_writer import load
from elastic_launcher.torch.state.training_state import StateMismatch, TrainingState
from tests.support.checkpoints import JOB
from tests.support.training_states import POSITION, Outcome, flat, training


def all_of(state: TrainingState) -> Any:
    return flat(
        [
            state.models[0].state_dict(),
            state.optimizers[0].state_dict(),
            state.schedulers[0].state_dict(),
            state.registered["everything"].state,
            state.user,
        ]
    )


def newest(folder: Path) -> tuple[Path, Manifest]:
    found = find_newest(folder)
    assert found.folder is not None and found.manifest is not None
    return found.folder, found.manifest


def test_all_that_is_saved_comes_back_bit_by_bit(tmp_path: Path) -> None:
    state = training(4, filled=True)
    outcome = Outcome(tmp_path)
    outcome.save(state)
    other = training()
    assert all_of(other) != all_of(state)
    folder, manifest = newest(tmp_path)
    assert load(folder, manifest, other) == POSITION
    assert all_of(other) == all_of(state)
    assert other.models[0].head.weight is other.models[0].embedding.weight
    assert other.models[0].conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert [one.step for one in outcome.saved] == [21]
    assert outcome.saved[0].size == manifest.size == check(folder).size


def test_tied_weights_are_stored_once_and_named(tmp_path: Path) -> None:
    Outcome(tmp_path).save(training(1))
    _, manifest = newest(tmp_path)
    assert manifest.aliases == {"head.weight": "embedding.weight"}
    names = [entry.name for entry in manifest.tensors]
    assert len(set(names)) == len(names)
    assert [name for name in names if "embedding.weight" in name] == [
        "model.embedding.weight",
        "optimizers.0.state.embedding.weight.step",
        "optimizers.0.state.embedding.weight.exp_avg",
        "optimizers.0.state.embedding.weight.exp_avg_sq",
    ]
    assert not [name for name in names if "head" in name]


def test_values_whose_places_read_alike_are_not_mixed_up(tmp_path: Path) -> None:
    """The third one's place is the second one's, and with its number the first one's."""
    state, numbers = TrainingState(), map(torch.tensor, (1, 2, 3))
    state.user |= {"a.b.2": next(numbers), "a": {"b": next(numbers)}, "a.b": next(numbers)}
    Outcome(tmp_path).save(state)
    other = TrainingState()
    load(*newest(tmp_path), other)
    assert other.user == state.user


def test_two_objects_that_share_a_large_tensor_store_it_once(tmp_path: Path) -> None:
    state, other = training(1, filled=True), training()
    state.registered["everything"].state["again"] = state.registered["everything"].state["large"]
    Outcome(tmp_path).save(state)
    folder, manifest = newest(tmp_path)
    assert sum(entry.shape == (100_000,) for entry in manifest.tensors) == 1
    load(folder, manifest, other)
    assert all_of(other) == all_of(state)


def test_memory_is_used_again_and_what_changes_meanwhile_is_not_saved(tmp_path: Path) -> None:
    state, outcome = training(1), Outcome(tmp_path)
    before = all_of(state)
    outcome.saver.save(state, POSITION, JOB, Mark(1, 1, 21), 3)
    with torch.no_grad():
        for parameter in state.models[0].parameters():
            parameter.add_(1)
    outcome.saver.wait()
    copies = outcome.saver._memory._copies
    other = training()
    load(*newest(tmp_path), other)
    assert all_of(other) == before
    outcome.save(state, step=22)
    assert outcome.saver._memory._copies is copies
    load(*newest(tmp_path), other)
    assert all_of(other) == all_of(state)


def test_a_second_save_while_one_is_written_is_refused(tmp_path: Path) -> None:
    state, outcome = training(1), Outcome(tmp_path)
    written = threading.Event()
    outcome.saver._on_saved = lambda saved: written.wait() and None
    outcome.saver.save(state, POSITION, JOB, Mark(1, 1, 21), 3)
    assert outcome.saver.busy
    with pytest.raises(RuntimeError, match="still being written"):
        outcome.saver.save(state, POSITION, JOB, Mark(1, 1, 22), 3)
    written.set()
    outcome.saver.wait()
    assert not outcome.saver.busy


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def test_a_full_disk_is_told_and_the_last_one_stays(tmp_path: Path) -> None:
    state, outcome = training(1, filled=True), Outcome(tmp_path)
    outcome.save(state)
    path, _ = newest(tmp_path)
    with no_file_longer_than(4096):
        outcome.save(state, step=22)
    assert [step for step, _ in outcome.failed] == [22]
    assert str(tmp_path) in outcome.failed[0][1]  # where room is needed
    assert "tensors-00001.safetensors" in outcome.failed[0][1]
    assert newest(tmp_path)[0] == path
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".tmp")] == []
    outcome.save(state, step=23)
    assert [one.step for one in outcome.saved] == [21, 23]


def test_what_goes_wrong_in_any_other_way_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, outcome = training(1), Outcome(tmp_path)

    def write_shards(*arguments: object) -> None:
        raise TypeError("no storage to write")

    with monkeypatch.context() as patch:
        patch.setattr("elastic_launcher.torch.state.frozen_shards.write_shards", write_shards)
        outcome.save(state)
    assert outcome.failed == [(21, "TypeError: no storage to write")]
    assert list(tmp_path.glob(".tmp*")) == []
    outcome.save(state, step=22)
    assert [one.step for one in outcome.saved] == [22]


def test_what_no_thread_can_be_started_for_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.12 and later start none once the script has ended, where a break may leave a save that is due."""
    state, outcome = training(1), Outcome(tmp_path)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        outcome.save(state)
        assert [one.step for one in outcome.saved] == [21] and not outcome.saver.busy
    outcome.saver.wait()
    outcome.save(state, step=22)
    assert [one.step for one in outcome.saved] == [21, 22]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = Outcome(tmp_path / "file" / "checkpoints")
    outcome.save(training(1))
    assert [step for step, _ in outcome.failed] == [21]


def test_a_writer_that_was_overtaken_says_nothing(tmp_path: Path) -> None:
    state, outcome = training(1), Outcome(tmp_path)
    outcome.save(state, step=10, generation=4)
    outcome.save(state, step=11, generation=3)
    assert ([one.step for one in outcome.saved], outcome.failed) == ([10], [])


def test_a_training_that_another_one_goes_on_with_is_told_that_nothing_of_it_is_saved(tmp_path: Path) -> None:
    outcome = Outcome(tmp_path)
    outcome.save(training(1), step=10)
    raise_fence(tmp_path, term=2)
    outcome.save(training(1), step=11)
    assert [one.step for one in outcome.saved] == [10]
    assert [step for step, _ in outcome.failed] == [11]
    assert outcome.failed[0][1].startswith("another launcher of this job owns ")


def test_another_model_is_refused_and_named(tmp_path: Path) -> None:
    Outcome(tmp_path).save(training(1))
    other = training()
    other.models[0].head = nn.Linear(4, 5)
    with pytest.raises(StateMismatch, match="parameter head.weight is only on this rank"):
        load(*newest(tmp_path), other)


def test_a_shard_that_vanishes_between_check_and_load_is_named(tmp_path: Path) -> None:
    Outcome(tmp_path).save(training(1))
    folder, manifest = newest(tmp_path)
    (folder / "tensors-00001.safetensors").unlink()
    with pytest.raises(CheckpointDamaged, match="tensors-00001.safetensors can't be read"):
        load(folder, manifest, training())


def test_a_manifest_that_does_not_fit_its_state_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    Outcome(tmp_path).save(training(1))
    folder, manifest = newest(tmp_path)
    other = training()
    before = all_of(other)
    with pytest.raises(CheckpointDamaged, match=r"manifest.json places \d+ tensors, and .*state.json has \d+"):
        load(folder, replace(manifest, order=manifest.order[:-1]), other)
    assert all_of(other) == before


def test_no_file_of_a_checkpoint_is_a_pickle(tmp_path: Path) -> None:
    Outcome(tmp_path).save(training(2, filled=True))
    folder, _ = newest(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == [
        "manifest.json",
        "state.json",
        "tensors-00001.safetensors",
    ]


def test_shards_are_divided_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.checkpoint.shards.SHARD_BYTES", 100)
    state, other = training(2, filled=True), training()
    Outcome(tmp_path).save(state)
    folder, manifest = newest(tmp_path)
    assert len({entry.shard for entry in manifest.tensors}) > 3
    load(folder, manifest, other)
    assert all_of(other) == all_of(state)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("there", "here"), [("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")])
def test_a_checkpoint_moves_between_kinds_of_devices(tmp_path: Path, there: str, here: str) -> None:
    def on(device: str, steps: int) -> TrainingState:
        model = nn.Linear(4, 3).to(device)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(steps):
            model(torch.randn(2, 4, device=device)).sum().backward()
            optimizer.step()
        return TrainingState([model], [optimizer], [], [], {}, {})

    state, other = on(there, 2), on(here, 0)
    Outcome(tmp_path).save(state)
    load(*newest(tmp_path), other)
    expected = {name: value.cpu() for name, value in state.models[0].state_dict().items()}
    found = {name: value.cpu() for name, value in other.models[0].state_dict().items()}
    assert flat(found) == flat(expected)
    for values in other.optimizers[0].state.values():
        assert {name: value.device.type for name, value in values.items()} == {
            "step": "cpu",
            "exp_avg": here,
            "exp_avg_sq": here,
        }
    other.models[0](torch.randn(2, 4, device=here)).sum().backward()
    other.optimizers[0].step()


def test_the_averages_of_the_gradient_noise_are_saved_and_a_checkpoint_without_them_loads(tmp_path: Path) -> None:
    def measured(state: TrainingState) -> NoiseMeter:
        meter = NoiseMeter(state.optimizers, [], lambda: 8)
        meter.follow()
        state.noise = meter
        return meter

    without, state = training(4), training(4)
    moment = {"averages": [0.1, 1 / 3, 0.5], "pending": [[0], [2.5], [float("nan")], 3.0, 24.0]}
    measured(state).load_state_dict({"now": moment, "before": [[0, moment | {"pending": None}]], "of": 20})
    for number, saved in enumerate((without, state)):
        outcome = Outcome(tmp_path / str(number))
        outcome.save(saved)
        resumed = training()
        meter = measured(resumed)
        load(*newest(tmp_path / str(number)), resumed)
        wanted = saved.noise.state_dict() if saved.noise is not None else NoiseMeter([], [], lambda: 8).state_dict()
        assert flat(meter.state_dict()["now"]["pending"]) == flat(wanted["now"]["pending"])
        assert meter.averages.groups[0].weight == (0.5 if number else 0.0)
        assert meter.state_dict()["of"] == wanted["of"] and meter.state_dict()["before"] == wanted["before"]
