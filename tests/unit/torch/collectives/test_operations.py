"""Ranks that are about to do different things together are found out, and each is named."""

from __future__ import annotations

import pytest

from elastic_launcher.torch.collectives.operations import (
    BACKWARD,
    BREAK,
    END,
    EVALUATE,
    REDUCE,
    STOP,
    Operation,
    Wire,
    find_common,
    name_acts,
    name_operations,
    read_operation,
)

WIRE = Wire(((100, "float32", "cpu"), (60, "float64", "cpu")), 20, ((3, "int64", "cpu"),))
STEP, OTHER = Operation(BACKWARD, 0, 1, WIRE), Operation(BACKWARD, 0, 0, WIRE)
SUMS = Operation(EVALUATE, content="of loss over 97 samples")


@pytest.mark.parametrize("operation", [STEP, SUMS, Operation(END), Operation(STOP)])
def test_a_peer_reads_the_same_operation(operation: Operation) -> None:
    assert read_operation(operation.to_json(7, "optimizer 0")) == (operation, 7, "optimizer 0")


@pytest.mark.parametrize(
    ("operations", "common"),
    [
        ([STEP, STEP], STEP),
        ([STEP, OTHER], None),
        ([STEP, Operation(BACKWARD, 1, 1, WIRE)], None),
        ([STEP, Operation(BACKWARD, 0, 1, Wire(WIRE.buckets, 20, ((3, "uint8", "cpu"),)))], None),
        ([STEP, SUMS], None),
        ([SUMS, SUMS], SUMS),
        ([SUMS, Operation(EVALUATE, content="of loss over 98 samples")], None),
        ([Operation(STOP), STEP], STEP),
        ([STEP, Operation(BREAK)], STEP),
        ([Operation(STOP), SUMS], None),
        ([Operation(BREAK), Operation(BREAK)], Operation(BREAK)),
        ([Operation(END), Operation(BREAK)], None),
    ],
)
def test_what_all_ranks_do(operations: list[Operation], common: Operation | None) -> None:
    assert find_common(operations) == common


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [(STEP, 25), (OTHER, 25)],
            "rank 0 is in job.backward for optimizer 1 (call 1 of step 25), "
            "rank 1 is in job.backward for optimizer 0 (call 1 of step 25); every rank has to make the same calls",
        ),
        (
            [(SUMS, 7), (Operation(BACKWARD, 1, -1, WIRE), 7), (SUMS, 7)],
            "ranks 0, 2 are in job.evaluate of loss over 97 samples at step 7, rank 1 is in job.backward (call 2 of",
        ),
        (
            [(SUMS, 40), (Operation(END), 40), (Operation(BREAK), 39)],
            "rank 1 is at the end of job.epochs, step 40, rank 2 is at a break out of the training loop, step 39",
        ),
        (
            [(Operation(REDUCE, content="of the sum of a"), 3), (Operation(REDUCE, content="of the max of a"), 3)],
            "ranks reduce different values: rank 0 is in job.reduce of the sum of a at step 3, rank 1 is in job.reduce",
        ),
        (
            [(STEP, 4), (Operation(BACKWARD, 0, 1, Wire(WIRE.buckets[:1])), 4)],
            "ranks reduce different gradients: rank 0 is in job.backward for optimizer 1 (call 1 of step 4) with 163 "
            "numbers to reduce, rank 1 is in job.backward for optimizer 1 (call 1 of step 4) with 100 numbers",
        ),
    ],
)
def test_each_rank_is_named(rows: list[tuple[Operation, int]], said: str) -> None:
    assert said in name_operations(rows)


def test_what_acted_on_each_rank_is_named() -> None:
    said = name_acts(["optimizer 0, scheduler 0", "", "optimizer 1", "optimizer 1"], 6)
    assert "after the last reduction before step 6" in said
    assert "on rank 0: optimizer 0, scheduler 0; on ranks 2, 3: optimizer 1. Every rank" in said
