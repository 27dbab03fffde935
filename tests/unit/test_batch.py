"""One optimizer step's plan: shares that tile the batch at every world size, in micro-batches that fit."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from elastic_launcher import batch
from elastic_launcher.batch import Share, StepPlan, fewest_useful_nodes, plan_step, share, share_of_node
from elastic_launcher.batch_schedule import BatchSchedule, DataPass, StepSamples

steps = st.tuples(st.integers(1, 3000), st.integers(1, 300), st.integers(1, 200))


@given(steps)
@example((1, 1, 64))
@example((100, 8, 7))
@example((256, 64, 3))
def test_shares_tile_the_batch_and_differ_by_at_most_one(step: tuple[int, int, int]) -> None:
    samples, _, world_size = step
    sizes = [one.samples for one in plan_step(*step).shares]
    assert len(sizes) == world_size
    assert sum(sizes) == samples
    assert max(sizes) - min(sizes) <= 1
    assert [one.start for one in plan_step(*step).shares] == [0, *accumulate(sizes)][:-1]


@given(steps)
@example((7, 3, 9))
def test_the_first_ranks_have_the_larger_shares(step: tuple[int, int, int]) -> None:
    samples, _, world_size = step
    sizes = [one.samples for one in plan_step(*step).shares]
    assert sizes == [samples // world_size + 1] * (samples % world_size) + [samples // world_size] * (
        world_size - samples % world_size
    )


@given(steps)
def test_micro_batches_fit_and_are_as_few_and_as_even_as_they_go(step: tuple[int, int, int]) -> None:
    _, most, _ = step
    for one in plan_step(*step).shares:
        sizes = one.micro_batches
        assert all(1 <= size <= most for size in sizes)
        assert len(sizes) == -(-one.samples // most)
        assert not sizes or max(sizes) - min(sizes) <= 1
        assert list(sizes) == sorted(sizes, reverse=True)


@given(steps)
@example((4, 32, 3))
@example((1, 1, 4))
@example((3, 3, 64))
@example((6, 2, 2))
def test_batch_statistics_never_see_one_sample_but_of_a_step_that_has_one(step: tuple[int, int, int]) -> None:
    samples, most, world_size = step
    impossible = samples > 1 and (most == 1 or (most == 2 and samples % 2 == 1))
    if impossible:
        with pytest.raises(ValueError, match="one of a single sample, of which batch norm can't take statistics"):
            plan_step(*step, batch_statistics=True)
        return
    plan = plan_step(*step, batch_statistics=True)
    sizes = [one.samples for one in plan.shares]
    assert sum(sizes) == samples
    assert [one.start for one in plan.shares] == [0, *accumulate(sizes)][:-1]
    micro_batches = [size for one in plan.shares for size in one.micro_batches]
    assert samples == 1 or min(micro_batches) > 1
    assert max(micro_batches) <= most
    assert all(len(one.micro_batches) == -(-one.samples // most) for one in plan.shares)
    # as even as it goes: as many ranks work as can, and their shares differ by one (by two where all must be even)
    working = [size for size in sizes if size]
    assert len(working) == min(world_size, max(1, samples // 2))
    assert max(working) - min(working) <= (2 if most == 2 else 1)
    assert sizes == sorted(sizes, reverse=True)


@given(steps)
def test_batch_statistics_change_no_division_that_has_no_single_sample(step: tuple[int, int, int]) -> None:
    plain = plan_step(*step)
    if step[1] > 2 and plain.shares[-1].samples > 1:
        assert plan_step(*step, batch_statistics=True) == plain


@given(steps, st.data())
def test_a_rank_finds_its_share_alone(step: tuple[int, int, int], data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, step[2] - 1))
    assert share(*step, rank) == plan_step(*step).shares[rank]


@given(steps)
def test_accumulation_is_the_largest_number_of_micro_batches(step: tuple[int, int, int]) -> None:
    plan = plan_step(*step)
    assert plan.accumulation == max(len(one.micro_batches) for one in plan.shares)
    assert (plan.samples, plan.max_batch_per_gpu, plan.world_size) == step


@pytest.mark.parametrize(
    ("step", "shares"),
    [
        ((256, 64, 1), [(0, (64, 64, 64, 64))]),
        ((256, 64, 3), [(0, (43, 43)), (86, (43, 42)), (171, (43, 42))]),
        ((10, 4, 2), [(0, (3, 2)), (5, (3, 2))]),
        ((2, 8, 4), [(0, (1,)), (1, (1,)), (2, ()), (2, ())]),
        ((1, 1, 1), [(0, (1,))]),
    ],
)
def test_plans_as_written_down(step: tuple[int, int, int], shares: list[tuple[int, tuple[int, ...]]]) -> None:
    assert plan_step(*step) == StepPlan(step[0], step[1], tuple(Share(*one) for one in shares))


def test_a_rank_of_very_many_costs_no_more_than_its_micro_batches() -> None:
    assert share(10**15 + 1, 10**6, 10**9, 10**9 - 1) == Share(10**15 + 1 - 10**6, (10**6,))


@given(st.integers(1, 5000), st.integers(1, 700), st.booleans())
@example(100, 100, True)
@example(101, 100, True)
@example(99, 100, True)
def test_an_epoch_is_its_steps(dataset_size: int, global_batch_size: int, drop_last: bool) -> None:
    whole = DataPass(BatchSchedule.fixed(global_batch_size), dataset_size, drop_last=drop_last)
    sizes = [whole.samples(step).count for step in range(whole.steps)]
    left_out = dataset_size % global_batch_size if drop_last else 0
    assert sum(sizes) == dataset_size - left_out
    assert all(size == global_batch_size for size in sizes[:-1])
    assert all(1 <= size <= global_batch_size for size in sizes)
    with pytest.raises(ValueError, match=f"step_in_epoch is {whole.steps}; the epoch has {whole.steps} steps"):
        whole.samples(whole.steps)


@given(st.integers(1, 3000), st.integers(1, 16), st.integers(1, 64))
def test_the_fewest_useful_nodes_have_no_larger_share_and_one_less_would(
    global_batch_size: int, nproc_per_node: int, max_nodes: int
) -> None:
    def largest(nodes: int) -> int:
        return plan_step(global_batch_size, 1, nodes * nproc_per_node).shares[0].samples

    fewest = fewest_useful_nodes(global_batch_size, nproc_per_node, max_nodes)
    assert 1 <= fewest <= max_nodes
    assert largest(fewest) == largest(max_nodes)
    assert fewest == 1 or largest(fewest - 1) > largest(max_nodes)


@pytest.mark.parametrize(
    ("arguments", "fewest"),
    [((10, 1, 9), 5), ((10, 1, 10), 10), ((10, 1, 99), 10), ((10, 2, 4), 3), ((1, 8, 50), 1), ((256, 8, 4), 4)],
)
def test_useful_nodes_as_written_down(arguments: tuple[int, int, int], fewest: int) -> None:
    assert fewest_useful_nodes(*arguments) == fewest


def epoch_of(dataset_size: int, global_batch_size: int) -> int:
    return DataPass(BatchSchedule.fixed(global_batch_size), dataset_size).steps


def samples_of_step(dataset_size: int, global_batch_size: int, step_in_epoch: int) -> StepSamples:
    return DataPass(BatchSchedule.fixed(global_batch_size), dataset_size).samples(step_in_epoch)


CALLS: list[tuple[Callable[..., Any], dict[str, int]]] = [
    (share, {"samples": 8, "max_batch_per_gpu": 2, "world_size": 2, "rank": 1}),
    (plan_step, {"samples": 8, "max_batch_per_gpu": 2, "world_size": 2}),
    (epoch_of, {"dataset_size": 8, "global_batch_size": 2}),
    (samples_of_step, {"dataset_size": 8, "global_batch_size": 2, "step_in_epoch": 1}),
    (fewest_useful_nodes, {"global_batch_size": 8, "nproc_per_node": 2, "max_nodes": 2}),
]


@pytest.mark.parametrize("value", [-1, 0, 1.0, 2.5, float("nan"), True, np.True_, "2", None, [2]], ids=repr)
@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [(function, arguments, name) for function, arguments in CALLS for name in arguments],
    ids=lambda value: getattr(value, "__name__", value) if not isinstance(value, dict) else "",
)
def test_what_is_no_whole_number_is_named(
    function: Callable[..., Any], arguments: dict[str, int], name: str, value: Any
) -> None:
    least = 0 if name in ("rank", "step_in_epoch") else 1
    if type(value) is int and value >= least:
        assert function(**arguments | {name: value}) is not None
        return
    with pytest.raises(ValueError) as caught:
        function(**arguments | {name: value})
    assert str(caught.value) == f"{name} is {value!r}; it must be a whole number, {least} or more"


@pytest.mark.parametrize("nproc_per_node", [1, 2, 4])
@pytest.mark.parametrize("samples", [1, 3, 24, 25, 97])
@pytest.mark.parametrize("most", [1, 2, 5, 100])
def test_the_ranks_of_a_node_that_share_a_model_run_as_many_micro_batches(
    nproc_per_node: int, samples: int, most: int
) -> None:
    for nodes in range(1, 6):
        world_size = nodes * nproc_per_node
        shares = [share_of_node(samples, most, world_size, rank, nproc_per_node) for rank in range(world_size)]
        plain = [share(samples, most, world_size, rank) for rank in range(world_size)]
        assert [(one.start, one.samples) for one in shares] == [(one.start, one.samples) for one in plain]
        for node in range(nodes):
            own = slice(node * nproc_per_node, (node + 1) * nproc_per_node)
            runs = {len(one.micro_batches) for one in shares[own]}
            assert runs == {max(len(one.micro_batches) for one in plain[own])}
        assert all(size <= most for one in shares for size in one.micro_batches)


def test_a_world_that_is_no_multiple_of_a_node_is_named() -> None:
    with pytest.raises(ValueError, match="world_size is 5; it must be a multiple of nproc_per_node, 2"):
        share_of_node(8, 2, 5, 0, 2)


def test_a_rank_beyond_the_world_is_named() -> None:
    with pytest.raises(ValueError, match="rank is 4; it must be below the world size, 4"):
        share(8, 2, 4, 4)


def test_numpy_integers_count_and_do_not_spread() -> None:
    plan = plan_step(np.int32(10), np.int64(4), np.uint8(3))  # type: ignore[arg-type]
    assert plan == plan_step(10, 4, 3)
    numbers = [
        plan.samples,
        plan.max_batch_per_gpu,
        *(n for one in plan.shares for n in (one.start, *one.micro_batches)),
    ]
    assert {type(number) for number in numbers} == {int}


def test_plans_do_not_change() -> None:
    with pytest.raises(AttributeError):
        plan_step(8, 2, 2).samples = 9  # type: ignore[misc]


def test_the_standard_library_is_all_it_needs() -> None:
    tree = ast.parse(Path(batch.__file__).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {str(module).partition(".")[0] for module in modules} <= sys.stdlib_module_names
