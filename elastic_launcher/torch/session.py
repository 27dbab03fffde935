"""The state that the parts of a job share in one process: its settings, its progress, and its peers."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer

from elastic_launcher.adaptive.observations import Observations
from elastic_launcher.batch_schedule import BatchSchedule, DataPass
from elastic_launcher.control.messages import PhaseStarted, Report
from elastic_launcher.torch.autoscaling import Autoscaling
from elastic_launcher.torch.collectives.consensus import Agreement, Signals
from elastic_launcher.torch.collectives.group import Group
from elastic_launcher.torch.collectives.operations import Operation, Wire
from elastic_launcher.torch.data.micro_batches import MicroBatch
from elastic_launcher.torch.data.shares import Shares
from elastic_launcher.torch.data.training_data import TrainingData
from elastic_launcher.torch.grad_scaler import forget_unscaled
from elastic_launcher.torch.gradients.agreement import Together, abstain
from elastic_launcher.torch.gradients.noise_meter import NoiseMeter
from elastic_launcher.torch.gradients.ordered import OrderedReducer
from elastic_launcher.torch.gradients.reducer import Reducer
from elastic_launcher.torch.membership.connection import leave
from elastic_launcher.torch.membership.latest import Latest, Turn
from elastic_launcher.torch.membership.main_writes import MainWrites
from elastic_launcher.torch.membership.membership import Membership
from elastic_launcher.torch.membership.reconcile import NextAction
from elastic_launcher.torch.membership.step_timer import StepTimer
from elastic_launcher.torch.shard.model import parameters
from elastic_launcher.torch.shard.node import NodeShards
from elastic_launcher.torch.state.buffers import ModelBuffers
from elastic_launcher.torch.state.course import Course, Sums
from elastic_launcher.torch.state.position import Position
from elastic_launcher.torch.state.registrations import registrations
from elastic_launcher.torch.state.tensors import bit_sum, is_plain, same_objects
from elastic_launcher.torch.state.training_state import TrainingState

if TYPE_CHECKING:
    from elastic_launcher.torch.membership.environment import Launch
    from elastic_launcher.torch.membership.member import Member
    from elastic_launcher.torch.state.checkpointing import Checkpoints


LEAVE_OUT = (
    "to leave a micro-batch out (a loss that is not finite, say), call job.backward(None, weight=0) "
    "in the place of its job.backward, and go on to optimizer.step()"
)


class NotAdmitted(RuntimeError):
    """Raised where this process would need the other ranks, and is not admitted before its first batch."""


@dataclass
class Session:
    """The shared state of one job in one process.

    Attributes:
        schedule: Samples of an optimizer step, over all ranks, by step.
        max_batch_per_gpu: Most samples of a micro-batch.
        seed: What all random numbers derive from.
        device: Where batches go.
        member: The connection to the coordinator; None without our launcher.
        checkpoints: What saves the job; None without our launcher.
        stop_reason: Why this rank's script asked for the end, if it did.
        dying: Whether an exception is ending the script.
        torn: Whether the state is a mixture, since a peer was lost while it sent it.
        latest: What came of the last operation of all ranks.
        held: Optimizers whose gradients came in calls that this step, done again, would leave out (`Position.calls`).
        lost: Those of them whose gradients went with a step that broke off.
        unequal: Whether the ranks' states have still to be made equal (plain torchrun, before its first step).
        together: What this rank does together with its peers.
        locked: Whether the script is inside `job.first_on_node`, where it may not wait for peers.
        stepping: Whether a prepared optimizer is acting.
        left_out: Micro-batches of this step that do not count, since their backward pass broke off.
        course: Where the script is.
        start: The epoch, and the step in it, with which the script has a new job start; None for the beginning.
        sums: What sums over ranks came to outside of training loops.
        asked: Whether the script has called a prepared optimizer's step since this micro-batch was issued.
        noise: Measures the gradient noise, where that is asked for (see `measure_noise`).
        times: Of this rank's steps, by configuration.
        autoscaling: The adaptive batch; None where the global batch is fixed.
        shards: The ranks of this node, where they share one model; None where each has a whole one.
        virtual_ranks: Among how many virtual ranks each step is divided, whatever the number of ranks (see
            `virtual_ranks`); 0 where it is divided among the ranks.
        ordered: The reducer, where there are virtual ranks.
        writes: What rank 0 alone writes.
        shares: Which part of a step each rank does.
    """

    schedule: BatchSchedule
    max_batch_per_gpu: int
    seed: int
    device: torch.device
    launch: Launch
    member: Member | None
    buffers: ModelBuffers
    state: TrainingState
    membership: Membership | None = None
    checkpoints: Checkpoints | None = None
    micro: MicroBatch | None = None
    data: TrainingData | None = None
    stop_reason: str | None = None
    dying: bool = False
    torn: bool = False
    latest: Latest = field(default_factory=Latest)
    held: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    unequal: bool = False
    together: Together = field(default_factory=Together)
    locked: bool = False
    left_out: set[tuple[int, int, int]] = field(default_factory=set)
    course: Course = field(default_factory=Course)
    start: tuple[int, int] | None = None
    sums: Sums = field(default_factory=Sums)
    epochs: int | None = None
    loss: float = float("nan")
    pace: StepTimer = field(default_factory=StepTimer)
    stepping: bool = False
    asked: bool = False
    noise: NoiseMeter | None = None
    times: Observations = field(default_factory=Observations)
    autoscaling: Autoscaling | None = None
    shards: NodeShards | None = None
    virtual_ranks: int = 0
    ordered: OrderedReducer | None = None
    writes: MainWrites = field(init=False)
    shares: Shares = field(init=False)
    _position: Position = field(default_factory=Position)
    _over: bool = False
    _looked: tuple[int, int] = (0, -1)
    _held: list[torch.Tensor] = field(default_factory=list)
    _parameters: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shares = Shares(self)
        gradients = (self.parameters, self.buffers, self.device, self.name_of)
        if self.virtual_ranks:
            self.state.arithmetic = {"virtual ranks": self.virtual_ranks, "max_batch_per_gpu": self.max_batch_per_gpu}
            self.ordered = OrderedReducer(
                *gradients,
                virtual_ranks=self.virtual_ranks,
                division=lambda: self.need_membership("a step").division,
            )
        self.reducer = self.ordered or Reducer(*gradients, self.shares.too_few_for_two_passes)
        self.writes = MainWrites(lambda: hash(tuple(bit_sum(p) for p in self.parameters() if is_plain(p))))

    @property
    def models(self) -> list[nn.Module]:
        """The prepared models."""
        return self.state.models

    def parameters(self) -> list[torch.Tensor]:
        """Returns all parameters of models and optimizers, each once, in an order that is the same on every rank."""
        held = [p for optimizer in self.state.optimizers for group in optimizer.param_groups for p in group["params"]]
        looked = (len(self.models), registrations())
        if looked != self._looked or not same_objects(held, self._held):
            found: dict[int, torch.Tensor] = {}
            for model in self.models:
                found.update((id(p), p) for p in parameters(model))
            found.update((id(p), p) for p in held)
            self._parameters, self._looked, self._held = list(found.values()), looked, held
        return self._parameters

    @property
    def position(self) -> Position:
        """The position of the training."""
        return self._position

    def move_to(self, position: Position) -> None:
        """Moves on, or to where a peer or a checkpoint is."""
        if position.operations != self._position.operations:
            self.writes.met()
        self._position = position

    def change_batch(self, global_batch_size: int, first: int) -> None:
        """Notes what the ranks have agreed on: another global batch from the step ``first`` on."""
        self.schedule = self.schedule.with_entry(first, global_batch_size)
        if self.noise is not None:
            self.noise.hold_gains(first, global_batch_size)

    def take_schedule(self, schedule: BatchSchedule) -> None:
        """Takes the schedule of a peer or a checkpoint."""
        self.schedule = schedule

    def begin_try(self) -> None:
        """Drops what was agreed on in a try of this step that broke off: the step is done by the schedule that held."""
        if self.autoscaling is not None and not self.position.calls:
            self.schedule = self.schedule.until(self.position.step)
            self.measure_noise().drop_gains(self.position.step)

    @property
    def over(self) -> bool:
        """Whether the training has ended on all ranks, or goes on without this one."""
        return self._over

    def end_training(self) -> None:
        """Ends the training, for this rank at least."""
        self._over = True

    def leave_job(self) -> NoReturn:
        """Ends this process with 0: the job has ended, or goes on without it."""
        self.end_training()
        raise SystemExit(0)

    def begin_phase(self, phase: int) -> None:
        """Begins a phase of the training that no rank has trained in."""
        self.move_to(self.position.at(phase, 0))
        self._over = False
        self.report(PhaseStarted(phase, self.position.step, self.sums.lasting()))

    @property
    def sync_gradients(self) -> bool:
        """Whether the micro-batch that runs has completed the global batch."""
        return self.micro is not None and self.micro.synced

    @property
    def step(self) -> int:
        """Optimizer steps done, the one that has just been reduced included."""
        return self.position.step + self.sync_gradients

    @property
    def global_batch_size(self) -> int:
        """Samples of the next optimizer step, over all ranks, if the epoch has as many."""
        return self.schedule.batch_size(self.position.step)

    def measure_noise(self) -> NoiseMeter:
        """Has the gradient noise measured from the next training loop on; all ranks call it before that loop.

        Raises:
            RuntimeError: In a training loop.
        """
        if self.shards is not None:
            raise RuntimeError("the gradient noise, and so an adaptive batch, is not supported with a sharded model")
        if self.noise is None:
            if self.data is not None:
                raise RuntimeError("the gradient noise is measured from the beginning of a training loop on")
            state = self.state
            self.noise = NoiseMeter(state.optimizers, state.scalers, lambda: self.schedule.batch_size(0))
            self.reducer.noise = state.noise = self.noise
        return self.noise

    def data_pass(self, data: TrainingData, position: Position) -> DataPass:
        """Returns the pass over the data in which a position is."""
        return DataPass(self.schedule, data.size, position.step - position.step_in_epoch, data.drop_last)

    def agreed(self, group: Group | None = None) -> AbstractContextManager[None]:
        """Returns a context for what this rank does with other nodes: it ends the same on all ranks of its node, where
        they share one model. The group, by default that of its membership, is cut where it breaks.
        """
        return nullcontext() if self.shards is None else self.shards.agreed(lambda: self._cut(group))

    def _cut(self, group: Group | None) -> None:
        if group is None and self.membership is not None:
            group = self.membership.group
        if group is not None:
            group.cut()

    def wants_stop(self) -> bool:
        """Returns whether this rank's script asked for the end, or that of a rank with which it shares its model."""
        mine = self.stop_reason is not None
        return mine if self.membership is None else self.any_on_node(mine)

    def any_on_node(self, mine: bool) -> bool:
        """Returns whether something holds on this rank, or on one of those with which it shares its model."""
        return mine if self.shards is None else self.shards.any(mine)

    def name_of(self, parameter: torch.Tensor) -> str:
        """Returns what messages call a parameter: its name in a model, or else its place in an optimizer."""
        return self.state.name_of(parameter)

    def need_membership(self, what: str) -> Membership:
        """Returns the membership, or says why there is none yet.

        Raises:
            NotAdmitted: If this process has not been admitted.
        """
        if self.membership is None:
            raise NotAdmitted(
                f"{what} needs the other ranks, and this rank is not admitted before its first batch: call it inside "
                "or after the training loop"
            )
        return self.membership

    def need_member(self) -> Member:
        """Returns the connection to the coordinator, where there is one."""
        assert self.member is not None
        return self.member

    def begin(self, operation: Operation) -> None:
        """Returns when all ranks are known to do the same operation, or expected to (see `agreement`).

        Raises:
            RuntimeError: If they do different ones.
            GroupError: If a peer was lost.
        """
        self.check_unlocked(operation.what)
        group = self.need_membership(operation.what).group
        self.together.begin(group, operation, self.step, self.latest.calls_in_words(), self._abstain)

    def _abstain(self, wire: Wire) -> Agreement:
        group = self.need_membership("a reduction").group
        return abstain(wire, group, Signals(self.position.mark(), elsewhere=True), self.device, self.reducer.parts)

    def check_unlocked(self, what: str) -> None:
        """Raises `RuntimeError` inside `job.first_on_node`: the peer that this rank would wait for may wait for it."""
        if self.locked:
            raise RuntimeError(
                f"{what} was called inside job.first_on_node, where the other ranks of this machine wait for this one; "
                "call it after that block"
            )

    def _count_operation(self, by: int = 1) -> None:
        self.move_to(replace(self.position, operations=self.position.operations + by))

    def reduced(self, outcome: str = NextAction.AGAIN) -> None:
        """Notes that a reduction has ended well."""
        self._count_operation()
        self._keep_reduced()
        self.latest = Latest(outcome, order=[])

    def _keep_reduced(self) -> None:
        alone = self.member is None or self.need_membership("a reduction").world_size == 1
        self.buffers.end_reduction(alone=alone)

    def summed(self, result: Any) -> None:
        """Notes that a sum over ranks has ended well."""
        self._count_operation()
        self.latest.result = result

    def adopted(self, acted: dict[str, int], ended: bool) -> None:
        """Notes that what came of a reduction was taken over from a peer, and how often what was prepared acted there.

        ``ended``: the peer had ended the step.
        """
        self._count_operation()
        self.buffers.end_step()
        self._keep_reduced()
        self.latest = Latest(acted=dict(acted), taken=dict(acted), ended=ended)

    def missed(self, acted: dict[str, int]) -> None:
        """Notes that the step is done again after a reduction that this rank lost: what has acted on a peer since then
        was taken over, and has still to be seen by this rank's script.
        """
        self.latest = Latest(acted=dict(acted), taken=dict(acted), ended=True, missed=self.position.calls - 1)

    def turn(self, name: str, optimizer: Optimizer | None = None) -> Turn:
        """Returns whether what the script calls now takes effect: outside the loop always, inside it once the global
        batch is complete; not what this rank has taken over from a peer.

        Where the optimizer would step without a gradient that was lost, this process ends, and so do all others.
        """
        if self.micro is not None and not self.sync_gradients:
            return Turn.IDLES
        latest = self.latest
        latest.note_call(name)
        if self.micro is not None and latest.ended and not latest.taken.get(name):
            return Turn.IDLES
        turn = latest.note_act(name)
        if turn is Turn.ACTS and self.micro is not None:
            if any(self.state.optimizers[number] is optimizer for number in self.lost):
                leave("a step broke off after one optimizer had stepped, and the gradient that another needs is lost")
            if not name.endswith(".unscale_"):  # which changes gradients alone
                self.apply_calls(self.micro.calls)  # what was reduced is part of the state from here on
        return turn

    def apply_calls(self, calls: int) -> None:
        """Notes that so many `backward` calls of this step are reduced and applied (see `Position.calls`)."""
        self.move_to(replace(self.position, calls=calls))

    def hold(self) -> None:
        """Notes which optimizers' gradients can't be made again from here on: something has acted since they came."""
        optimizers = [[p for group in o.param_groups for p in group["params"]] for o in self.state.optimizers]
        self.held = {number for number, own in enumerate(optimizers) if any(p.grad is not None for p in own)}

    def lose_gradients(self) -> None:
        """Takes all gradients off the parameters, for a step that is done again."""
        self.lost |= self.held
        for parameter in self.parameters():
            parameter.grad = None
        forget_unscaled(self.state.scalers)

    def drop_step(self) -> None:
        """Gives a reduced step up of which nothing has come yet."""
        assert self.micro is not None
        self._count_operation(-1)
        self.latest.order = None  # on those that do it again it is that of the step before
        self.micro.dropped, self.micro.synced = True, False
        self.micro.recovered = True
        self.buffers.undo_step()
        self.reducer.renew()
        self.lose_gradients()

    def report(self, report: Report) -> None:
        """Tells the coordinator, if there is one."""
        if self.member is not None:
            self.member.reports.put(report)
