"""An elastic Accelerator in one process does what Accelerate alone does."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, WeightedRandomSampler

import elastic_launcher.integrations.accelerate as elastic
from elastic_launcher.torch import Job
from tests.support.accelerate_loop import BATCH, MICRO, STEPS, build, data, train
from tests.support.accelerate_trackers import Lines, read_lines


def assert_same(ours: nn.Module, plain: nn.Module, atol: float = 1e-12) -> None:
    for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=atol)


@pytest.mark.parametrize("micro", [MICRO, BATCH])
@pytest.mark.parametrize("weighted", [False, True], ids=["samples", "weights"])
def test_accumulating_equals_whole_batches_of_accelerate(weighted: bool, micro: int, plain: Any) -> None:
    job = elastic.init(BATCH, micro)
    ours, logs = train(elastic.ElasticAccelerator(job), job.epochs(3), weighted=weighted)
    theirs, expected = train(plain(), range(3), weighted=weighted)
    assert_same(ours, theirs)
    assert [sorted(one) for one in logs] == [sorted(one) for one in expected]
    for one, other in zip(logs, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-9)


def test_loops_in_a_plain_range_of_epochs_train_the_same(job: Any, plain: Any) -> None:
    ours, _ = train(elastic.ElasticAccelerator(job), range(2))
    assert_same(ours, train(plain(), range(2))[0])


def test_gradients_cleared_first_and_no_accumulate_train_the_same(job: Any, plain: Any) -> None:
    def train_so(accelerator: Any) -> nn.Module:
        model, rate = build(), 0.1
        optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
        model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data(), BATCH))
        for _ in range(2):
            for inputs, targets, _weights in loader:
                optimizer.zero_grad()
                accelerator.backward(functional.mse_loss(model(inputs), targets))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_value_(model.parameters(), 0.01)
                optimizer.step()
        return model

    assert_same(train_so(elastic.ElasticAccelerator(job)), train_so(plain()))


def test_a_model_after_free_memory_trains_and_evaluates_as_the_first_one(job: Any, plain: Any) -> None:
    def train_so(accelerator: Any) -> nn.ModuleList:
        found = []
        for fold in range(2):
            model = build()
            optimizer = torch.optim.AdamW(model.parameters(), 0.01)
            loaders = DataLoader(data(seed=fold), BATCH), DataLoader(data(50, 2), 7)
            model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, *loaders)
            for inputs, targets, _weights in loader:
                accelerator.backward(functional.mse_loss(model(inputs), targets))
                optimizer.step()
                optimizer.zero_grad()
            found.append(model)
            if fold:  # while the first one is in train mode
                model.eval()
                assert sum(len(inputs) for inputs, _, _ in held_out) == 50
            accelerator.free_memory()
        return nn.ModuleList(found)

    assert_same(train_so(elastic.ElasticAccelerator(job)), train_so(plain()))


def test_an_optimizer_prepared_again_after_free_memory_is_given_to_the_job_once(job: Any) -> None:
    accelerator = elastic.ElasticAccelerator(job)
    optimizer = accelerator.prepare(torch.optim.SGD(build().parameters(), 0.1))
    accelerator.free_memory()
    assert accelerator.prepare(optimizer) is optimizer
    assert job._session.state.optimizers == [optimizer.optimizer]


def test_numbers_of_numpy_go_to_the_report_too(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: dict[str, float] = {}
    monkeypatch.setattr(job, "log", logged.update)
    elastic.ElasticAccelerator(job).log({"score": np.float32(0.5), "on": True, "text": "x"})
    assert logged == {"score": 0.5}


def test_two_models_with_optimizers_of_their_own_train_the_same(job: Any, plain: Any) -> None:
    def train_so(accelerator: Any) -> nn.ModuleList:
        models = [build(), build()]
        optimizers = [torch.optim.SGD(one.parameters(), rate) for one, rate in zip(models, (0.1, 0.3), strict=True)]
        *prepared, loader = accelerator.prepare(*models, *optimizers, DataLoader(data(), BATCH))
        for inputs, targets, _weights in loader:
            for model, optimizer in zip(prepared[:2], prepared[2:], strict=True):
                of = {"optimizer": optimizer} if hasattr(accelerator, "job") else {}
                accelerator.backward(functional.mse_loss(model(inputs), targets), **of)
                optimizer.step()
                optimizer.zero_grad()
        return nn.ModuleList(prepared[:2])

    assert_same(train_so(elastic.ElasticAccelerator(job)), train_so(plain()))


class Narrow(nn.Module):
    """A model for which a GPU has memory for three samples."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = build()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if len(inputs) > 3:
            raise torch.OutOfMemoryError("of a test")
        outputs: torch.Tensor = self.inner(inputs)
        return outputs


def test_micro_batches_that_memory_is_too_small_for_are_divided(job: Any, plain: Any) -> None:
    def train_so(accelerator: Any, model: nn.Module) -> nn.Module:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data(), BATCH))
        for inputs, targets, _weights in loader:
            with accelerator.accumulate(model):
                accelerator.backward(functional.mse_loss(model(inputs), targets))
                optimizer.step()
                optimizer.zero_grad()
        return model

    ours = train_so(elastic.ElasticAccelerator(job), Narrow())
    assert_same(ours.inner, train_so(plain(), build()))


def test_bf16_equals_accelerate_as_far_as_bf16_goes(job: Any, plain: Any) -> None:
    def train_so(accelerator: Any) -> nn.Module:
        model = build().float()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data(), BATCH))
        for inputs, targets, _weights in loader:
            outputs = model(inputs.float())
            assert outputs.dtype == torch.float32
            with accelerator.autocast():
                assert functional.linear(inputs.float(), torch.ones(1, 6)).dtype == torch.bfloat16
            accelerator.backward(functional.mse_loss(outputs, targets.float()))
            optimizer.step()
            optimizer.zero_grad()
        return model

    ours = train_so(elastic.ElasticAccelerator(job, mixed_precision="bf16"))
    assert_same(ours, train_so(plain(mixed_precision="bf16")), atol=5e-3)
    before = next(build().parameters()).float()
    assert (next(ours.parameters()) - before).abs().max() > 5e-2


def test_lengths_count_steps_and_batches(job: Any) -> None:
    loader, held_out = elastic.ElasticAccelerator(job).prepare(DataLoader(data(), BATCH), DataLoader(data(50, 2), 7))
    assert (len(loader), len(held_out), loader.total_batch_size) == (STEPS, 8, BATCH)


def test_an_evaluation_takes_any_data_and_needs_no_mode_without_gradients(job: Any) -> None:
    accelerator = elastic.ElasticAccelerator(job)
    drawn = WeightedRandomSampler([1.0] * 50, 30)
    model, loader = accelerator.prepare(build(), DataLoader(data(50, 2), BATCH, sampler=drawn))
    assert model.training
    with torch.no_grad():
        found = [accelerator.gather_for_metrics(model(inputs)) for inputs, _, _ in loader]
    assert [len(one) for one in found] == [24, 6]


@pytest.mark.parametrize("way", ["prepare", "register_for_checkpointing", "both"])
def test_a_schedule_of_a_prepared_optimizer_steps_once_per_global_batch(job: Any, way: str) -> None:
    accelerator = elastic.ElasticAccelerator(job)
    model = build()
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), 1.0), DataLoader(data(), BATCH)
    )
    schedule = StepLR(optimizer, 1, 0.5)
    for name in ("register_for_checkpointing", "prepare") if way == "both" else (way,):
        getattr(accelerator, name)(schedule)
    for inputs, targets, _ in loader:
        accelerator.backward(functional.mse_loss(model(inputs), targets))
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.5**STEPS
    assert len(job._session.state.schedulers) == 1


def test_a_schedule_that_is_not_prepared_is_warned_of(job: Any) -> None:
    accelerator = elastic.ElasticAccelerator(job)
    model = build()
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), 1.0), DataLoader(data(), BATCH)
    )
    StepLR(optimizer, 1, 0.5)
    with pytest.warns(UserWarning, match=r"SGD has a scheduler that was not given to accelerator\.prepare"):
        next(iter(loader))


def test_things_prepared_twice_are_prepared_once(job: Any) -> None:
    accelerator = elastic.ElasticAccelerator(job)
    model = build()
    things = [model, torch.optim.SGD(model.parameters(), 0.1), DataLoader(data(), BATCH)]
    once = accelerator.prepare(*things, StepLR(things[1], 1))
    assert all(one is other for one, other in zip(once, accelerator.prepare(*once), strict=True))
    state = job._session.state
    assert [len(state.models), len(state.optimizers), len(state.schedulers)] == [1, 1, 1]


def test_the_order_of_samples_follows_data_seed(job: Any) -> None:
    def order(**options: Any) -> list[float]:
        accelerator = elastic.ElasticAccelerator(elastic.init(BATCH, BATCH), **options)
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loader, *_ = accelerator.prepare(DataLoader(data(), BATCH, shuffle=True), model, optimizer)
        return next(iter(loader))[0][:, 0].tolist()  # type: ignore[no-any-return]

    seeded = {"dataloader_config": DataLoaderConfiguration(data_seed=5)}
    assert order() == order() != order(**seeded) == order(**seeded)


def test_files_are_written_and_numbered_after_those_of_others(job: Any, tmp_path: Path, plain: Any) -> None:
    project = {"project_config": ProjectConfiguration(str(tmp_path), automatic_checkpoint_naming=True, total_limit=2)}
    accelerator = elastic.ElasticAccelerator(job, **project)
    model = accelerator.prepare(build())
    (tmp_path / "checkpoints" / "checkpoint_6").mkdir(parents=True)
    for _ in range(2):
        accelerator.save_state()
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["checkpoint_7", "checkpoint_8"]
    accelerator.save_model(model, tmp_path / "model")
    accelerator.save(accelerator.get_state_dict(model), tmp_path / "weights.pt")
    fresh = plain()
    other = fresh.prepare(build())
    nn.init.zeros_(other[0].weight)
    fresh.load_state(str(tmp_path / "checkpoints" / "checkpoint_8"))
    assert_same(other, model, atol=0)
    assert torch.load(tmp_path / "weights.pt").keys() == model.state_dict().keys()
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_a_new_job_begins_with_a_state_that_another_one_saved(plain: Any, tmp_path: Path) -> None:
    def train_so(accelerator: Any, epochs: Any, begins_with: Path | None = None) -> nn.Module:
        model = build()
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        model, optimizer, scheduler, loader = accelerator.prepare(
            model, optimizer, StepLR(optimizer, STEPS, 0.1), DataLoader(data(), BATCH)
        )
        if begins_with:
            accelerator.load_state(str(begins_with))
            accelerator.job.start_at(1)
        for _ in epochs:
            for inputs, targets, _weights in loader:
                accelerator.backward(functional.mse_loss(model(inputs), targets))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        return model

    first = elastic.init(BATCH, MICRO)
    accelerator = elastic.ElasticAccelerator(first)
    train_so(accelerator, first.epochs(1))
    accelerator.save_state(str(tmp_path / "state"))
    second = elastic.init(BATCH, MICRO)
    ours = train_so(elastic.ElasticAccelerator(second), second.epochs(2), tmp_path / "state")
    assert second.step == 2 * STEPS
    assert_same(ours, train_so(plain(), range(2)))


class Count:
    """Counts."""

    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


def test_objects_for_checkpoints_travel_with_the_job(job: Any) -> None:
    accelerator, count = elastic.ElasticAccelerator(job), Count()
    accelerator.register_for_checkpointing(count, Count())
    assert job._session.state.registered["accelerate.0"] is count


def test_a_trigger_ends_the_loop_where_the_global_batch_is_complete(job: Any) -> None:
    accelerator = elastic.ElasticAccelerator(job)
    model = build()
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), 0.1), DataLoader(data(), BATCH)
    )
    seen = []
    for inputs, targets, _ in loader:
        accelerator.set_trigger()
        accelerator.backward(functional.mse_loss(model(inputs), targets))
        optimizer.step()
        seen.append(accelerator.check_trigger())
        if seen[-1]:
            break
    assert seen == [False, False, False, True]
    assert not accelerator.check_trigger()


def test_trackers_begin_once_and_get_what_is_logged(job: Any, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    accelerator = elastic.ElasticAccelerator(job, log_with=Lines(path))
    with pytest.raises(RuntimeError, match=r"call that before the loop, on all ranks"):
        accelerator.log({"loss": 1.0})
    accelerator.init_trackers("project", {"rate": 0.5})
    accelerator.log({"loss": torch.tensor(0.25).item(), "text": "some"}, step=3)
    assert accelerator.get_tracker("lines", unwrap=True) == path
    accelerator.end_training()
    said = [one["what"] for one in read_lines(path)]
    assert said[said[0] == "start" :] == ["configuration", "log", "finish"]  # older Accelerates don't call start
    assert read_lines(path, "log")[0].items() >= {"step": 3, "loss": 0.25, "text": "some"}.items()


class OfRank:
    """A job as another rank sees it."""

    _write_on_main = Job._write_on_main

    def __init__(self, job: Any, rank: int | None) -> None:
        self._job = job
        self.rank = rank
        self.is_main = rank == 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)


@pytest.mark.parametrize("rank", [1, None])
def test_other_ranks_say_and_write_nothing(
    rank: int | None, job: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lines"
    accelerator = elastic.ElasticAccelerator(OfRank(job, rank), log_with=Lines(path))  # type: ignore[arg-type]
    model = accelerator.prepare(build())
    accelerator.init_trackers("project", {"rate": 0.5})
    accelerator.log({"loss": 1.0})
    accelerator.print("said")
    for decorate in (accelerator.on_main_process, accelerator.on_local_main_process, accelerator.on_last_process):
        assert decorate(lambda: "called")() is None
    with contextlib.nullcontext() if rank else pytest.warns(UserWarning, match="not saving a"):
        accelerator.save_state(str(tmp_path / "state"))
        accelerator.save_model(model, tmp_path / "model")
        accelerator.save({}, tmp_path / "saved.pt")
    accelerator.end_training()
    assert not (accelerator.is_main_process or accelerator.is_local_main_process or accelerator.process_index == 0)
    assert list(tmp_path.iterdir()) == [] and capsys.readouterr().out == ""


def test_rank_0_says_and_runs(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    accelerator = elastic.ElasticAccelerator(job)
    accelerator.print("said")
    assert capsys.readouterr().out == "said\n"
    assert accelerator.on_main_process(lambda: "called")() == "called"
    with accelerator.main_process_first(), pytest.raises(RuntimeError, match="job.first_on_node"):
        accelerator.wait_for_everyone()
    accelerator.wait_for_everyone()


def test_nobody_is_rank_0_before_the_first_batch(job: Any) -> None:
    accelerator = elastic.ElasticAccelerator(OfRank(job, None))  # type: ignore[arg-type]
    accelerator.wait_for_everyone()
    with pytest.raises(RuntimeError, match="before the first batch"):
        accelerator.get_tracker("lines")


def test_accelerate_itself_stays_as_it_was() -> None:
    assert Accelerator(cpu=True).is_main_process
