"""Brings together, with the gradient, what forward passes have changed: buffers of the models and tracked tensors.

Means and sums ride in the gradient's tail, largest values in a reduction beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from elastic_launcher.torch.collectives.consensus import LOSS_INDEX
from elastic_launcher.torch.collectives.operations import Sizes
from elastic_launcher.torch.gradients.buckets import Layout, Slot
from elastic_launcher.torch.state.buffers import ModelBuffers

_BELOW_SIGN = 2**63 - 1


def riders(buffers: ModelBuffers) -> list[torch.Tensor]:
    """Returns what rides in the tail as it is now: averaged buffers, then tracked means and sums."""
    return buffers.floating() + buffers.tracked.riding()


def form_of(rider: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of the type in which a rider is reduced: whole numbers are exact in float64, up to 2**53."""
    return rider if rider.is_floating_point() else rider.double()


def write_tail(slot: Slot, buffers: ModelBuffers, head: list[float], share: float) -> None:
    """Writes what this rank adds to the tail.

    Args:
        slot: The slot whose gradient is complete.
        buffers: What rides along.
        head: All of the head but the loss.
        share: The part of the step's samples that this rank has.
    """
    layout = slot.layout
    with torch.no_grad():
        numbers = head + [0.0] * len(layout.noise)
        numbers += map(float, slot.used)
        tail = layout.buckets[-1].flat[layout.buckets[-1].gradient_numel :]
        tail[: len(numbers)].copy_(torch.tensor(numbers, dtype=tail.dtype))
        if slot.loss is not None:
            layout.head[LOSS_INDEX].copy_(slot.loss)
    _write_riders(layout, buffers, share)


def _write_riders(layout: Layout, buffers: ModelBuffers, share: float) -> None:
    """Writes what this rank's forward passes have added, which had this share of the step's samples."""
    now, begin = riders(buffers), buffers.at_step_begin() + buffers.tracked.at_step_begin()
    before = [buffers.tracked.shifted.get(number, tensor) for number, tensor in enumerate(begin)]
    with torch.no_grad():
        for place, chosen, summed in layout.buffers:
            if share > 0:
                mine, then = _flatten(now, chosen, place), _flatten(before, chosen, place)
                torch.sub(mine, then, out=place).mul_(1.0 if summed else share).masked_fill_(mine == then, 0.0)
            else:
                place.zero_()  # not times zero: a NaN there would spread


def read_riders(layout: Layout, buffers: ModelBuffers) -> None:
    """Gives the riders their value before the step plus what was added, so that constants stay as they are."""
    now, begin = riders(buffers), buffers.at_step_begin() + buffers.tracked.at_step_begin()
    shifted = buffers.tracked.shifted
    with torch.no_grad():
        for place, chosen, summed in layout.buffers:
            values = _flatten(begin, chosen, place).add_(place)
            for number, part in zip(chosen, values.split([now[n].numel() for n in chosen]), strict=True):
                whole, rider = part.view(now[number].shape), now[number]
                if summed:  # a later reduction of this step counts what this rank has added in all of it
                    shifted[number] = whole - (rider - shifted.get(number, begin[number]))
                rider.copy_(whole)


def sizes_of_largest(buffers: ModelBuffers, device: torch.device) -> Sizes:
    """Returns the sizes of what `largest` returns."""
    kinds = _kinds(buffers)
    return tuple(
        (sum(one.numel() for one in some), str(kind).removeprefix("torch."), device.type) for kind, some in kinds
    )


def largest(buffers: ModelBuffers, device: torch.device, *, counts: bool) -> list[torch.Tensor]:
    """Returns the numbers of which the largest are wanted, those of 8 bits apart.

    They are the least ones of a rank on which no forward pass ``counts``: what it had before the step may be larger
    than what comes of it.
    """
    flats = [torch.cat([_ordered(one.reshape(-1)).to(device, kind) for one in some]) for kind, some in _kinds(buffers)]
    return flats if counts else [torch.full_like(flat, torch.iinfo(flat.dtype).min) for flat in flats]


def read_largest(buffers: ModelBuffers, flats: Sequence[torch.Tensor], *, counts: bool) -> None:
    """Gives buffers and tracked tensors the largest values over the ranks.

    They get those from before the step where no forward pass of any rank ``counts``.
    """
    if not flats:
        return
    with torch.no_grad():
        if not counts:
            before = buffers.whole_at_step_begin() + buffers.tracked.largest_at_step_begin()
            for tensor, then in zip(buffers.whole() + buffers.tracked.largest(), before, strict=True):
                tensor.copy_(then)
            return
        for (_, some), flat in zip(_kinds(buffers), flats, strict=True):
            for tensor, part in zip(some, flat.split([one.numel() for one in some]), strict=True):
                tensor.copy_((_numbers(part) if tensor.is_floating_point() else part).view(tensor.shape))


def _kinds(buffers: ModelBuffers) -> list[tuple[torch.dtype, list[torch.Tensor]]]:
    """Returns buffers and tracked tensors of which the largest value is taken, by the type that is reduced."""
    kinds: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in (one for one in buffers.whole() + buffers.tracked.largest() if one.numel()):
        kinds.setdefault(torch.uint8 if tensor.dtype in (torch.bool, torch.uint8) else torch.int64, []).append(tensor)
    return list(kinds.items())


def _ordered(flat: torch.Tensor) -> torch.Tensor:
    """Returns numbers as whole ones in the same order, with "not a number" as the largest."""
    if not flat.is_floating_point():
        return flat
    double = flat.double()
    bits = torch.where(double.isnan(), torch.nan, double).view(torch.int64)
    return bits ^ ((bits >> 63) & _BELOW_SIGN)


def _numbers(ordered: torch.Tensor) -> torch.Tensor:
    return (ordered ^ ((ordered >> 63) & _BELOW_SIGN)).view(torch.float64)


def _flatten(tensors: Sequence[torch.Tensor], chosen: list[int], like: torch.Tensor) -> torch.Tensor:
    """Returns the chosen tensors' elements one after the other, in memory of their own."""
    return torch.cat([tensors[n].reshape(-1).to(like.dtype) for n in chosen])
