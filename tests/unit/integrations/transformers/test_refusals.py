"""What can't be as it is in one process is refused by name, before it trains."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, WeightedRandomSampler
from transformers import Trainer

import elastic_launcher.integrations.transformers as elastic
from elastic_launcher.torch import Job
from tests.support.thread_group import run_ranks, thread_job
from tests.support.transformers_models import BATCH, MICRO, make


@pytest.fixture
def job() -> Job:
    return elastic.init(BATCH, MICRO)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps is 2: the job accumulates"),
        (
            {"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 2}}},
            "gradient_accumulation_steps is 2: the job accumulates",
        ),
        ({"train_sampling_strategy": "group_by_length"}, "use train_sampling_strategy='random' or 'sequential'"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
        ({"push_to_hub": True}, "push_to_hub"),
        ({"save_on_each_node": True}, "save_on_each_node"),
        ({"optim": "lomo"}, "optim='lomo'"),
        ({"optim": "galore_adamw_layerwise"}, "optim='galore_adamw_layerwise'"),
    ],
    ids=str,
)
def test_arguments_that_the_job_decides(arguments: dict[str, Any], message: str, job: Job, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        make("classes", tmp_path, elastic.ElasticTrainer, job=job, **arguments)


@pytest.mark.parametrize("name", ["deepspeed", "fsdp", "fp16", "torch_compile"])
def test_sharding_and_what_was_not_tried(name: str, job: Job, tmp_path: Path) -> None:
    args = make("classes", tmp_path).args
    setattr(args, name, True)
    with pytest.raises(ValueError, match=rf"TrainingArguments\({name}=...\)"):
        elastic.ElasticTrainer(None, args, job=job)


def test_a_batch_that_is_not_the_global_batch(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"per_device_train_batch_size is {BATCH}, and the job's global batch 48"):
        make("classes", tmp_path, elastic.ElasticTrainer, job=elastic.init(48, MICRO))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


class Drawn(Trainer):  # type: ignore[misc] # transformers is not followed
    def _get_train_sampler(self, *_: Any) -> Any:
        return WeightedRandomSampler([1.0] * len(self.train_dataset), 10)


class ElasticDrawn(elastic.ElasticTrainerMixin, Drawn):
    """An elastic Trainer with a sampler of its own."""


def test_data_that_can_only_be_read_forward(job: Job, tmp_path: Path) -> None:
    trainer = make("classes", tmp_path, elastic.ElasticTrainer, job=job, max_steps=2)
    trainer.train_dataset = trainer.eval_dataset = Stream()
    with pytest.raises(TypeError, match="Stream, which can only be read forward"):
        trainer.train()
    with pytest.raises(TypeError, match="Stream, which can only be read forward"):
        trainer.evaluate()


def test_a_sampler_that_the_job_cannot_follow(job: Job, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="WeightedRandomSampler; the job decides"):
        make("classes", tmp_path, ElasticDrawn, job=job).train()


class ElasticShuffling(elastic.ElasticTrainer):  # type: ignore[misc] # transformers is not followed
    def get_eval_dataloader(self, *_: Any) -> Any:
        return DataLoader(self.eval_dataset, batch_size=7, shuffle=True)


def test_an_evaluation_that_shuffles(job: Job, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="the loader of the evaluation shuffles"):
        make("classes", tmp_path, ElasticShuffling, job=job).evaluate()


class ElasticDrawnEvaluation(elastic.ElasticTrainer):  # type: ignore[misc] # transformers is not followed
    def get_eval_dataloader(self, *_: Any) -> Any:
        torch.manual_seed(self.job.rank)  # as after a training step
        return DataLoader(self.eval_dataset, batch_size=7, sampler=SubsetRandomSampler(range(31)))


def test_an_evaluation_whose_sampler_draws_on_each_rank(tmp_path: Path) -> None:
    def evaluate(group: Any) -> None:
        job = thread_job(group, BATCH, MICRO)
        with pytest.raises(RuntimeError, match="batches of an evaluation differ between ranks"):
            make("classes", tmp_path, ElasticDrawnEvaluation, job=job).evaluate()

    run_ranks(2, evaluate)


def test_outputs_that_ranks_cannot_exchange(job: Job, tmp_path: Path) -> None:
    trainer = make("classes", tmp_path, elastic.ElasticTrainer, job=job)
    trainer.preprocess_logits_for_metrics = lambda logits, labels: object()
    with pytest.raises(TypeError, match="outputs hold a object, which ranks can't exchange"):
        trainer.evaluate()


def test_a_trainer_needs_its_arguments(job: Job) -> None:
    with pytest.raises(ValueError, match="args=TrainingArguments"):
        elastic.ElasticTrainer(None, job=job)


def test_a_search_of_hyperparameters(job: Job, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="a pipeline step for each trial"):
        make("classes", tmp_path, elastic.ElasticTrainer, job=job).hyperparameter_search()


def test_transformers_does_not_see_the_other_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    job = elastic.init(BATCH, MICRO)
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE"} & set(os.environ)
    assert make("classes", tmp_path, elastic.ElasticTrainer, job=job).args.world_size == 1


def test_a_deterministic_job_is_refused(tmp_path: Path) -> None:
    deterministic = run_ranks(1, lambda group: thread_job(group, BATCH, MICRO, virtual_ranks=2))[0]
    with pytest.raises(ValueError, match=r"init\(deterministic=2\): Hugging Face's Trainer was not tried"):
        make("classes", tmp_path, elastic.ElasticTrainer, job=deterministic)


@pytest.mark.usefixtures("node_of_one")
def test_a_sharded_model_is_refused(job: Job, tmp_path: Path) -> None:
    trainer = make("classes", tmp_path, elastic.ElasticTrainer, job=job)
    fully_shard(trainer.model)
    with pytest.raises(TypeError, match="sharded by fully_shard: Hugging Face's Trainer was not tried with it"):
        trainer.train()
