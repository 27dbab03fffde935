"""The layout of gradients in flat memory, and of the few extra numbers that are reduced with them.

Gradients are reduced in buckets of one data type, in an order that is the same on every rank. The last bucket ends
with the *tail*: the agreement of the ranks (`signals`), which parameters were used, and the floating buffers, so that
none of them costs a collective of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

import torch

from elastic_launcher.torch.collectives.consensus import HEAD
from elastic_launcher.torch.collectives.operations import Sizes, Wire
from elastic_launcher.torch.shard.tensors import as_shard, is_sharded, local

BUCKET_BYTES = 8 * 2**20  # large enough to fill a link, small enough to overlap with the backward pass
Place = tuple[torch.Tensor, list[int], bool]
TAIL_TYPES = (torch.float32, torch.float64)  # carry whole numbers below 2**24 exactly


@dataclass(eq=False)
class Run:
    """Parameters of one parameter group that lie next to each other in a bucket.

    Attributes:
        group: The group's number.
        parameters: In the order of their place.
        start: Where they begin in the bucket.
        flat: Their gradients.
    """

    group: int
    parameters: list[torch.Tensor]
    start: int
    flat: torch.Tensor


@dataclass(eq=False)
class Bucket:
    """Parameters whose gradients are reduced together.

    Attributes:
        flat: The memory that is reduced: gradients, then (in some buckets) buffers, then (in the last one) the tail.
        parameters: The parameters, in the order of their place in ``flat``.
        indices: Their numbers within the layout.
        views: Their gradients' places, shaped like the parameters, or like this rank's parts of them.
        grads: What is put on the parameters in these places.
        gradient_numel: How many elements of ``flat`` are gradients.
        complete: Whether its last gradient has come, in the backward pass that runs.
        launched: Whether its reduction was started before the backward pass ended.
        runs: Its parameters by group, where the gradient noise is measured.
        sharded: Whether they are parts of a sharded model, reduced among the ranks with the same parts.
    """

    flat: torch.Tensor
    parameters: list[torch.Tensor]
    indices: list[int]
    views: list[torch.Tensor]
    grads: list[torch.Tensor]
    gradient_numel: int
    sharded: bool = False
    complete: bool = False
    launched: bool = False
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._starts = [view.data_ptr() for view in self.views]

    @property
    def moved(self) -> bool:
        """Whether a view has got other memory: a module moves the gradients of its parameters with them."""
        return [view.data_ptr() for view in self.views] != self._starts


@dataclass(eq=False)
class Layout:
    """The flat memory of one `backward` call's gradients.

    Attributes:
        buckets: In the order in which every rank reduces them; the last one holds the tail.
        parameters: All parameters, in model order.
        head: The part of the tail that carries the ranks' signals, and the numbers of the gradient noise.
        noise: The latter.
        used: One element a parameter: how many ranks have a gradient for it.
        buffers: The places of what rides along: flat memory, the numbers of the riders that lie in it in turn, and
            whether they are summed.
    """

    buckets: list[Bucket]
    parameters: list[torch.Tensor]
    head: torch.Tensor
    noise: torch.Tensor
    used: torch.Tensor
    buffers: list[Place]
    handles: list[torch.utils.hooks.RemovableHandle] = field(default_factory=list)
    _wire: Wire | None = None

    def wire(self, largest: Sizes) -> Wire:
        """Returns what a reduction of this memory exchanges, and beside it the ``largest`` values."""
        if self._wire is None or self._wire.largest != largest:
            sizes = sizes_of([bucket for bucket in self.buckets if not bucket.sharded])
            parts = sum(parameter.numel() for parameter in self.parameters if is_sharded(parameter))
            self._wire = Wire(sizes, self.buckets[-1].gradient_numel, largest, parts)
        return self._wire

    @cached_property
    def parts(self) -> list[Bucket]:
        """The buckets of a sharded model's parts."""
        return [bucket for bucket in self.buckets if bucket.sharded]

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """The parameter groups that have parameters here, where the gradient noise is measured."""
        return tuple(sorted({run.group for bucket in self.buckets for run in bucket.runs}))

    def remove_hooks(self) -> None:
        """Takes the hooks of this layout off its parameters."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()


def sizes_of(buckets: Sequence[Bucket]) -> Sizes:
    """Returns the sizes of buckets."""
    flats = [bucket.flat for bucket in buckets]
    return tuple((len(one), str(one.dtype).removeprefix("torch."), one.device.type) for one in flats)


def is_dense(parameter: torch.Tensor) -> bool:
    """Whether a parameter's gradient lies in flat memory as the parameter does in its own; row by row if not."""
    return parameter.is_contiguous() or (
        parameter.dim() == 4 and parameter.is_contiguous(memory_format=torch.channels_last)
    )


def place_in(flat: torch.Tensor, offset: int, like: torch.Tensor) -> torch.Tensor:
    """Returns the part of ``flat`` that is shaped (and, where it is dense, laid out in memory) like a tensor."""
    part = flat[offset : offset + like.numel()]
    return (
        part.as_strided(like.size(), like.stride(), part.storage_offset()) if is_dense(like) else part.view(like.shape)
    )


def _groups(parameters: Sequence[torch.Tensor]) -> list[list[int]]:
    """Divides the parameters, last one first as the backward pass reaches them, into buckets of one type and device."""
    open_groups: dict[tuple[torch.dtype, torch.device, bool], tuple[list[int], int]] = {}
    groups: list[list[int]] = []
    for index in reversed(range(len(parameters))):
        parameter = parameters[index]
        key = (parameter.dtype, parameter.device, is_sharded(parameter))
        members, size = open_groups.get(key, ([], 0))
        if not members:
            groups.append(members)
        members.append(index)
        size += local(parameter).nbytes
        open_groups[key] = ([], 0) if size >= BUCKET_BYTES else (members, size)
    return groups


@dataclass(eq=False)
class Last:
    """A copy of a step's gradient.

    Attributes:
        flats: The gradients of each bucket.
        step: The step.
        samples: Of the step.
        scale: What the gradient scaler had multiplied its loss by.
    """

    flats: list[torch.Tensor]
    step: int
    samples: int
    scale: float


@dataclass(eq=False)
class Slot:
    """The gradients of the k-th `backward` call of a step's micro-batches.

    Attributes:
        used: Which parameters have a gradient in it.
        weight: What its micro-batches count so far.
        loss: Their weighted sum of losses.
        overlap: Whether buckets are reduced while the backward pass runs.
        recording: Whether the order in which gradients come has still to be learned.
        call: Which call, from 0.
        only: The parameters that the call was for; None for all.
        versions: Of the parameters when the step's first micro-batch was added, in a call after the first one.
        fired: The parameters in the order in which their gradients came.
        pieces: How many micro-batches are in it.
        samples: How many samples.
        first: Square norms of the first micro-batch of several by parameter group, and its weight, on a rank alone.
        last: The gradient of an earlier step, on a rank alone.
    """

    layout: Layout
    used: list[bool]
    weight: float = 0.0
    loss: torch.Tensor | None = None
    overlap: bool = True
    recording: bool = True
    call: int = 0
    only: Sequence[torch.Tensor] | None = None
    versions: list[int] | None = None
    fired: list[torch.Tensor] = field(default_factory=list)
    pieces: int = 0
    samples: int = 0
    first: tuple[torch.Tensor, float] | None = None
    last: Last | None = None

    def begin_step(self) -> None:
        """Forgets the step before."""
        self.weight, self.loss, self.versions = 0.0, None, None
        self.used = [False] * len(self.layout.parameters)
        self.pieces, self.samples, self.first = 0, 0, None


def make_layout(
    parameters: Sequence[torch.Tensor],
    riders: Sequence[torch.Tensor],
    device: torch.device,
    numbers: Sequence[int] = (),
    noise: int = 0,
    *,
    summed: int = 0,
) -> Layout:
    """Lays the gradients, the tail and the buffers out in flat memory.

    Args:
        parameters: In an order that is the same on every rank.
        riders: What rides along, floating; as well.
        device: For a tail that no parameter could carry.
        numbers: The parameter group of each parameter, -1 for none, where the gradient noise is measured.
        noise: How many numbers it has in the tail.
        summed: How many riders are summed, the last ones; the others are averaged.
    """
    groups = _groups(parameters)
    if numbers:
        for group in groups:
            group.sort(key=lambda index: numbers[index])  # in few runs of one parameter group
    whole = [group for group in groups if not is_sharded(parameters[group[0]])]  # the tail is reduced over all ranks
    carriers = [group for group in whole if parameters[group[0]].dtype in TAIL_TYPES]
    if carriers:  # the tail is known last, so its bucket goes last
        groups.remove(carriers[-1])
        groups.append(carriers[-1])
    else:
        groups.append([])
    precise = torch.float64 if any(p.dtype == torch.float64 for p in parameters) else torch.float32
    tail_type = parameters[groups[-1][0]].dtype if groups[-1] else precise
    tail_device = parameters[groups[-1][0]].device if groups[-1] else device

    strangers: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    in_tail: list[int] = []
    for number, rider in enumerate(riders):
        if rider.dtype == tail_type and rider.device == tail_device:
            in_tail.append(number)
        else:
            strangers.setdefault((rider.dtype, rider.device), []).append(number)

    places: list[Place] = []
    buckets: list[Bucket] = []
    riding: list[Bucket] = []  # known as late as the tail: a bucket of gradients would wait for one before it
    for (kind, where), own in strangers.items():
        flat = torch.zeros(sum(riders[n].numel() for n in own), dtype=kind, device=where)
        places += _places(flat, own, riders, summed)
        riding.append(Bucket(flat, [], [], [], [], 0))
    head = used = torch.empty(0)
    rider_numel = sum(riders[n].numel() for n in in_tail)
    for group in groups:
        members = [parameters[i] for i in group]
        parts = [local(p) for p in members]
        numel = sum(p.numel() for p in parts)
        is_tail = group is groups[-1]
        extra = HEAD + noise + len(parameters) + rider_numel if is_tail else 0
        flat = torch.zeros(
            numel + extra,
            dtype=members[0].dtype if members else tail_type,
            device=members[0].device if members else tail_device,
        )
        views, offset = [], 0
        for part in parts:
            views.append(place_in(flat, offset, part))
            offset += part.numel()
        grads = [as_shard(member, view) for member, view in zip(members, views, strict=True)]
        sharded = bool(members) and is_sharded(members[0])
        if is_tail:
            buckets += riding
            head, offset = flat[offset : offset + HEAD + noise], offset + HEAD + noise
            used, offset = flat[offset : offset + len(parameters)], offset + len(parameters)
            places += _places(flat[offset : offset + rider_numel], in_tail, riders, summed)
        runs = _runs(flat, members, [numbers[index] for index in group]) if numbers else []
        buckets.append(Bucket(flat, members, group, views, grads, numel, sharded, runs=runs))
    return Layout(buckets, list(parameters), head, head[HEAD:], used, places)


def _places(flat: torch.Tensor, own: list[int], riders: Sequence[torch.Tensor], summed: int) -> list[Place]:
    """Divides memory among the riders that lie in it: those that are averaged, then those that are summed."""
    averaged = [number for number in own if number < len(riders) - summed]
    middle = sum(riders[number].numel() for number in averaged)
    halves = ((flat[:middle], averaged, False), (flat[middle:], own[len(averaged) :], True))
    return [half for half in halves if half[1]]


def _runs(flat: torch.Tensor, members: Sequence[torch.Tensor], numbers: Sequence[int]) -> list[Run]:
    """Divides a bucket into runs of one parameter group; what is in none is left out."""
    runs, start = [], 0
    for number, places in groupby(range(len(members)), key=lambda place: numbers[place]):
        own = [members[place] for place in places]
        end = start + sum(parameter.numel() for parameter in own)
        if number >= 0:
            runs.append(Run(number, own, start, flat[start:end]))
        start = end
    return runs
