"""What an elastic Accelerator can't do is refused by name, with what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accelerate import skip_first_batches
from accelerate.utils import DataLoaderConfiguration, GradientAccumulationPlugin, ProjectConfiguration
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler

import elastic_launcher.integrations.accelerate as elastic
from tests.support.accelerate_loop import BATCH, build, data
from tests.support.thread_group import run_ranks, thread_job


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps is 4"),
        ({"gradient_accumulation_plugin": GradientAccumulationPlugin(num_steps=2)}, "gradient_accumulation_steps is 2"),
        ({"fsdp_plugin": object()}, "fsdp_plugin"),
        ({"deepspeed_plugin": object()}, "deepspeed_plugin"),
        ({"dynamo_backend": "inductor"}, "dynamo_backend"),
        ({"mixed_precision": "fp16"}, "mixed_precision"),
        ({"dataloader_config": DataLoaderConfiguration(dispatch_batches=True)}, "dispatch_batches"),
        ({"project_config": ProjectConfiguration(save_on_each_node=True)}, "save_on_each_node"),
    ],
)
def test_options_that_cannot_be_followed(job: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        elastic.ElasticAccelerator(job, **options)


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4", "gradient_accumulation_steps is 4"),
        ("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR", "ACCELERATE_DYNAMO_BACKEND"),
        ("ACCELERATE_MIXED_PRECISION", "fp16", "mixed_precision='fp16'"),
    ],
)
def test_what_accelerate_launch_sets(
    job: Any, name: str, value: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=named):
        elastic.ElasticAccelerator(job)


def test_accumulation_that_is_set_later(job: Any) -> None:
    accelerator = elastic.ElasticAccelerator(job)
    with pytest.raises(ValueError, match="gradient_accumulation_steps is 2"):
        accelerator.gradient_accumulation_steps = 2


def prepared(job: Any, loader: Any) -> tuple[Any, Any, Any]:
    accelerator = elastic.ElasticAccelerator(job)
    model = build()
    model, loader, _ = accelerator.prepare(model, loader, torch.optim.SGD(model.parameters(), 0.1))
    return accelerator, model, loader


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(3)


@pytest.mark.parametrize(
    ("loader", "error", "named"),
    [
        (lambda: DataLoader(Stream(), BATCH), TypeError, "Stream, which can only be read forward"),
        (lambda: DataLoader(data(), BATCH, sampler=WeightedRandomSampler([1.0] * 203, 203)), TypeError, "Weighted"),
        (lambda: DataLoader(data(), 6), ValueError, r"model\.eval\(\) first. To train, give it batch_size=24"),
    ],
    ids=["stream", "sampler", "batch"],
)
def test_data_that_cannot_train(job: Any, loader: Any, error: type[Exception], named: str) -> None:
    _, _, given = prepared(job, loader())
    with pytest.raises(error, match=named):
        next(iter(given))


def test_values_of_one_rank_in_a_training_loop_but_not_in_its_evaluations(job: Any) -> None:
    accelerator, model, loader = prepared(job, DataLoader(data(), BATCH))
    held_out = accelerator.prepare(DataLoader(data(50, 2), 7))
    checked = 0
    for inputs, targets, _ in loader:
        for method in (accelerator.gather, accelerator.gather_for_metrics, accelerator.reduce):
            with pytest.raises(RuntimeError, match=f"{method.__name__} was called in a training loop"):
                method(torch.zeros(1))
        accelerator.backward(functional.mse_loss(model(inputs), targets))
        if accelerator.sync_gradients:
            model.eval()
            assert sum(len(accelerator.gather(one)) for one, _, _ in held_out) == 50
            checked += 1
            model.train()
            job.stop()
    assert checked == 1


def test_values_of_one_rank_while_an_iterator_of_an_evaluation_is_open(job: Any) -> None:
    accelerator, model, loader = prepared(job, DataLoader(data(), BATCH))
    held_out = accelerator.prepare(DataLoader(data(50, 2), 7))
    model.eval()
    left_open = iter(held_out)
    next(left_open)
    model.train()
    for inputs, targets, _ in loader:
        with pytest.raises(RuntimeError, match="gather was called in a training loop"):
            accelerator.gather(torch.zeros(1))
        next(left_open)
        assert accelerator.gather(torch.zeros(1)).numel() == 1
        accelerator.backward(functional.mse_loss(model(inputs), targets))
        job.stop()


def test_parts_of_a_prepared_loader_of_which_accelerate_would_make_another(job: Any) -> None:
    _, _, loader = prepared(job, DataLoader(data(), BATCH))
    assert not hasattr(loader, "batch_sampler")
    with pytest.raises(AttributeError, match=r"has no 'sampler'.*job\.start_at\(epoch, step\)"):
        skip_first_batches(loader, 2)


def test_a_scheduler_that_is_none_of_torch(job: Any) -> None:
    class Decay:
        def step(self) -> None: ...

    with pytest.raises(TypeError, match=r"got a Decay, which is no scheduler.*if accelerator\.sync_gradients:"):
        elastic.ElasticAccelerator(job).prepare(Decay())


def test_a_backward_pass_in_a_loop_that_evaluates(job: Any) -> None:
    accelerator, model, loader = prepared(job, DataLoader(data(), BATCH))
    model.eval()  # as transformers' from_pretrained returns it
    with pytest.raises(RuntimeError, match=r"call model\.train\(\) before the loop"):
        for inputs, targets, _ in loader:
            accelerator.backward(functional.mse_loss(model(inputs), targets))


def test_calls_that_mean_a_fixed_place(job: Any) -> None:
    accelerator = elastic.ElasticAccelerator(job)
    with pytest.raises(RuntimeError, match="start_at"):
        accelerator.skip_first_batches(None, 3)
    for method in (accelerator.on_process, accelerator.on_local_process):
        with pytest.raises(RuntimeError, match=f"{method.__name__}: another process may have that rank"):
            method(process_index=2)


def test_a_deterministic_job_is_refused() -> None:
    with pytest.raises(ValueError, match=r"init\(deterministic=2\): Accelerate was not tried"):
        run_ranks(1, lambda group: elastic.ElasticAccelerator(thread_job(group, BATCH, BATCH, virtual_ranks=2)))


@pytest.mark.usefixtures("node_of_one")
def test_a_sharded_model_is_refused(job: Any) -> None:
    accelerator = elastic.ElasticAccelerator(job)
    with pytest.raises(TypeError, match="sharded by fully_shard: Accelerate was not tried with it"):
        accelerator.prepare(fully_shard(build()))
