"""Sums over data and over ranks: the evaluation of a data set, and single values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from elastic_launcher.batch_schedule import StepSamples
from elastic_launcher.torch import rng
from elastic_launcher.torch.collectives.group import Group
from elastic_launcher.torch.collectives.operations import EVALUATE, REDUCE
from elastic_launcher.torch.data.micro_batches import pieces_of
from elastic_launcher.torch.membership.membership import Division
from elastic_launcher.torch.shard.model import drop_gathered
from elastic_launcher.virtual_ranks import Block, OrderedSum

if TYPE_CHECKING:
    from elastic_launcher.torch.data.loader import ElasticLoader
    from elastic_launcher.torch.membership.membership import Membership
    from elastic_launcher.torch.reconfigure.recovery import Recovery
    from elastic_launcher.torch.session import Session

Number = int | float | torch.Tensor
COUNT = "count"
WEIGHT = "\0weight"


def evaluate(
    session: Session, recovery: Recovery, fn: Callable[..., Mapping[str, Number]], loader: ElasticLoader
) -> dict[str, Any]:
    """Runs ``fn`` over a data set, each sample once; see `Job.evaluate`."""
    session.need_membership("job.evaluate")
    totals = recovery.sums(
        EVALUATE,
        lambda membership: _evaluate_share(session, membership, fn, loader),
        lambda own: f"of {_shapes(own)} over {loader.size} samples",
        lambda group, own: _reduce(group, own, "sum"),
    )
    if session.virtual_ranks:
        totals = {name: _add_in_order(rows) for name, rows in totals.items()}
    return {name: int(value) if name == COUNT else _plain(value) for name, value in totals.items()}


def _evaluate_share(
    session: Session, membership: Membership, fn: Callable[..., Mapping[str, Number]], loader: ElasticLoader
) -> dict[str, torch.Tensor]:
    """Returns the sums over this rank's share of a data set; with virtual ranks, a row for each, zero if not here.

    Raises:
        GroupError: If a peer was lost meanwhile.
    """
    check, whole = membership.group.check, Division(membership.rank, membership.world_size)
    if not session.virtual_ranks:
        with rng.preserve(), session.buffers.kept():
            return _sum_up(session, whole, check, fn, loader)
    rows: dict[str, torch.Tensor] = {}
    with rng.preserve(), session.buffers.kept():
        for one in session.shares.divisions(whole):
            for name, value in _sum_up(session, one, check, fn, loader).items():
                rows.setdefault(name, value.new_zeros(session.virtual_ranks, *value.shape))
                if one.rank < one.ranks:
                    rows[name][one.rank] = value
    return rows


def _add_in_order(rows: torch.Tensor) -> torch.Tensor:
    """Returns the sum of the virtual ranks' rows, by the tree that holds at every world size."""
    total = OrderedSum(torch.add)
    for virtual_rank, row in enumerate(rows + 0.0):  # -0 is 0 on ranks that have added the zeros of others
        total.append(Block(virtual_rank), row)
    return total.total()


def _sum_up(
    session: Session,
    division: Division,
    check: Callable[[], None],
    fn: Callable[..., Mapping[str, Number]],
    loader: ElasticLoader,
) -> dict[str, torch.Tensor]:
    """Returns the sums over one share of a data set.

    Raises:
        GroupError: If a peer was lost meanwhile.
    """
    sums: dict[str, torch.Tensor] = {}
    count = 0
    with torch.no_grad():
        for batch, samples, counts in each_batch(session, loader, division, check):
            count += samples * counts
            for name, value in _call(fn, batch).items():
                part = _number(name, value)
                if not counts:  # learns the names and shapes of the sums; adds nothing
                    part = torch.zeros_like(part)
                sums[name] = sums[name] + part if name in sums else part
    sums[COUNT] = torch.tensor(float(count), dtype=torch.float64)
    return sums


def each_batch(
    session: Session, loader: ElasticLoader, division: Division, check: Callable[[], None]
) -> Iterator[tuple[Any, int, bool]]:
    """Yields the batches of a rank's share of a data set in order: each with how many samples it has, and whether they
    count. A rank without a share gets some that don't.

    Each virtual rank has its own random numbers. ``check`` raises `GroupError` if a peer was lost; ranks that share a
    model learn of that together, afterwards.
    """
    if session.virtual_ranks:
        rng.seed_all(rng.step_seed(session.seed, session.step, division.rank), session.device)
    most = session.shares.limited(session.max_batch_per_gpu)
    mine = session.shares.divided(loader.size, most, division)
    pieces = pieces_of(0, StepSamples(0, loader.size), [mine], most)
    for number, (piece, samples) in enumerate(zip(pieces, mine.micro_batches or (0,), strict=True)):
        if session.shards is None:
            check()
        loader.want(pieces[number : number + loader.ahead + 1])
        yield loader.take(piece), piece[2], samples > 0
    if session.shards is not None:
        drop_gathered(session.models)


def _call(fn: Callable[..., Mapping[str, Number]], batch: Any) -> Mapping[str, Number]:
    result = fn(*batch) if isinstance(batch, (tuple, list)) else fn(batch)
    if not isinstance(result, Mapping):
        raise TypeError(
            f"the function given to job.evaluate returned {type(result).__name__}; it must return a dict of sums "
            "over the batch"
        )
    if COUNT in result:
        raise ValueError(
            f"the function given to job.evaluate must not return {COUNT!r}: that is the number of samples, which "
            "is added"
        )
    return result


def _number(name: str, value: Number) -> torch.Tensor:
    """Returns a number or a tensor in memory of its own: the script may write into what it gave."""
    if isinstance(value, torch.Tensor) and not value.is_complex():
        return value.detach().to("cpu", torch.float64, copy=True)
    if isinstance(value, np.ndarray) and value.dtype.kind in "iuf":
        return torch.from_numpy(value.astype(np.float64))
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        what = "a complex tensor" if isinstance(value, torch.Tensor) else type(value).__name__
        raise TypeError(f"{name!r} is {what}; it must be a number or a tensor of real ones")
    return torch.tensor(float(value), dtype=torch.float64)


def _plain(value: torch.Tensor) -> float | torch.Tensor:
    return value.item() if value.numel() == 1 else value


def reduce_values(session: Session, recovery: Recovery, values: Any, op: str, weight: float) -> Any:
    """Reduces a number, a tensor or a dict of them over all ranks; see `Job.reduce`."""
    if op not in ("sum", "mean", "max", "min"):
        raise ValueError(f"op is {op!r}; it must be sum, mean, max or min")
    if not 0 <= weight < float("inf"):
        raise ValueError(f"weight is {weight}; it must be 0 or more and finite")
    session.need_membership("job.reduce")
    named = dict(values) if isinstance(values, Mapping) else {"value": values}
    own = {name: _number(name, value) for name, value in named.items()}
    if op == "mean":
        own = {name: value * weight if weight else torch.zeros_like(value) for name, value in own.items()}
        own[WEIGHT] = torch.tensor(float(weight), dtype=torch.float64)
    totals = recovery.sums(
        REDUCE,
        lambda membership: own,
        lambda mine: f"of the {op} of {_shapes(mine)}",
        lambda group, mine: _reduce(group, mine, "sum" if op == "mean" else op),
    )
    if op == "mean":
        total_weight = totals.pop(WEIGHT)
        totals = {name: value / total_weight for name, value in totals.items()}
    results = {name: _plain(value) for name, value in totals.items()}
    return results if isinstance(values, Mapping) else results["value"]


def _shapes(values: Mapping[str, torch.Tensor]) -> str:
    """Returns names and shapes of values, as a message names them."""
    named = sorted((name, list(value.shape)) for name, value in values.items() if name not in (COUNT, WEIGHT))
    return ", ".join(f"{name} {shape}" if shape else name for name, shape in named) or "nothing"


def _reduce(group: Group, values: dict[str, torch.Tensor], op: str) -> dict[str, torch.Tensor]:
    """Reduces named float64 tensors, the same ones on all ranks, in one collective."""
    if group.world_size == 1:
        return values
    names = sorted(values)
    flat = torch.cat([values[name].reshape(-1) for name in names])
    if op == "min":
        flat = -flat
    group.all_reduce(flat, op="sum" if op == "sum" else "max").wait()
    if op == "min":
        flat = -flat
    results, offset = {}, 0
    for name in names:
        numel = values[name].numel()
        results[name] = flat[offset : offset + numel].view(values[name].shape)
        offset += numel
    return results
