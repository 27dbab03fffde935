"""`train`, `evaluate` and `predict` in one process: what transformers alone does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from torch import nn
from torch.utils.data import Dataset
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import SchedulerType

import elastic_launcher.integrations.transformers as elastic
from elastic_launcher.integrations.transformers.bridge import TrainerProgress
from elastic_launcher.integrations.transformers.reports import OnRank0
from elastic_launcher.torch import Job
from tests.support.thorough import thorough_but
from tests.support.transformers_models import (
    ARGUMENTS,
    BATCH,
    LENGTH,
    MICRO,
    SAMPLES,
    InOrderTrainer,
    Texts,
    history,
    in_float64,
    make,
    train_plain,
)


class ElasticInOrder(elastic.ElasticTrainerMixin, InOrderTrainer):
    """The elastic Trainer, in the order of the samples."""


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with in_float64():
        yield


@pytest.fixture
def job() -> Job:
    return elastic.init(BATCH, MICRO)


def assert_alike(ours: Any, plain: Any, rel: float = 1e-9) -> None:
    for (name, one), other in zip(ours.model.state_dict().items(), plain.model.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=rel, msg=name)
    assert len(history(ours)) == len(history(plain))
    for logs, expected in zip(history(ours), history(plain), strict=True):
        assert logs == pytest.approx(expected, rel=rel, abs=1e-12)


@pytest.mark.parametrize("kind", thorough_but(ARGUMENTS, "tokens", "lora"))
def test_accumulating_equals_whole_batches_of_transformers(kind: str, job: Job, tmp_path: Path) -> None:
    trainer = make(kind, tmp_path, ElasticInOrder, job=job, num_train_epochs=2)
    output = trainer.train()
    trainer.evaluate()
    plain = train_plain(kind, tmp_path, 2)
    assert_alike(trainer, plain, 1e-5 if kind == "smoothed" else 1e-9)  # it smooths labels in float32
    assert output.global_step == 18
    assert output.training_loss == output.metrics["train_loss"]


def test_micro_batches_in_which_no_token_counts_are_counted(job: Job, tmp_path: Path) -> None:
    trainer = make("tokens", tmp_path, ElasticInOrder, job=job, num_train_epochs=1)
    plain = make("tokens", tmp_path, num_train_epochs=1)
    for one in (trainer, plain):
        one.train_dataset.labels[MICRO : 2 * MICRO] = -100
        one.train()
    assert_alike(trainer, plain)
    assert trainer.state.num_input_tokens_seen == plain.state.num_input_tokens_seen == SAMPLES * LENGTH


@pytest.mark.parametrize(
    "arguments", [{"max_steps": 14}, pytest.param({"num_train_epochs": 1.3}, marks=pytest.mark.thorough)], ids=str
)
def test_a_training_ends_in_the_middle_of_an_epoch(arguments: dict[str, Any], job: Job, tmp_path: Path) -> None:
    arguments = {"num_train_epochs": 3, "eval_strategy": "steps", "eval_steps": 4, **arguments}
    trainer = make("tokens", tmp_path, ElasticInOrder, job=job, **arguments)
    trainer.train()
    plain = make("tokens", tmp_path, **arguments)
    plain.train()
    assert_alike(trainer, plain)
    assert job.step == plain.state.global_step
    assert trainer.control.should_training_stop
    assert not TrainerProgress(trainer).state_dict()["stops"], "it goes on where it is resumed for more epochs"


def test_the_summary_of_a_training_is_not_in_a_checkpoint_of_its_end(job: Job, tmp_path: Path) -> None:
    """A job that resumes there ends at once, and logs it; one that resumes for more epochs logs that of all of them."""
    trainer = make("tokens", tmp_path, ElasticInOrder, job=job, max_steps=4)
    trainer.train()
    kept = json.loads(TrainerProgress(trainer).state_dict()["log_history"])
    assert "train_runtime" in trainer.state.log_history[-1]
    assert kept == pytest.approx(trainer.state.log_history[:-1])


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(SchedulerType, "GREEDY"), reason="this transformers has no GreedyLR")
def test_a_scheduler_that_is_none_of_torchs(job: Job, tmp_path: Path) -> None:
    greedy = {"lr_scheduler_type": "greedy", "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5, "min_lr": 1e-4}}
    arguments = {**greedy, "num_train_epochs": 3, "eval_strategy": "steps", "eval_steps": 2}
    trainer = make("plateau", tmp_path, ElasticInOrder, job=job, **arguments)
    trainer.train()
    plain = make("plateau", tmp_path, **arguments)
    plain.train()
    assert_alike(trainer, plain)
    assert len({log["learning_rate"] for log in history(plain) if "loss" in log}) > 2
    kept = trainer.job._session.state.registered["transformers.scheduler"]
    found, expected = kept.state_dict(), plain.lr_scheduler.state_dict()
    assert found.pop("best") == pytest.approx(expected.pop("best"), rel=1e-9)  # a loss, whose last digits may differ
    assert found == expected


@pytest.mark.thorough
def test_workers_of_the_loader_and_gradient_checkpointing(job: Job, tmp_path: Path) -> None:
    arguments = {"max_steps": 4, "dataloader_num_workers": 1, "gradient_checkpointing": True}
    trainer = make("tokens", tmp_path, ElasticInOrder, job=job, **arguments)
    trainer.train()
    plain = make("tokens", tmp_path, **arguments)
    plain.train()
    assert_alike(trainer, plain)


def test_bfloat16(job: Job, tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    arguments = {"max_steps": 4, "bf16": True, "logging_steps": 1}
    trainer = make("tokens", tmp_path, ElasticInOrder, job=job, **arguments)
    trainer.train()
    plain = make("tokens", tmp_path, **arguments)
    plain.train()
    losses, expected = ([log["loss"] for log in history(one) if "loss" in log] for one in (trainer, plain))
    assert losses == pytest.approx(expected, rel=0.01)


def test_a_checkpoint_of_a_trainer_is_gone_on_from(job: Job, tmp_path: Path) -> None:
    arguments = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 5, "eval_strategy": "no"}
    whole = make("tokens", tmp_path / "plain", **arguments)
    whole.train()
    trainer = make("tokens", tmp_path / "ours", ElasticInOrder, job=job, **arguments)
    trainer.train(resume_from_checkpoint=str(tmp_path / "plain" / "checkpoint-5"))
    assert job.step == 18
    for one, other in zip(trainer.model.state_dict().values(), whole.model.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
    assert [one["step"] for one in history(trainer)] == [one["step"] for one in history(whole)]
    assert {one.name for one in (tmp_path / "ours").iterdir()} == {"checkpoint-10", "checkpoint-15", "checkpoint-18"}


def test_the_best_model_is_loaded_after_early_stopping(job: Job, tmp_path: Path) -> None:
    arguments = {
        "num_train_epochs": 9,
        "learning_rate": 0.03,
        "save_strategy": "epoch",
        "load_best_model_at_end": True,
        "lr_scheduler_type": "constant",
    }
    trainer = make("tokens", tmp_path / "ours", ElasticInOrder, job=job, **arguments)
    trainer.train()
    plain = make("tokens", tmp_path / "plain", **arguments)
    plain.train()
    assert trainer.state.global_step == plain.state.global_step < 81
    assert Path(trainer.state.best_model_checkpoint).name == Path(plain.state.best_model_checkpoint).name
    for one, other in zip(trainer.model.state_dict().values(), plain.model.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("drops", [False, True])
def test_predictions_are_those_of_transformers(drops: bool, job: Job, tmp_path: Path) -> None:
    trainer = make("classes", tmp_path, ElasticInOrder, job=job, max_steps=1, dataloader_drop_last=drops)
    plain = make("classes", tmp_path, dataloader_drop_last=drops)
    before, expected = trainer.evaluate(), plain.evaluate()  # before the training, each process by itself
    assert before["eval_loss"] == pytest.approx(expected["eval_loss"], rel=1e-12)
    trainer.train()
    plain.model.load_state_dict(trainer.model.state_dict())
    ours, theirs = trainer.predict(Texts("classes", 30, 5)), plain.predict(Texts("classes", 30, 5))
    np.testing.assert_allclose(ours.predictions, theirs.predictions, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(ours.label_ids, theirs.label_ids)
    assert ours.metrics["test_loss"] == pytest.approx(theirs.metrics["test_loss"], rel=1e-12)


class TwoModes(torch.optim.SGD):
    """An optimizer that steps only in its training mode, as schedule-free ones do."""

    trains = True

    def train(self) -> None:
        self.trains = True

    def eval(self) -> None:
        self.trains = False

    def step(self, *args: Any, **kwargs: Any) -> Any:
        assert self.trains
        return super().step(*args, **kwargs)


def test_an_optimizer_leaves_its_mode_of_evaluation_on_a_rank_that_had_no_samples(job: Job, tmp_path: Path) -> None:
    class Evaluated(TrainerCallback):  # type: ignore[misc] # transformers is not followed
        def on_step_begin(self, *_: Any, optimizer: Any, **__: Any) -> None:
            optimizer.eval()  # the gradient is there: a rank without samples is still as its evaluation has left it

    trainer = make("tokens", tmp_path, ElasticInOrder, [Evaluated()], job=job, max_steps=2)
    trainer.optimizer = TwoModes(trainer.model.parameters(), lr=0.01)
    trainer.train()
    assert job.step == 2


class Translations(Dataset[Any]):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.arange(6) + index, "labels": torch.arange(4) + index}


class ElasticSeq2Seq(elastic.ElasticTrainerMixin, Seq2SeqTrainer):
    """Another Trainer, whose predictions are texts of different lengths."""


@pytest.mark.thorough
def test_a_trainer_that_generates(job: Job, tmp_path: Path) -> None:
    def trained(kind: Any, **job: Any) -> Any:
        torch.manual_seed(0)
        sizes = {"vocab_size": 32, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
        model = T5ForConditionalGeneration(T5Config(**sizes, dropout_rate=0, decoder_start_token_id=0))
        args = Seq2SeqTrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=2,
            predict_with_generate=True,
            generation_max_length=9,
            max_steps=1,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = kind(model.double(), args, train_dataset=Translations(), **job)
        trainer.train()
        return trainer.predict(Translations())

    ours, theirs = trained(ElasticSeq2Seq, job=job), trained(Seq2SeqTrainer)
    np.testing.assert_array_equal(ours.predictions, theirs.predictions)
    assert ours.metrics["test_loss"] == pytest.approx(theirs.metrics["test_loss"], rel=1e-5)


class Ragged(Dataset[Any]):
    """Samples of different lengths, which the collator of the test fills up within a batch."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.arange(1.0, 2 + index % 4), "labels": torch.arange(1 + index % 4)}


def filled(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {
        "x": nn.utils.rnn.pad_sequence([one["x"] for one in samples], batch_first=True),
        "labels": nn.utils.rnn.pad_sequence([one["labels"] for one in samples], batch_first=True, padding_value=-100),
    }


class Scores(nn.Module):
    """A model that is none of transformers', and takes no count of items: its loss is a mean over tokens."""

    main_input_name = "x"

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = x[..., None] * self.weight
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def ragged(folder: Path, kind: Any, **job: Any) -> Any:
    """Returns a Trainer of 10 samples in steps of 6: an epoch has two."""
    args = TrainingArguments(
        str(folder),
        per_device_train_batch_size=6,
        per_device_eval_batch_size=3,
        num_train_epochs=2,
        learning_rate=0.1,
        logging_steps=1,
        save_steps=1,
        include_for_metrics=["inputs", "loss"],
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    data = {"train_dataset": Ragged(), "eval_dataset": Ragged(), "data_collator": filled}
    return kind(Scores(), args, compute_metrics=lambda found: {"sum": found.predictions.sum()}, **data, **job)


def test_rows_of_different_lengths_and_a_loss_that_is_a_mean_over_tokens(tmp_path: Path) -> None:
    ours, plain = ragged(tmp_path, ElasticInOrder, job=elastic.init(6, 2)), ragged(tmp_path, InOrderTrainer)
    ours.train()
    plain.train()
    metrics, expected = ours.evaluate(), plain.evaluate()
    assert_alike(ours, plain)
    assert metrics["eval_sum"] == pytest.approx(expected["eval_sum"], rel=1e-12)
    predictions, theirs = ours.predict(Ragged()).predictions, plain.predict(Ragged()).predictions
    np.testing.assert_allclose(predictions, theirs, rtol=0, atol=1e-12)


def test_an_epoch_that_begins_with_its_second_step(tmp_path: Path) -> None:
    """So does that of a process that joins: the Trainer finds fewer batches than it knows of."""
    plain = ragged(tmp_path / "plain", InOrderTrainer)
    plain.train()
    ours = ragged(tmp_path / "ours", ElasticInOrder, job=elastic.init(6, 2))
    ours.train(resume_from_checkpoint=str(tmp_path / "plain" / "checkpoint-1"))
    assert [log["step"] for log in history(ours)] == [1, 2, 3, 4, 4]
    torch.testing.assert_close(ours.model.weight, plain.model.weight, rtol=0, atol=1e-9)


class Labelled(Dataset[Any]):
    """Samples with one class each, of which some do not count."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.tensor([1.0 + index]), "labels": index % 4 if index % 3 else -100}


def test_a_class_that_does_not_count(tmp_path: Path) -> None:
    """The loss is a mean over the samples whose label counts, as torch's cross entropy is."""

    def trained(kind: Any, **job: Any) -> Any:
        args = TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=6,
            max_steps=2,
            logging_steps=1,
            optim="sgd",
            learning_rate=0.1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = kind(Scores(), args, train_dataset=Labelled(), **job)
        trainer.train()
        return trainer

    assert_alike(trained(ElasticInOrder, job=elastic.init(6, 2)), trained(InOrderTrainer))


def answers_with(monkeypatch: pytest.MonkeyPatch, answers: list[Any]) -> None:
    """Has the ranks bring together what is given, where it is a dict."""
    monkeypatch.setattr(Job, "reduce", lambda self, own, op="mean": answers.pop(0) if isinstance(own, dict) else own)


def test_only_rank_0_writes_and_prints(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make("classes", tmp_path, ElasticInOrder, job=job, max_steps=4, save_strategy="steps", save_steps=2)
    monkeypatch.setattr(type(job), "rank", property(lambda self: 1))
    answers_with(monkeypatch, [{"saved": 1.0, "best": 0.0}] * 2)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    assert not list(tmp_path.iterdir())
    assert "eval_loss" not in capsys.readouterr().out
    assert not trainer.is_world_process_zero()
    assert not trainer.args.should_save
    AcceleratorState._reset_state(reset_partial_state=True)


def test_a_checkpoint_is_saved_again_where_rank_0_was_lost(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make("classes", tmp_path, ElasticInOrder, job=job, max_steps=2, save_strategy="steps", save_steps=2)
    answers = [{"saved": 0.0, "best": 0.0}, {"saved": 1.0, "best": 0.0}]
    answers_with(monkeypatch, answers)
    trainer.train()
    assert not answers
    assert (tmp_path / "checkpoint-2" / "trainer_state.json").exists()


def test_metrics_of_one_batch_after_the_other_get_its_inputs(job: Job, tmp_path: Path) -> None:
    def evaluated(kind: Any, **job: Any) -> list[Any]:
        seen: list[Any] = []

        def measure(found: Any, compute_result: bool) -> dict[str, float]:
            seen.append({name: found.inputs[name].tolist() for name in sorted(found.inputs)})
            return {"batches": float(len(seen))} if compute_result else {}

        arguments = {"batch_eval_metrics": True, "include_for_metrics": ["inputs"], "eval_strategy": "no"}
        trainer = make("classes", tmp_path, kind, **job)
        for name, value in arguments.items():
            setattr(trainer.args, name, value)
        trainer.compute_metrics = measure
        assert trainer.evaluate()["eval_batches"] == 5
        return seen

    assert evaluated(ElasticInOrder, job=job) == evaluated(InOrderTrainer)


def test_rank_0_says_what_was_logged_before_it_was_known(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[bool] = []
    logged: list[Any] = []

    class Begins(TrainerCallback):  # type: ignore[misc] # transformers is not followed
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            begun.append(True)

    monkeypatch.setattr(Job, "rank", property(lambda self: 0 if begun else None))
    monkeypatch.setattr(Job, "log", lambda self, values: logged.append(values) if begun else None)
    arguments = {"max_steps": 2, "logging_steps": 1, "eval_strategy": "no", "eval_on_start": True}
    trainer = make("tokens", tmp_path, ElasticInOrder, [Begins()], job=job, **arguments)
    trainer.train()
    assert ["eval_loss" in line for line in capsys.readouterr().out.splitlines()] == [True, False, False, False]
    assert logged[0]["eval_loss"] == trainer.state.log_history[0]["eval_loss"] and "loss" in logged[1]
    assert ["eval_loss" in one for one in trainer.state.log_history] == [True, False, False, False]


def test_a_process_that_goes_on_does_not_evaluate_at_the_start(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its model is the one as it was built until the first step, and what it logs is what its peers have logged."""
    monkeypatch.setattr("elastic_launcher.integrations.transformers.trainer.is_new", lambda job: False)
    trainer = make("tokens", tmp_path, ElasticInOrder, job=job, max_steps=1, eval_strategy="no", eval_on_start=True)
    trainer.train()
    assert not any("eval_loss" in one for one in trainer.state.log_history)


def test_reports_begin_where_a_process_becomes_rank_0() -> None:
    class Report(TrainerCallback):  # type: ignore[misc] # transformers is not followed
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            heard.append("begin")

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            heard.append(logs)

    heard: list[Any] = []
    report, state = OnRank0(Report()), TrainerState(is_world_process_zero=False)
    report.on_train_begin(None, state, None)
    report.on_log(None, state, None, logs=1)
    state.is_world_process_zero = True
    report.on_log(None, state, None, logs=2)
    report.on_log(None, state, None, logs=3)
    assert heard == ["begin", 2, 3]


def test_a_trainer_shuffles_as_the_job_does_and_trains_once(job: Job, tmp_path: Path) -> None:
    class Plain(elastic.ElasticTrainerMixin, Trainer):
        pass

    trainer = make("classes", tmp_path, Plain, job=job, max_steps=2)
    trainer.train()
    assert trainer._steps.loader.shuffle
    for again in (trainer, make("classes", tmp_path, Plain, job=job, max_steps=2)):
        with pytest.raises(RuntimeError, match="a job trains once"):
            again.train()
