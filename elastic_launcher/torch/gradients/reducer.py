"""The gradient of one optimizer step: Σ weight·gradient ÷ Σ weight over all micro-batches of all ranks, in flat memory.

The first micro-batch's gradients are copied into flat memory, later ones are added there by autograd itself; while the
last one's backward pass runs, buckets that are complete are reduced (see `overlap`). Those of a sharded model's parts
are copied as they come (see `arriving_parts`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from elastic_launcher.torch.collectives import consensus as wire
from elastic_launcher.torch.collectives.consensus import Agreement, Signals
from elastic_launcher.torch.collectives.group import Group
from elastic_launcher.torch.collectives.operations import Sizes, Wire
from elastic_launcher.torch.gradients import hooks
from elastic_launcher.torch.gradients.arriving_parts import taken
from elastic_launcher.torch.gradients.buckets import Bucket, Slot, make_layout, sizes_of
from elastic_launcher.torch.gradients.gathering import gather
from elastic_launcher.torch.gradients.noise_meter import NoiseMeter
from elastic_launcher.torch.gradients.overlap import Overlap, record_order
from elastic_launcher.torch.gradients.passes import Passes
from elastic_launcher.torch.gradients.tail import (
    form_of,
    largest,
    read_largest,
    read_riders,
    riders,
    sizes_of_largest,
    write_tail,
)
from elastic_launcher.torch.shard.tensors import local
from elastic_launcher.torch.state.buffers import ModelBuffers
from elastic_launcher.torch.state.tensors import describe, same_objects

OTHER_PARAMETERS = (
    "the parameters are not those with which this step began: between two of its micro-batches a part of a model was "
    "replaced, or an optimizer was given other parameters. Do that where a step is complete: under `if "
    "job.sync_gradients:`, after optimizer.step(), or between two loops"
)
LOOK_STEPS = 16  # after which it is looked again whether parameters have hooks


class Reducer:
    """Runs backward passes and reduces their gradients.

    Args:
        parameters: Returns the parameters that may have gradients, in an order that is the same on every rank.
        device: Where the tail lies when there is no parameter to carry it.
        name: Returns what messages call a parameter.
        too_few: See `Passes`.

    Attributes:
        in_backward: Whether a backward pass runs.
        retain_graph: Whether another backward pass may follow through the graph of the next one.
        passes: Sees to it that all of a step is made with the same weights.
        noise: Measures the gradient noise, if that is asked for.
    """

    def __init__(
        self,
        parameters: Callable[[], list[torch.Tensor]],
        buffers: ModelBuffers,
        device: torch.device,
        name: Callable[[torch.Tensor], str] = describe,
        too_few: Callable[[], str] = str,
    ) -> None:
        self.in_backward = False
        self.retain_graph = False
        self.noise: NoiseMeter | None = None
        self._name = name
        self.passes = Passes(name, too_few)
        self._handed_over = False
        self._parameters = parameters
        self._buffers = buffers
        self._device = device
        self._all: list[torch.Tensor] = []
        self._slots: dict[tuple[int, int], Slot] = {}
        self._trained: list[bool] = []
        self._averaged: list[Any] = []
        self._begun = False
        self._steps = 0  # since the parameters changed
        self._calls = 1  # the most of a micro-batch so far
        self._hooked: set[int] = set()  # which were warned of
        self._seeds: dict[tuple[torch.dtype, torch.device, float], torch.Tensor] = {}
        self._overlap = Overlap()

    @property
    def has_begun(self) -> bool:
        """Whether a part of the present step's gradient is being reduced already."""
        return self._overlap.has_begun

    def begin_step(self) -> None:
        """Forgets the last step's sums and gradients."""
        for parameter in self._all:
            parameter.grad = None
        self._begun = self._handed_over = False
        self.passes.begin_step()
        if self.noise is not None:
            self.noise.forget()

    def _lay_out(self) -> None:
        """Prepares the flat memory of a step: new memory if parameters were added, frozen or thawed since the last."""
        if self._begun:
            return
        self._begun = True
        self._buffers.follow()
        parameters = self._parameters()
        if not same_objects(parameters, self._all):
            self._drop_slots()
            self._steps = 0
        if self.noise is not None and self.noise.follow():
            self._drop_slots()
        if self._steps % LOOK_STEPS == 0:
            self._look_for_hooks(parameters)
        self._steps += 1
        self._all = parameters
        trained = [p.requires_grad for p in self._all]
        averaged = [(b.shape, b.dtype) for b in riders(self._buffers)]
        if trained != self._trained or averaged != self._averaged:
            self._drop_slots()
            self._trained, self._averaged = trained, averaged
        if any(bucket.moved for slot in self._slots.values() for bucket in slot.layout.buckets):
            self._drop_slots()
        for slot in self._slots.values():
            slot.begin_step()

    def _look_for_hooks(self, parameters: Sequence[torch.Tensor]) -> None:
        """Warns of hooks on parameters, once of each."""
        own = {handle.id for slot in self._slots.values() for handle in slot.layout.handles}
        hooked = [p for p in hooks.find(parameters, own) if id(p) not in self._hooked]
        hooks.warn(hooked, self._name)
        self._hooked |= {id(p) for p in hooked}

    def renew(self) -> None:
        """Allocates new memory after a failure: a surviving peer could still write into the old one.

        The group that was cut keeps that for so long.
        """
        self._overlap = Overlap()
        self._drop_slots()

    def _drop_slots(self) -> None:
        for slot in self._slots.values():
            slot.layout.remove_hooks()
        self._slots.clear()

    def slot(self, call: int, only: Sequence[torch.Tensor] | None, owner: int) -> Slot:
        """Returns the flat memory of the ``call``-th `backward` of a micro-batch, from 0, for some parameters or all.

        ``owner`` is the number of the optimizer that these belong to, -1 for all.
        """
        self._lay_out()
        self._calls = max(self._calls, call + 1)
        key = (call, owner)
        slot = self._slots.get(key)
        if slot is not None and only is not None and not same_objects(only, slot.only or ()):
            if slot.weight:
                raise RuntimeError(OTHER_PARAMETERS)
            self._slots.pop(key).layout.remove_hooks()
        if key not in self._slots:
            chosen = self._all if only is None else [p for p in self._all if any(p is q for q in only)]
            chosen = [p for p in chosen if p.requires_grad]
            measured = (self.noise.groups_of(chosen), self.noise.numel) if self.noise is not None else ()
            riding = [form_of(rider) for rider in riders(self._buffers)]
            layout = make_layout(chosen, riding, self._device, *measured, summed=self._buffers.tracked.summed)
            self._slots[key] = Slot(layout, [False] * len(chosen), call=call, only=only)
        if self.noise is not None:
            self.noise.claim(self._slots[key])
        return self._slots[key]

    def parts(self) -> Sizes:
        """Returns the sizes of what this rank reduces of a sharded model's gradients, apart from the others."""
        return sizes_of(self.slot(0, None, -1).layout.parts)

    def wire(self, slot: Slot) -> Wire:
        """Returns what a reduction of a slot exchanges."""
        return slot.layout.wire(sizes_of_largest(self._buffers, self._device))

    def rehearse(self, loss: torch.Tensor, call: int, only: Sequence[torch.Tensor] | None, owner: int) -> None:
        """Runs a backward pass of which nothing is kept but the order in which gradients come; lays memory out."""
        self.refuse_stray(self._parameters())
        self.begin_step()
        slot = self.slot(call, only, owner)
        if slot.recording:
            record_order(slot)
        with taken(slot, 1.0, counts=False):
            self._run(loss, None)
        if slot.recording:
            self._overlap.learn_order(slot)
        for parameter in self._all:
            parameter.grad = None

    def accumulate(
        self,
        slot: Slot,
        loss: torch.Tensor,
        *,
        scale: float,
        weight: float,
        logged: torch.Tensor,
        samples: int,
        group: Group | None,
        part: bool = False,
        counts: bool = True,
    ) -> None:
        """Adds one micro-batch's gradient to a slot.

        Args:
            slot: Where to.
            loss: A scalar, the mean over the micro-batch's samples.
            scale: What the gradient is multiplied by (its share of the step).
            weight: What ``logged`` counts; 0 leaves no trace.
            logged: The loss as the user knows it (before any loss scaling).
            samples: How many samples the micro-batch has.
            group: The group, when this micro-batch completes the step and complete buckets may be reduced at once;
                else None.
            part: Whether this rank is alone and has more micro-batches in the step.
            counts: Whether anything is kept; False on a node that joins, whose passes have no meaning yet.
        """
        if weight == 0 and not slot.layout.parts:
            return
        first = not slot.pieces
        self.check_clear()
        if slot.call:
            self.passes.refuse(slot, first)
        slot.weight += weight
        slot.samples += samples
        slot.pieces += 1
        value = logged.detach().reshape(())
        value = (value if value.dtype == torch.float64 else value.float()) * weight
        if weight:
            slot.loss = value if slot.loss is None else slot.loss + value

        outer = [p.grad for p in self._all]
        exact = loss.dtype in (torch.float32, torch.float64)  # a scale in half precision would not be exact
        layout = slot.layout
        for parameter in self._all:
            parameter.grad = None
        if not first and exact:
            for bucket in layout.buckets:
                for index, parameter, place in zip(bucket.indices, bucket.parameters, bucket.grads, strict=True):
                    if slot.used[index]:
                        parameter.grad = place
        factor = 1.0 if exact else scale
        for bucket in layout.buckets:
            bucket.launched = bucket.complete = False
        if group is not None and group.world_size > 1:
            self._overlap.begin(slot, group, lambda bucket: self._gather_early(slot, bucket, factor, first))
        try:
            with taken(slot, factor, counts=counts):
                self._run(loss, self._seed(loss, scale) if exact else None)
        finally:
            self._overlap.end()
            if not counts:
                for parameter in self._all:
                    parameter.grad = None
            for bucket in layout.buckets:
                if not bucket.launched:
                    gather(slot, bucket, factor, first, self._name)
            self._take_late(slot, factor)
            for parameter, grad in zip(self._all, outer, strict=True):
                parameter.grad = grad
        if self.noise is not None and first and part:
            self.noise.keep_first(slot, weight)

    def _run(self, loss: torch.Tensor, seed: torch.Tensor | None) -> None:
        self.in_backward = True
        try:
            torch.autograd.backward(loss, seed, retain_graph=self.retain_graph)
        finally:
            self.in_backward = False

    def check_clear(self) -> None:
        """Refuses gradients that are on parameters before the first reduction of a step (see `refuse_stray`), and other
        parameters than the step's first micro-batch had.
        """
        if not self._handed_over:
            parameters = self._parameters()
            if self._begun and not same_objects(parameters, self._all):
                raise RuntimeError(OTHER_PARAMETERS)
            self.refuse_stray(parameters)

    def refuse_stray(self, parameters: Sequence[torch.Tensor]) -> None:
        """Refuses gradients on parameters where nothing has been reduced yet in this step: they are not ours.

        Raises:
            RuntimeError: If there is one that is not zero.
        """
        for parameter in parameters:
            if parameter.grad is not None and bool(local(parameter.grad).any()):
                raise RuntimeError(
                    f"{self._name(parameter)} has a gradient that does not come from job.backward: of a plain "
                    "loss.backward() in the loop, or from before it. It would count on this rank alone. Give that loss "
                    "to job.backward too (added to the other one), or clear such gradients (zero_grad) before "
                    "job.backward"
                )

    def stepped(self) -> None:
        """Notes that a prepared optimizer has changed parameters."""
        self.passes.stepped()
        for slot in self._slots.values():
            slot.versions = None

    def _seed(self, loss: torch.Tensor, scale: float) -> torch.Tensor:
        """Returns the gradient of the loss itself: a constant, kept from step to step."""
        key = (loss.dtype, loss.device, scale)
        if key not in self._seeds:
            if len(self._seeds) > 64:
                self._seeds.clear()
            self._seeds[key] = torch.full(loss.shape, scale, dtype=loss.dtype, device=loss.device)
        return self._seeds[key].view(loss.shape)

    def _take_late(self, slot: Slot, factor: float) -> None:
        """Takes the gradients that came after their bucket had gone, for `Overlap.add_late`."""
        self._overlap.late = {}  # a try that broke off may have left some
        for index, parameter in enumerate(slot.layout.parameters):
            grad = parameter.grad
            if grad is not None:
                slot.used[index] = True  # it may be all that this rank has for it
                self._overlap.late[id(parameter)] = grad if factor == 1.0 else grad.mul_(factor)

    def _gather_early(self, slot: Slot, bucket: Bucket, factor: float, first: bool) -> None:
        """Gathers a bucket that is reduced while the backward pass runs."""
        gather(slot, bucket, factor, first, self._name)
        if self.noise is not None and self.noise.is_due:
            self.noise.measure(bucket)

    def reduce(self, slot: Slot, group: Group, signals: Signals, *, samples: int, count: int) -> Agreement:
        """Reduces a slot whose micro-batches are all in, and puts the result into ``p.grad``.

        All ranks of the group call this for the same step, of ``count`` samples, ``samples`` of them this rank's.

        Raises:
            GroupError: If a peer was lost. Nothing was put into ``p.grad`` then.
        """
        layout = slot.layout
        alone = group.world_size == 1
        if slot.weight == 0:
            for bucket in layout.buckets:
                if not (bucket.sharded and any(slot.used)):  # a part has what the node's other ranks have added
                    bucket.flat[: bucket.gradient_numel].zero_()
                bucket.launched = False
        elif self.noise is not None and self.noise.is_due and not alone:
            for bucket in layout.buckets:
                if not bucket.launched:
                    self.noise.measure(bucket)
        works = self._overlap.take_works()
        self._buffers.check()
        head = wire.spell(signals, late=bool(self._overlap.late), weight=slot.weight, loss=0.0)
        write_tail(slot, self._buffers, head, samples / count)
        if self.noise is not None:
            self.noise.write(slot, count, alone=alone, speaks=group.rank == 0)
        most = [] if alone else largest(self._buffers, self._device, counts=slot.weight != 0)
        if not alone:
            parts = [group.replicas.all_reduce(bucket.flat) for bucket in layout.parts]
            for work in parts:
                work.wait()  # so that where the tail is complete, all ranks have all of their parts
            open_buckets = [bucket for bucket in layout.buckets if not (bucket.launched or bucket.sharded)]
            works += [group.all_reduce(bucket.flat) for bucket in open_buckets]
            works += [group.all_reduce(flat, op="max") for flat in most]
            for work in works:
                work.wait()
        numbers = layout.head.tolist()
        agreement = wire.read(numbers, signals, group.world_size)
        if agreement.late and not agreement.is_void:
            self._overlap.add_late(slot, group)
        elif slot.recording and slot.layout.handles and not alone:
            self._overlap.learn_order(slot)
        self._overlap.late = {}
        for bucket in layout.buckets:
            bucket.launched = False
        if agreement.weight and agreement.weight != count:
            for bucket in layout.buckets:
                bucket.flat[: bucket.gradient_numel].mul_(count / agreement.weight)
        if self.noise is not None:
            weight, late = agreement.weight, bool(agreement.late)
            self.noise.read(slot, numbers[wire.HEAD :], count=count, weight=weight, late=late, alone=alone)
        if not alone:
            with self._buffers.announced() if self._calls > 1 else contextlib.nullcontext():
                read_riders(layout, self._buffers)
                read_largest(self._buffers, most, counts=agreement.weight != 0)
        self._hand_over(slot, agreement.weight != 0)
        return agreement

    def _hand_over(self, slot: Slot, weighed: bool) -> None:
        """Lets ``p.grad`` be the reduced gradient; None where no rank has one."""
        self._handed_over = True
        if len(self._slots) > 1:
            self.passes.reduced(slot)
        used = slot.layout.used
        everywhere = weighed and (not used.numel() or bool(used.min() > 0))
        ranks = None if everywhere else used.tolist()
        for bucket in slot.layout.buckets:
            for index, parameter, grad in zip(bucket.indices, bucket.parameters, bucket.grads, strict=True):
                if ranks is None or (weighed and ranks[index]):
                    if parameter.grad is None:
                        parameter.grad = grad
                    else:
                        parameter.grad.add_(grad)
