"""Values that a script reduces over its ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from tests.support.thread_group import ThreadGroup, run_ranks, thread_job

SIZES = (1, 2, 3, 5)


def reduced(world_size: int, values: Any, **options: Any) -> list[Any]:
    """What each rank gets; ``values`` and options that can be called are asked with the rank."""

    def body(group: ThreadGroup) -> Any:
        own = {name: option(group.rank) if callable(option) else option for name, option in options.items()}
        return thread_job(group, 8, 4).reduce(values(group.rank), **own)

    return run_ranks(world_size, body)


@pytest.mark.parametrize("world_size", SIZES)
@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
def test_a_number_is_reduced_to_the_same_number_on_all_ranks(world_size: int, op: str) -> None:
    numbers = [3.0, -1.5, 7.25, 0.0, 2.0][:world_size]
    expected = {"sum": sum(numbers), "mean": sum(numbers) / world_size, "max": max(numbers), "min": min(numbers)}
    assert reduced(world_size, lambda rank: numbers[rank], op=op) == [expected[op]] * world_size


@pytest.mark.parametrize("world_size", SIZES)
def test_a_mean_takes_weights_and_none_of_a_rank_without(world_size: int) -> None:
    """As over the tokens of each rank; a rank that has none may hold anything."""
    weights = [3, 0, 5, 1, 2][:world_size]
    values = [1.0, float("nan"), 4.0, -2.0, 0.5][:world_size]
    results = reduced(world_size, lambda rank: values[rank], weight=lambda rank: weights[rank])
    expected = sum(w * v for w, v in zip(weights, values, strict=True) if w) / sum(weights)
    assert results == [pytest.approx(expected, rel=1e-15)] * world_size
    assert len(set(results)) == 1


def test_a_dict_of_numbers_and_tensors_keeps_names_and_shapes() -> None:
    def values(rank: int) -> dict[str, Any]:
        return {"hits": rank + 1, "table": torch.full((2, 3), float(rank)), "one": torch.tensor(2.0 * rank)}

    for result in reduced(3, values, op="sum"):
        assert list(result) == ["hits", "one", "table"]
        assert result["hits"] == 6 and result["one"] == 6.0
        assert torch.equal(result["table"], torch.full((2, 3), 3.0, dtype=torch.float64))


@pytest.mark.parametrize("world_size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_evaluate_sums_what_a_function_writes_again_and_again_into_one_tensor(
    world_size: int, dtype: torch.dtype
) -> None:
    def body(group: ThreadGroup) -> Any:
        job, total = thread_job(group, 8, 2), torch.zeros(2, dtype=dtype)

        def fn(x: torch.Tensor) -> dict[str, torch.Tensor]:
            total.copy_(torch.stack([x.sum(), x.square().sum()]))
            return {"sums": total}

        sums = job.evaluate(fn, job.dataloader(TensorDataset(torch.arange(8, dtype=torch.float64))))["sums"]
        total.fill_(-1.0)
        return sums.tolist()

    assert run_ranks(world_size, body) == [[28.0, 140.0]] * world_size


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
def test_what_was_reduced_shares_no_memory_with_what_the_script_gave(world_size: int, op: str) -> None:
    def body(group: ThreadGroup) -> Any:
        own = torch.full((2,), 3.0, dtype=torch.float64)
        result = thread_job(group, 8, 4).reduce(own, op=op)
        own.zero_()
        seen = result.tolist()
        result.fill_(7.0)
        return seen, own.tolist()

    value = 3.0 * (world_size if op == "sum" else 1)
    assert run_ranks(world_size, body) == [([value] * 2, [0.0] * 2)] * world_size


@pytest.mark.parametrize(
    "number", [np.float32(1.5), np.int64(2), np.float64(0.25), np.array(3.0), np.array([[1.0, 2.0]])]
)
def test_numbers_and_arrays_of_numpy_are_reduced(number: Any) -> None:
    for result in reduced(2, lambda rank: number, op="sum"):
        assert np.array_equal(np.asarray(result).reshape(number.shape), 2 * number)


@pytest.mark.parametrize("number", [np.float32(1.5), np.int64(2), np.array([0.25])])
def test_job_log_takes_numbers_of_numpy(number: Any) -> None:
    run_ranks(1, lambda group: thread_job(group, 8, 4).log({"loss": number}))
    with pytest.raises(TypeError, match="'loss' is bool"):
        run_ranks(1, lambda group: thread_job(group, 8, 4).log({"loss": np.bool_(True)}))


@pytest.mark.parametrize(
    ("values", "options", "kind", "said"),
    [
        (lambda rank: 1.0, {"op": "median"}, ValueError, "op is 'median'; it must be sum, mean, max or min"),
        (lambda rank: "a lot", {}, TypeError, "is str; it must be a number or a tensor"),
        (lambda rank: torch.tensor(1j), {}, TypeError, "is a complex tensor; it must be a number or a tensor of real"),
        (lambda rank: {"on": True}, {}, TypeError, "'on' is bool; it must be a number or a tensor"),
        (lambda rank: {f"loss {rank}": 1.0}, {"op": "sum"}, RuntimeError, "ranks reduce different values: rank"),
        (lambda rank: 1.0, {"weight": -1.0}, ValueError, "weight is -1.0; it must be 0 or more and finite"),
    ],
)
def test_what_can_not_be_reduced_is_refused(values: Any, options: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        reduced(2, values, **options)
