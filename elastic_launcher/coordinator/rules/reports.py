"""Decides what follows from the members' reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from msgspec.structs import asdict

from elastic_launcher import __version__
from elastic_launcher.config import ExitCode
from elastic_launcher.control import messages
from elastic_launcher.coordinator.model.actions import Order
from elastic_launcher.coordinator.model.observations import MemberJoined, MemberReported
from elastic_launcher.coordinator.model.restart_budget import RestartBudget
from elastic_launcher.coordinator.model.roster import Member, Phase
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.rules.ending import (
    EXIT_SECONDS,
    Decision,
    appoint_saver,
    emit,
    ended_early,
    finish,
    script_failed,
    then,
    wind_down,
)
from elastic_launcher.coordinator.rules.exits import fail_joiner, reopen, siblings
from elastic_launcher.coordinator.rules.formation import (
    fail_formation,
    form_if_active,
    let_go,
    take_active,
    take_formed,
)
from elastic_launcher.coordinator.rules.loss import bear_failure, check_holders, take_broken_step, take_unformed
from elastic_launcher.coordinator.rules.nodes import dismiss


def take_join(state: State, observation: MemberJoined) -> Decision:
    """A member's process is there."""
    member = state.members[observation.member]
    if member.pid == observation.pid:
        return state, ()
    state = state.with_member(member.number, pid=observation.pid)
    if state.over or state.nodes[member.node].phase is Phase.ENDING or state.superseded(member.number):
        why = "the training is over" if state.over else "not wanted any more"
        return state, (Order((member.number,), messages.End(why)),)
    if observation.version in ("", __version__):
        return state, ()
    message = (
        f"{state.name(member.number)} runs elastic-launcher {observation.version}, the launcher {__version__}: "
        "install the same version for both"
    )
    return state, (emit(state, "warning", message=message),)


def take_report(state: State, observation: MemberReported) -> Decision:
    """A member reported."""
    member = state.members[observation.member]
    if state.nodes[member.node].phase in (Phase.ENDING, Phase.GONE) or state.superseded(member.number):
        return state, ()
    return _REPORTS[type(observation.report)](state, member, observation.report, observation.now)


def _warm(state: State, member: Member, report: messages.Warm, now: float) -> Decision:
    # One that waits again after a failed admission has nothing new to report.
    fingerprint = report.fingerprint or member.fingerprint or {}
    state = state.with_member(member.number, fingerprint=fingerprint, wait=report.wait)
    if (resumes := state.rules.resumes) is not None and not state.generation:
        if different := resumes.refuse(fingerprint):
            return finish(state, ExitCode.BAD_USAGE, different)
    ready = all(one.fingerprint is not None for one in siblings(state, member))
    if not ready or state.nodes[member.node].phase is not Phase.STARTING:
        return state, ()
    state = state.with_node(member.node, phase=Phase.WARM, since=now)
    return state, (emit(state, "node_warm", node=member.node),)


def _left(state: State, member: Member, report: messages.Left, now: float) -> Decision:
    if not state.may_leave(member.number):
        return state, ()
    state = state.with_member(member.number, step=max(member.step, report.step))
    return then(let_go(state, member.number, now), check_holders, member, now)


def _progress(state: State, member: Member, report: messages.Progress, now: float) -> Decision:
    if not _trains(state, member):
        return state, ()
    state = state.with_member(member.number, step=max(member.step, report.step))
    state = replace(
        state,
        progress=report,
        step=max(state.step, report.step),
        samples=report.samples if report.samples is not None else state.samples,
    ).at_epoch(report.phase, report.epoch)
    fields = {name: value for name, value in asdict(report).items() if value is not None}
    if not report.phase:  # most scripts have one
        del fields["phase"]
    world_size = len(state.group) or len(state.formation.members if state.formation else ())
    event = emit(state, "progress", **fields, world_size=world_size)
    return then((state, (event,)), ended_early, now)


def _log(state: State, member: Member, report: messages.Log, now: float) -> Decision:
    if not _trains(state, member):
        return state, ()
    logged, values = state.logged.add(report.step, report.rank, report.values)
    if not values:
        return state, ()  # a lower rank has logged them all
    state = replace(state, logged=logged)
    return state, (emit(state, "log", step=report.step, rank=report.rank, values=values),)


def _step_failed(state: State, member: Member, report: messages.StepFailed, now: float) -> Decision:
    if member.left:
        return state, ()  # it had to leave within the step
    formation = state.formation
    if formation is not None and formation.number == report.formation:
        return then(form_if_active(state, now), _break_off, member, report, now)
    return _break_off(state, member, report, now)


def _break_off(state: State, member: Member, report: messages.StepFailed, now: float) -> Decision:
    formation, number = state.formation, member.number
    pending = formation is not None and formation.number == report.formation
    state = replace(state.with_member(number, step=max(member.step, report.step)), step=max(state.step, report.step))
    if not pending and report.formation not in (*state.abandoned, state.group_formation):
        return state, ()
    reason = f"the step broke off on {state.name(number)}: {report.error or 'no reason given'}"
    if not state.generation:  # nothing is lost yet: the first generation is formed again
        return fail_formation(state, reason, (), now) if pending else (state, ())
    if number not in state.group:
        node = state.nodes[member.node]
        too_late = not pending and (state.recovery is None or formation is not None)
        if node.phase is not Phase.WARM or too_late:
            return dismiss(state, node, "failed", now) if node.phase is Phase.WARM else (state, ())
    fails = formation is not None and (pending or formation.mode != "recover")
    decision = fail_formation(state, reason, (), now) if fails else (state, ())
    return then(decision, take_broken_step, number, report, reason, now)


def _step_redone(state: State, member: Member, report: messages.StepRedone, now: float) -> Decision:
    if state.redone == report.step or not _trains(state, member):
        return state, ()
    return replace(state, redone=report.step), (emit(state, "step_redone", step=report.step),)


def _batch_changed(state: State, member: Member, report: messages.BatchChanged, now: float) -> Decision:
    formation = state.formation
    begins = not state.generation and formation is not None and member.number in formation.members
    if not begins and not _trains(state, member):  # a rank tells of its first step before it tells that it trains
        return state, ()
    record, events = state.batches.take(report)
    return replace(state, batches=record), tuple(emit(state, "batch_changed", **fields) for fields in events)


def _micro_batch_lowered(state: State, member: Member, report: messages.MicroBatchLowered, now: float) -> Decision:
    record, fields = state.micro_batches.take(member.number, report)
    state = state.with_member(member.number, outgrown=report.leaves)
    if fields is None:  # a launcher before this one has recorded it
        return state, ()
    state = replace(state, micro_batches=record)
    # This does not count as a failure: the micro-batches get smaller each time, which comes to an end.
    state = replace(state, restart_budget=RestartBudget(), losses=0, failures=0, broke=0)
    return state, (emit(state, "micro_batch_lowered", node=member.node, member=member.number, **fields),)


def _step_times(state: State, member: Member, report: messages.StepTimes, now: float) -> Decision:
    if not _trains(state, member):
        return state, ()
    fields = {name: value for name, value in asdict(report).items() if value is not None}
    return state, (emit(state, "step_times", **fields),)


def _saved(state: State, member: Member, report: messages.Saved, now: float) -> Decision:
    state = replace(state, saved=report, step=max(state.step, report.step))
    return state, (emit(state, "checkpoint_saved", **asdict(report)),)


def _save_failed(state: State, member: Member, report: messages.SaveFailed, now: float) -> Decision:
    after = "the training goes on, and the next checkpoint is tried when it is due"
    if state.halts and state.restart is None:
        after = f"that is tried again for as long as the job waits for it, {state.halts_by - now:.0f} s from now on"
    message = f"step {report.step} could not be saved: {report.message}; {after}"
    return state, (emit(state, "warning", message=message),)


def _halted(state: State, member: Member, report: messages.Halted, now: float) -> Decision:
    if not state.halts or not _trains(state, member):
        return state, ()
    halting = replace(state.halting, standing=state.halting.standing | {member.number})
    state = replace(state, halting=halting, halted=state.halted or report.saved, step=max(state.step, report.step))
    return appoint_saver(state)


def _failed(state: State, member: Member, report: messages.Failed, now: float) -> Decision:
    state = state.with_member(member.number, failure=report)
    if report.step is not None and _trains(state, member):
        state = replace(state, step=max(state.step, report.step))
    member = state.members[member.number]
    if member.left:
        message = f"{state.name(member.number)} failed after it had left the training: {report.message}"
        return state, (emit(state, "warning", message=message),)
    if not state.generation or member.number in state.group:
        borne = bear_failure(state, member, f"failed ({report.message})", now)
        return borne or script_failed(state, member, now)
    return fail_joiner(state, member, f"{state.name(member.number)} failed: {report.message}", now)


def _done(state: State, member: Member, report: messages.Done, now: float) -> Decision:
    if not _trains(state, member) or report.phase < state.phase:
        return state, ()
    state = state.with_member(member.number, done=True, step=max(member.step, report.step))
    state = replace(
        state,
        step=max(state.step, report.step),
        samples=report.samples if report.samples is not None else state.samples,
        reason=report.reason or state.reason,
    )
    return then(wind_down(state), ended_early, now)


def _phase_started(state: State, member: Member, report: messages.PhaseStarted, now: float) -> Decision:
    """The script trains again, in another `job.epochs`: who was sent away at the end of the one before is replaced."""
    if not _trains(state, member) or report.phase <= state.phase:
        return state, ()
    state, actions = reopen(state, now)
    for number in (*state.group, *(state.formation.members if state.formation is not None else ())):
        state = state.with_member(number, done=False)
    step = max(state.step, report.step)
    return replace(state, reason="", phase=report.phase, epoch=0, sums=report.sums, step=step), actions


def _summed(state: State, member: Member, report: messages.Summed, now: float) -> Decision:
    return (replace(state, sums=report.sums) if _trains(state, member) else state), ()


def _ended(state: State, member: Member, report: messages.Ended, now: float) -> Decision:
    leaves = state.may_leave(member.number) and not report.done
    if member.left or leaves or not _trains(state, member):
        return state, ()
    done, step = member.done or report.done, max(member.step, report.step)
    state = state.with_member(member.number, ended=True, done=done, step=step, exit_by=now + EXIT_SECONDS)
    if report.samples is not None and report.step >= state.step:
        state = replace(state, samples=report.samples)
    state = replace(state, step=max(state.step, report.step))
    decision = then(wind_down(state), ended_early, now)
    survivors = state.survivors()
    enough = len(state.members.ended) >= len(survivors) > 0
    if enough and all(state.members[number].ended for number in survivors):
        decision = then(decision, lambda same: (same, (Order(survivors, messages.End("all scripts have ended")),)))
    return decision


def _trains(state: State, member: Member) -> bool:
    """Whether a member takes part in the training: in the current generation, or already in the next one."""
    formation = state.formation
    return member.number in state.group or (formation is not None and member.number in formation.active)


_REPORTS: dict[type, Callable[[State, Member, Any, float], Decision]] = {
    messages.Warm: _warm,
    messages.Formed: take_formed,
    messages.FormFailed: take_unformed,
    messages.Active: take_active,
    messages.Left: _left,
    messages.Progress: _progress,
    messages.Log: _log,
    messages.StepFailed: _step_failed,
    messages.StepRedone: _step_redone,
    messages.BatchChanged: _batch_changed,
    messages.MicroBatchLowered: _micro_batch_lowered,
    messages.StepTimes: _step_times,
    messages.Saved: _saved,
    messages.SaveFailed: _save_failed,
    messages.Halted: _halted,
    messages.Failed: _failed,
    messages.Done: _done,
    messages.PhaseStarted: _phase_started,
    messages.Summed: _summed,
    messages.Ended: _ended,
}
