"""What the tests of whole jobs read from the ranks' ledgers: that a completed step is done once, by all that go on."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from tests.support.ledgers import Plain, assert_each_sample_once, assert_no_step_done_again, assert_plain_steps, order

SAMPLES, BATCH, MICRO = 97, 24, 24
Ledger = list[dict[str, Any]]


def row(
    member: int, step: int, rank: int, of: int, generation: int, *, sync: bool = True, pid: int = 0
) -> dict[str, Any]:
    """Returns what a rank that works on its whole share at once writes of a step."""
    whole = order(SAMPLES, BATCH, step)
    share = whole[rank * len(whole) // of : (rank + 1) * len(whole) // of]
    place = {"rank": rank, "world_size": of, "generation": generation, "step": step}
    return {
        "member": member,
        "pid": pid or 100 + member,
        **place,
        "samples": len(share),
        "indices": share,
        "sync": sync,
    }


def trained(member: int, rank: int, steps: range, *, of: int, generation: int, pid: int = 0) -> Ledger:
    return [row(member, step, rank, of, generation, pid=pid) for step in steps]


ONE = trained(1, 0, range(3), of=2, generation=1)
TWO = trained(2, 1, range(3), of=2, generation=1)
BROKEN_OFF = row(2, 3, 1, 2, 1, sync=False)


@pytest.mark.parametrize(
    "ledgers",
    [
        pytest.param([ONE, TWO], id="an undisturbed training"),
        pytest.param(
            [
                [*ONE, row(1, 3, 0, 2, 1, sync=False), *trained(1, 0, range(3, 6), of=1, generation=2)],
                [*TWO, {"begun": True, **BROKEN_OFF}],
            ],
            id="an unfinished step is done again",
        ),
        pytest.param(
            [
                [*ONE, row(1, 3, 0, 2, 1), *trained(1, 0, range(4, 6), of=2, generation=2)],
                [*TWO, row(2, 3, 1, 2, 1), *trained(2, 1, range(4, 6), of=2, generation=2)],
            ],
            id="one that has lost the reduction takes what came of it from the other",
        ),
        pytest.param(
            [
                [*ONE, row(1, 3, 0, 2, 1)],
                [*TWO, BROKEN_OFF, *trained(2, 0, range(3, 6), of=1, generation=2)],
            ],
            id="the most advanced one has died",
        ),
        pytest.param(
            [ONE, TWO, trained(3, 0, range(1, 5), of=1, generation=2)], id="others go on from a checkpoint of step 1"
        ),
        pytest.param(
            [ONE, TWO, trained(1, 0, range(1, 5), of=1, generation=2, pid=900)],
            id="another process of that member does",
        ),
    ],
)
def test_what_may_happen(ledgers: list[Ledger]) -> None:
    assert (
        assert_each_sample_once(ledgers, SAMPLES, BATCH, MICRO) == max(r["step"] for rows in ledgers for r in rows) + 1
    )


@pytest.mark.parametrize(
    ("ledgers", "message"),
    [
        pytest.param(
            [
                [*ONE, *trained(1, 0, range(2, 4), of=2, generation=2)],
                [*TWO, *trained(2, 1, range(2, 4), of=2, generation=2)],
            ],
            r"member 1 \(process 101\) had completed step 2 and began step 2",
            id="a step is done twice by all, as by a launcher that came back",
        ),
        pytest.param(
            [[*ONE, row(1, 2, 0, 2, 1)], [*TWO, row(2, 2, 1, 2, 1)]],
            "had completed step 2 and began step 2",
            id="the same, in the same generation",
        ),
        pytest.param(
            [
                [*ONE, row(1, 3, 0, 2, 1), *trained(1, 0, range(3, 6), of=2, generation=2)],
                [*TWO, BROKEN_OFF, *trained(2, 1, range(3, 6), of=2, generation=2)],
            ],
            "member 1 .* had completed step 3 and began step 3",
            id="all go back to the state of the one that was behind",
        ),
        pytest.param(
            [
                [*ONE, row(1, 3, 0, 2, 1), {"begun": True, **row(1, 3, 0, 2, 2, sync=False)}],
                [*TWO, BROKEN_OFF, *trained(2, 0, range(3, 6), of=1, generation=3)],
            ],
            "member 1 .* had completed step 3 and began step 3",
            id="the same, and the most advanced one dies in it",
        ),
        pytest.param(
            [
                [*ONE, row(1, 3, 0, 2, 1), *trained(1, 0, range(4, 6), of=2, generation=3)],
                [*TWO, BROKEN_OFF, row(2, 3, 0, 1, 2), *trained(2, 1, range(4, 6), of=2, generation=3)],
            ],
            "step 3 was done again beside member 1, which held it",
            id="another one does it again meanwhile",
        ),
    ],
)
def test_a_completed_step_that_is_done_again_is_seen(ledgers: list[Ledger], message: str) -> None:
    """The samples alone don't show it: each step's last attempt is whole."""
    with pytest.raises(AssertionError, match=message):
        assert_no_step_done_again(ledgers)
    with pytest.raises(AssertionError, match=message):
        assert_each_sample_once(ledgers, SAMPLES, BATCH, MICRO)


PLAIN = Plain(nn.Identity(), losses=[3.0, 2.0, 1.0], rates=[], norms=[0.3, 0.2, 0.1], weights=[[5.0, 6.0]] * 3)


def measured(member: int, step: int, **other: Any) -> dict[str, Any]:
    """Returns what a rank writes of a step that was that of plain torch, or not quite."""
    of_plain = {"loss": PLAIN.losses[step], "norm": PLAIN.norms[step], "weights": PLAIN.weights[step]}
    return {**row(member, step, member - 1, 2, 1), **of_plain, **other}


MEASURED = [measured(1, step) for step in range(3)]


def test_a_step_may_be_taken_from_another_rank_and_be_under_way() -> None:
    other = [measured(2, 0), measured(2, 1, norm=0.0), BROKEN_OFF]
    assert_plain_steps([MEASURED, other], PLAIN, adopted={1})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        pytest.param([measured(2, 1, loss=2.0 + 1e-7)], "step 1 of member 2", id="a loss"),
        pytest.param([measured(2, 1, norm=0.2 + 1e-7)], "step 1 of member 2", id="a norm of the gradient"),
        pytest.param([measured(2, 2, norm=0.0)], "step 2 of member 2", id="no gradient in a step that did not break"),
        pytest.param(
            [measured(2, 1, norm=0.0, weights=[5.0, 6.1])], "step 1 of member 2", id="weights that were taken"
        ),
    ],
)
def test_a_step_that_is_not_that_of_plain_torch_is_seen(rows: Ledger, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_plain_steps([MEASURED, rows], PLAIN, adopted={1})


def test_a_step_that_nobody_has_computed_is_seen() -> None:
    with pytest.raises(AssertionError, match="nobody has computed some steps"):
        assert_plain_steps([[*MEASURED[:2], measured(1, 2, norm=0.0)]], PLAIN, adopted={2})
