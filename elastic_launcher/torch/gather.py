"""Brings rows that belong to samples together from all ranks, in the order of the samples."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from elastic_launcher import sampling
from elastic_launcher.torch import rng
from elastic_launcher.torch.collectives.group import Group
from elastic_launcher.torch.collectives.operations import GATHER
from elastic_launcher.torch.membership.membership import Division
from elastic_launcher.torch.state.course import KEPT_BYTES
from elastic_launcher.torch.step.reductions import each_batch

if TYPE_CHECKING:
    from elastic_launcher.torch.data.loader import ElasticLoader
    from elastic_launcher.torch.reconfigure.recovery import Recovery
    from elastic_launcher.torch.session import Session

Rows = torch.Tensor | Mapping[str, torch.Tensor]
ALONE = "rows"
"""The name of rows that have none."""


def gather(
    session: Session, recovery: Recovery, rows: Rows | Callable[..., Rows], loader: ElasticLoader | None
) -> Rows:
    """Brings rows of all ranks together; see `Job.gather`."""
    if callable(rows) != (loader is not None):
        raise TypeError(
            "job.gather takes this rank's rows, or a function and the loader over whose batches it is called"
        )
    if session.membership is None and session.course.is_ahead(session.position):
        warnings.warn(
            f"what job.gather came to here was more than {KEPT_BYTES >> 20} MiB, which is not kept for a process that "
            "comes later: it gets what its own model gives before this process is admitted. Keep nothing of it",
            stacklevel=4,
        )
        found = _own(session, rows, loader, Division(0, 1), lambda: None)
    else:
        session.need_membership(GATHER)
        found = recovery.sums(
            GATHER,
            lambda membership: _own(
                session, rows, loader, Division(membership.rank, membership.world_size), membership.group.check
            ),
            lambda own: "of " + ", ".join(f"{name} {_form(tensor)}" for name, tensor in sorted(own.items())),
            _bring_together,
        )
    if loader is not None and loader.source.permutes and all(len(tensor) == loader.size for tensor in found.values()):
        drawn = torch.from_numpy(sampling.indices(loader.size, loader.seed, 0, 0, loader.size, True))
        found = {name: tensor[drawn.argsort()] for name, tensor in found.items()}
    return found[ALONE] if list(found) == [ALONE] else found


def _own(
    session: Session,
    rows: Rows | Callable[..., Rows],
    loader: ElasticLoader | None,
    division: Division,
    check: Callable[[], None],
) -> dict[str, torch.Tensor]:
    """Returns this rank's rows.

    Raises:
        GroupError: If a peer was lost meanwhile.
    """
    if loader is None or not callable(rows):
        return _checked(rows)
    parts: list[dict[str, torch.Tensor]] = []
    with rng.preserve(), session.buffers.kept(), torch.no_grad():
        for one in session.shares.divisions(division):
            for batch, samples, counts in each_batch(session, loader, one, check):
                part = _checked(rows(*batch) if isinstance(batch, (tuple, list)) else rows(batch), samples)
                parts.append(part if counts else {name: tensor[:0] for name, tensor in part.items()})
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _checked(rows: Any, samples: int | None = None) -> dict[str, torch.Tensor]:
    """Returns copies of rows by name.

    Raises:
        TypeError: If they are none.
        ValueError: If there are not as many of each name, or not one for each of the samples.
    """
    found = dict(rows) if isinstance(rows, Mapping) else {ALONE: rows}
    for name, tensor in found.items():
        if not isinstance(tensor, torch.Tensor) or not tensor.dim():
            what = "a single number" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise TypeError(f"job.gather: {name!r} is {what}; it must be a tensor with a row for each sample")
    counts = {len(tensor) for tensor in found.values()}
    if len(counts) != 1 or (samples is not None and counts != {samples}):
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in found.items())
        wanted = "as many rows under each name" if samples is None else f"a row for each of the {samples} samples"
        raise ValueError(f"job.gather got {shapes or 'nothing'}; it needs {wanted}")
    return {str(name): tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in found.items()}


def _bring_together(group: Group, own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Exchanges rows of the same names and forms; the ranks' shares follow one another in rank order."""
    if group.world_size == 1:
        return own
    names = sorted(own)
    head = json.dumps([len(own[name]) for name in names]).encode() + b"\n"
    brought = group.all_gather_bytes(head + b"".join(_octets(own[name]).numpy().tobytes() for name in names))
    parts: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    for text in brought:
        start = text.index(b"\n") + 1
        for name, count in zip(names, json.loads(text[:start]), strict=True):
            like = own[name]
            size = count * math.prod(like.shape[1:]) * like.itemsize
            flat = torch.frombuffer(bytearray(text[start : start + size]) or bytearray(1), dtype=torch.uint8)[:size]
            parts[name].append(flat.view(like.dtype).view(count, *like.shape[1:]))
            start += size
    return {name: torch.cat(parts[name]) for name in own}


def _octets(rows: torch.Tensor) -> torch.Tensor:
    return rows.reshape(-1).view(torch.uint8)


def _form(rows: torch.Tensor) -> str:
    return f"{str(rows.dtype).removeprefix('torch.')}{['*', *rows.shape[1:]]}".replace("'", "")
