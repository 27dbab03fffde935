"""Lets optimizers, schedulers and gradient scalers act once per global batch, and refuses what can't be kept exact.

Objects stay what they are (the same instance of the same class): only their acting methods are wrapped.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import _global_optimizer_post_hooks, register_optimizer_step_pre_hook

from elastic_launcher.torch.collectives.group import Group
from elastic_launcher.torch.grad_scaler import forget_all, has_work
from elastic_launcher.torch.membership.connection import leave
from elastic_launcher.torch.membership.latest import Turn
from elastic_launcher.torch.session import LEAVE_OUT
from elastic_launcher.torch.shard.model import HOW, drop_gathered, is_sharded_model, named_parameters, set_up
from elastic_launcher.torch.shard.node import find_node
from elastic_launcher.torch.shard.tensors import is_sharded
from elastic_launcher.torch.state.registrations import registrations
from elastic_launcher.torch.step.learning_rate import scaled, with_inner

if TYPE_CHECKING:
    from elastic_launcher.torch.session import Session
    from elastic_launcher.torch.state.training_state import TrainingState

WRAPPERS = {
    "DistributedDataParallel": "job.prepare does what DDP does; pass the bare module",
    "FullyShardedDataParallel": "shard it by torch.distributed.fsdp.fully_shard instead; see docs/sharded.md",
    "DataParallel": "job.prepare uses one GPU per rank; pass the bare module",
}

SCALER = "a GradScaler is not supported with a sharded model; train it in bfloat16 instead"
SHARPNESS_AWARE = ("first_step", "second_step")  # what sharpness-aware optimizers call their two halves
_sessions: list[weakref.ref[Session]] = []


def prepare(session: Session, things: tuple[Any, ...]) -> Any:
    """Prepares models, optimizers, schedulers and scalers; see `Job.prepare`."""
    for thing in things:
        if isinstance(thing, nn.Module):
            _prepare_model(session, thing)
        elif isinstance(thing, Optimizer):
            _prepare_optimizer(session, thing)
        elif isinstance(thing, (LRScheduler, ReduceLROnPlateau)):
            _prepare_scheduler(session, thing)
        elif isinstance(thing, torch.amp.GradScaler):
            _prepare_scaler(session, thing)
        else:
            raise TypeError(
                f"job.prepare takes models, optimizers, schedulers and GradScaler, not {type(thing).__name__}; data "
                "loaders come from job.dataloader"
            )
    return things[0] if len(things) == 1 else things


def _prepare_model(session: Session, model: nn.Module) -> None:
    name = type(model).__name__
    if name in WRAPPERS:
        raise TypeError(f"the model is wrapped in {name}: {WRAPPERS[name]}")
    _check_parts(session, model)
    if is_sharded_model(model):
        _share_model(session, model)
    else:
        model.to(session.device)
    if session.shards is not None and not all(map(is_sharded_model, [*session.models, model])):
        raise TypeError("sharded models and whole ones can't be trained in one job: shard all of them by fully_shard")
    session.state.models.append(model)
    session.buffers.add([model])


def _share_model(session: Session, model: nn.Module) -> None:
    """Sets a sharded model up, and finds the ranks of this node with which this one shares it.

    Raises:
        TypeError: If it is not sharded as a job can train it, or the job does what a sharded model can't.
    """
    set_up(model)
    if session.shares.finds_limit:
        raise TypeError('max_batch_per_gpu="auto" is not supported with a sharded model; give a number')
    if session.noise is not None:
        raise TypeError("an adaptive batch is not supported with a sharded model; leave autoscale_batch_size out")
    if session.virtual_ranks:
        raise TypeError("deterministic= is not supported with a sharded model; leave it out")
    if session.state.scalers:
        raise TypeError(SCALER)
    if session.shards is not None:
        return
    session.shards = find_node(leave)
    if session.member is not None:
        session.member.formations.shards = session.shards.size
    elif session.membership is not None:  # one node, by plain torchrun
        session.membership.group.set_replicas(Group("one node", 0, 1))


def refuse_sharded_late(session: Session) -> None:
    """Refuses models that were sharded after they were prepared, and optimizers that were made before.

    Raises:
        TypeError: For one.
    """
    if session.shards is None:
        if any(map(is_sharded_model, session.models)):
            raise TypeError(f"a model was sharded after job.prepare: {HOW}")
        return
    known = {id(parameter) for model in session.models for _, parameter in named_parameters(model)}
    for number, optimizer in enumerate(session.state.optimizers):
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if parameter.requires_grad and id(parameter) not in known and not is_sharded(parameter):
                raise TypeError(
                    f"optimizer {number} ({type(optimizer).__name__}) has a parameter of no prepared model, shaped "
                    f"{tuple(parameter.shape)}: fully_shard puts other parameters in the place of a model's own. Make "
                    "the optimizer after it, of model.parameters() alone"
                )


def check_replaced(session: Session) -> None:
    """Looks at parts of the prepared models that the script has replaced or added since the last time.

    Raises:
        TypeError: For what `Job.prepare` refuses too.
    """
    if session.shares.looked_at != registrations():
        session.shares.looked_at = registrations()
        for model in session.models:
            _check_parts(session, model)


def _check_parts(session: Session, model: nn.Module) -> None:
    for path, module in model.named_modules():
        if getattr(module, "sparse", False) is True and isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            raise TypeError(
                f"{path or 'the model'} makes sparse gradients; use {type(module).__name__}(..., sparse=False)"
            )
        takes = module.training or not model.training  # frozen ones take no statistics
        if isinstance(module, _BatchNorm) and takes and module not in session.shares.norms:
            session.shares.normalizes = session.shares.normalizes or path or type(model).__name__
        said = getattr(module, "batch_statistics", None)  # of a layer that is no module of torch's
        session.shares.normalizes = session.shares.normalizes or said
        session.shares.norms.add(module)  # one that is frozen or thawed later counts as it did, on all ranks
        if isinstance(module, nn.SyncBatchNorm):
            raise TypeError(
                f"{path or 'the model'} is a SyncBatchNorm, which waits for all ranks in each forward pass: ranks have "
                "different numbers of those, and come and go; use BatchNorm1d, BatchNorm2d or BatchNorm3d, whose "
                "running statistics are averaged over the ranks after each step"
            )
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise TypeError(
                f"{path} is not initialised yet (a lazy module): run one forward pass through the model before "
                "job.prepare, and before the optimizer is made"
            )


def _prepare_optimizer(session: Session, optimizer: Optimizer) -> None:
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError(
            "LBFGS evaluates the loss several times in one step, which micro-batches can't be replayed for; use "
            "a first-order optimizer"
        )
    for number, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        if is_lazy(parameter):
            raise TypeError(
                f"parameter {number} of {type(optimizer).__name__} is not initialised yet (a lazy module): run one "
                "forward pass through the model before the optimizer is made"
            )
    name = f"optimizer {_add_optimizer(session, optimizer)}"
    act = optimizer.step

    @functools.wraps(act)
    def step(_: Optimizer, closure: Callable[[], Any] | None = None, **arguments: Any) -> Any:
        micro = session.micro
        session.asked = True
        if session.reducer.in_backward:
            raise RuntimeError(
                f"{name} ({type(optimizer).__name__}) was stepped inside job.backward, by a hook: the gradient of the "
                "global batch is not there yet. Take the hook away and call optimizer.step() after job.backward(loss)"
            )
        if closure is not None:
            raise ValueError(
                "optimizer.step(closure) would evaluate the loss again; call job.backward(loss) and then "
                "optimizer.step()"
            )
        if micro is not None and micro.calls == 0:
            early = "optimizer.step() was called before job.backward(loss) in this micro-batch"
            raise RuntimeError(f"{early}; {LEAVE_OUT}")
        turn = session.turn(name, optimizer)
        if turn is Turn.ACTS:
            with scaled(session, optimizer):
                result = _act(session, act, **arguments)
            session.reducer.stepped()
            if session.shards is not None:
                drop_gathered(session.models)
            return result
        if turn is Turn.TAKEN:
            _act(session, _act_hooks, session, optimizer, **arguments)
            session.reducer.stepped()
        elif micro is not None and not session.sync_gradients:
            session.reducer.refuse_stray([p for group in optimizer.param_groups for p in group["params"]])
        return None

    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
    for method in SHARPNESS_AWARE:
        if callable(getattr(optimizer, method, None)):
            _gate_pass(session, optimizer, method, f"{name}.{method}")
    _sessions[:] = [one for one in _sessions if one() is not None and one() is not session] + [weakref.ref(session)]


def _add_optimizer(session: Session, optimizer: Optimizer) -> int:
    """Lets an optimizer's state travel, and that of those that it steps itself; returns its number."""
    known = session.state.optimizers
    if not any(optimizer is one for one in known):
        known.append(optimizer)
        for inner in vars(optimizer).values():
            if isinstance(inner, Optimizer):
                _add_optimizer(session, inner)
    return _number_of(session.state, optimizer)


def _number_of(state: TrainingState, optimizer: Optimizer) -> int:
    """Returns the number of an optimizer; -1 if it has none."""
    return next((number for number, one in enumerate(state.optimizers) if one is optimizer), -1)


def _act(session: Session, act: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    outer, session.stepping = session.stepping, True
    try:
        return act(*arguments, **named)
    finally:
        session.stepping = outer


def _act_hooks(session: Session, optimizer: Optimizer, **arguments: Any) -> None:
    """Runs the hooks of a step that a peer has done for this rank: what they change of the script's own (an average of
    the weights) did not come with the peer's state. What they change of the optimizers' did, and is put back.
    """
    taken, state = session.latest.taken, session.state
    hooked = [one for one in reversed(with_inner(optimizer)) if taken.get(_hooks_of(state, one)) and _has_hooks(one)]
    if not hooked:
        return
    groups = [group for one in state.optimizers for group in one.param_groups]
    options = [dict(group) for group in groups]
    parameters = list(state.acted_on().values())
    copies = [parameter.detach().clone() for parameter in parameters]
    for one in hooked:
        Optimizer.profile_hook_step(lambda *_, **__: None)(one, **arguments)
    for parameter, copy in zip(parameters, copies, strict=True):
        parameter.data.copy_(copy)  # unseen by a graph that has saved it: the values are the same
    for group, before in zip(groups, options, strict=True):
        group.update(before)


def _hooks_of(state: TrainingState, optimizer: Optimizer) -> str:
    """Returns the name by which it is counted that an optimizer's step, and so its hooks, ran."""
    return f"hooks of optimizer {_number_of(state, optimizer)}"


def _has_hooks(optimizer: Optimizer) -> bool:
    own = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return bool(own or _global_optimizer_post_hooks)


def _gate_pass(session: Session, optimizer: Optimizer, method: str, name: str) -> None:
    """Makes one half of a sharpness-aware optimizer's step do nothing until the global batch is complete."""
    act = getattr(optimizer, method)

    @functools.wraps(act)
    def gated(*arguments: Any, **named: Any) -> Any:
        session.asked = True
        rehearses = session.micro is not None and session.micro.rehearsal
        if rehearses and (said := session.shares.too_few_for_two_passes()):
            raise RuntimeError(f"{name} ({type(optimizer).__name__}) is half of a step: {said}")
        turn = session.turn(name, optimizer)
        if turn is Turn.TAKEN:
            _act(session, _act_hooks, session, optimizer)
        if turn is not Turn.ACTS:
            return None
        with scaled(session, optimizer):
            return _act(session, act, *arguments, **named)

    setattr(optimizer, method, gated)


def _look_at_step(optimizer: Optimizer, _: Any, __: Any) -> None:
    """Counts the step of an optimizer, which runs its hooks; refuses one that was not prepared, on parameters of a job,
    in its training loop.
    """
    for session in filter(None, (one() for one in _sessions)):
        if session.stepping:
            session.latest.note_act(_hooks_of(session.state, optimizer))
        if session.micro is None or session.stepping or _number_of(session.state, optimizer) >= 0:
            continue
        known = {id(parameter) for parameter in session.parameters()}
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if id(parameter) in known:
                raise RuntimeError(
                    f"{type(optimizer).__name__} steps {session.name_of(parameter)}, and was not given to job.prepare: "
                    "it would act in each micro-batch, on what this rank has of the gradient. Call "
                    "job.prepare(optimizer) before the training loop"
                )


register_optimizer_step_pre_hook(_look_at_step)


def _gate(session: Session, owner: Any, method: str, name: str) -> None:
    """Makes a method do nothing until the global batch is complete."""
    act = getattr(owner, method)

    @functools.wraps(act)
    def gated(*arguments: Any, **named: Any) -> Any:
        session.asked |= method == "step"
        optimizer = next((one for one in (*arguments, *named.values()) if isinstance(one, Optimizer)), None)
        turn = session.turn(name, optimizer)
        if turn is Turn.TAKEN and method == "step" and optimizer is not None:
            _follow_step(session, optimizer)
        if turn is not Turn.ACTS:
            return None
        if session.micro is not None and isinstance(owner, torch.amp.GradScaler) and not has_work(owner, optimizer):
            return None
        return act(*arguments, **named)

    setattr(owner, method, gated)


def _follow_step(session: Session, optimizer: Optimizer) -> None:
    """Has an optimizer note that a peer's scaler stepped it; not where that left the step out (a gradient of inf)."""
    if session.latest.taken.get(f"optimizer {_number_of(session.state, optimizer)}"):
        optimizer.step()


def _prepare_scheduler(session: Session, scheduler: LRScheduler | ReduceLROnPlateau) -> None:
    name = f"scheduler {len(session.state.schedulers)}"
    session.state.schedulers.append(scheduler)
    kind = type(scheduler)

    class Gated(kind):  # type: ignore[misc, valid-type]
        """The same scheduler; a wrapped method of the instance would end up in its ``state_dict``."""

        def step(self, *arguments: Any, **named: Any) -> None:
            if session.turn(name) is Turn.ACTS:
                kind.step(self, *arguments, **named)

    Gated.__name__, Gated.__qualname__, Gated.__module__ = kind.__name__, kind.__qualname__, kind.__module__
    scheduler.__class__ = Gated


def warn_of_unprepared_schedulers(session: Session) -> None:
    """Warns of prepared optimizers that have a scheduler of which the job knows nothing."""
    known = [*session.state.schedulers, *session.state.registered.values()]
    for number, optimizer in enumerate(session.state.optimizers):
        scheduled = any(getattr(scheduler, "optimizer", None) is optimizer for scheduler in known)
        if getattr(optimizer.step, "_wrapped_by_lr_sched", False) and not scheduled:
            warnings.warn(
                f"optimizer {number} ({type(optimizer).__name__}) has a scheduler that was not given to job.prepare: "
                "it acts in each micro-batch, and its state is not sent to joiners. Call "
                "job.prepare(scheduler) before the training loop",
                stacklevel=2,
            )


def _prepare_scaler(session: Session, scaler: torch.amp.GradScaler) -> None:
    if session.shards is not None:
        raise TypeError(SCALER)
    name = f"scaler {len(session.state.scalers)}"
    session.state.scalers.append(scaler)
    for method in ("unscale_", "step", "update"):
        _gate(session, scaler, method, f"{name}.{method}")
    scale, update = scaler.scale, scaler.update

    @functools.wraps(update)
    def end_step(*arguments: Any, **named: Any) -> None:
        update(*arguments, **named)
        if session.sync_gradients:  # where a peer's update was taken over, it has done nothing here
            forget_all(scaler)

    @functools.wraps(scale)
    def remember(outputs: Any) -> Any:
        scaled = scale(outputs)
        if isinstance(scaled, torch.Tensor):
            scaled.elastic_unscaled = outputs  # type: ignore[attr-defined]
        return scaled

    scaler.scale, scaler.update = remember, end_step  # type: ignore[method-assign, assignment]
