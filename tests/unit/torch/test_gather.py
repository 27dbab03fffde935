"""Rows come together in the order of the samples, on any number of ranks, with their names, types and shapes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from elastic_launcher.torch.state.course import KEPT_BYTES, Sums, decode_sums, encode_sums
from tests.support.thread_group import ThreadGroup, run_ranks, thread_job
from tests.support.trainings import BATCH, SAMPLES, SEED, X, Y, batches, linear

NUMBERS = torch.arange(SAMPLES)
TYPES = [torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]


@pytest.mark.parametrize("world_size", [1, 2, 3, 13])
@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_of_a_data_set_come_in_its_order_on_all_ranks(world_size: int, shuffle: bool) -> None:
    def body(group: ThreadGroup) -> Any:
        job = thread_job(group, 4, 3)
        loader = job.dataloader(TensorDataset(X[:10], NUMBERS[:10]), shuffle=shuffle, seed=SEED)
        return job.gather(lambda x, n: {"x": x, "n": n, "one": n[:, None, None].half()}, loader)

    for found in run_ranks(world_size, body):
        assert list(found) == ["x", "n", "one"]
        assert torch.equal(found["x"], X[:10]) and torch.equal(found["n"], NUMBERS[:10])
        assert torch.equal(found["one"], NUMBERS[:10, None, None].half())


@pytest.mark.parametrize("world_size", [1, 2, 3, 13])
def test_rows_of_a_step_come_in_the_order_of_its_samples(world_size: int) -> None:
    models = [linear(1) for _ in range(world_size)]

    def body(group: ThreadGroup) -> list[torch.Tensor]:
        job = thread_job(group, BATCH, 2)
        model, optimizer = job.prepare(models[group.rank], torch.optim.SGD(models[group.rank].parameters(), lr=0.1))
        loader = job.dataloader(TensorDataset(X, Y), shuffle=True, seed=SEED)
        found, rows = [], []
        for _ in job.epochs(1):
            for x, _ in loader:
                if job.micro is not None and job.micro.first:
                    rows = []
                rows.append(x[: job.samples])
                job.backward(model(x).mean())
                if job.sync_gradients:
                    found.append(job.gather(torch.cat(rows)))
                optimizer.step()
        return found

    for found in run_ranks(world_size, body):
        assert len(found) == len(batches(0))
        assert all(torch.equal(rows, x) for rows, (x, _) in zip(found, batches(0), strict=True))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("counts", [(2, 0, 3), (0, 0, 0)])
def test_rows_of_any_type_and_number_keep_their_bits(dtype: torch.dtype, counts: tuple[int, ...]) -> None:
    whole = torch.randn(sum(counts), 3).mul(3).to(dtype)
    results = run_ranks(3, lambda group: thread_job(group, 4, 4).gather(whole.split(counts)[group.rank]))
    assert all(torch.equal(found, whole) and found.dtype == dtype for found in results)
    told = json.loads(json.dumps(encode_sums({"rows": whole})))
    assert torch.equal(decode_sums(told)["rows"], whole) and decode_sums(told)["rows"].dtype == dtype


@pytest.mark.parametrize(
    ("rows", "kind", "said"),
    [
        ([1.0], TypeError, "'rows' is list; it must be a tensor with a row for each sample"),
        (torch.tensor(1.0), TypeError, "'rows' is a single number; it must be a tensor with a row"),
        ({"a": torch.zeros(2), "b": torch.zeros(3)}, ValueError, r"got a \[2\], b \[3\]; it needs as many rows"),
        (lambda x: x, TypeError, "takes this rank's rows, or a function and the loader"),
    ],
)
def test_what_are_no_rows_is_refused(rows: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        run_ranks(1, lambda group: thread_job(group, 4, 4).gather(rows))


def test_a_function_gives_a_row_for_each_sample_and_leaves_gradients_on() -> None:
    def body(group: ThreadGroup) -> None:
        job = thread_job(group, 4, 4)
        with pytest.raises(ValueError, match=r"got rows \[3\]; it needs a row for each of the 4 samples"):
            job.gather(lambda x, y: x[1:, 0], job.dataloader(TensorDataset(X[:4], Y[:4])))
        assert torch.is_grad_enabled()

    run_ranks(1, body)


def test_ranks_with_other_rows_are_named() -> None:
    with pytest.raises(RuntimeError, match=r"different values: .*rows float32\[\*, 2\].*rows float32\[\*, 3\]"):
        run_ranks(2, lambda group: thread_job(group, 4, 4).gather(torch.zeros(1, 2 + group.rank)))


def test_what_is_too_large_is_not_kept_for_those_that_come_late() -> None:
    sums = Sums()
    sums.note("0.0.1", {"rows": torch.zeros(KEPT_BYTES, dtype=torch.uint8)})
    sums.note("0.0.2", {"rows": torch.zeros(KEPT_BYTES + 1, dtype=torch.uint8)})
    assert list(sums.known) == ["0.0.1"]
