"""Decides what follows when a node of the group is lost without notice, or a step breaks off.

The survivors form a new group, the node is replaced, and the same step is done again. The job ends only where nobody is
left who holds the state, or where the same step breaks off again and again.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from elastic_launcher.config import ExitCode
from elastic_launcher.control.messages import Abandon, End, FormFailed, StepFailed
from elastic_launcher.coordinator.model.actions import KillNode, Order
from elastic_launcher.coordinator.model.ending import Verdict, Weight
from elastic_launcher.coordinator.model.observations import GroupHangs
from elastic_launcher.coordinator.model.roster import Exit, Member, Phase
from elastic_launcher.coordinator.model.state import Recovery, State
from elastic_launcher.coordinator.rules.ending import (
    COLLECT_SECONDS,
    Decision,
    appoint_saver,
    condemn,
    emit,
    ended_early,
    finish,
    how,
    owes_exit,
    then,
    when,
)
from elastic_launcher.coordinator.rules.formation import begin, check_minimum, fail_formation, take_form_failed
from elastic_launcher.coordinator.rules.nodes import LONGEST_RETRY, RETRY_SECONDS, dismiss
from elastic_launcher.coordinator.rules.root_cause import concerns_a_peer, lost_elsewhere

MOST_BREAKS = 3  # of one step in a row, before it is the script's fault
FAILURE_WINDOW = 3600.0  # seconds in which failures of the script are counted
CALM_SECONDS = 60.0  # after which a loss is a first one again: its node is replaced at once


def lose_node(state: State, member: Member, now: float, fact: str = "") -> Decision:
    """A node of the group is gone, or is to go, because one of its members is, or because of ``fact``."""
    node = state.nodes[member.node]
    end = member.exit or Exit()
    message = _account(state, member, fact or how(end))
    fields: dict[str, Any] = {"member": member.number, "signal": end.signal, "exit_code": end.code, "step": state.step}
    lost = emit(state, "node_lost", node=node.number, **fields, message=message)
    left_over = tuple(number for number in node.members if state.members[number].exit is None)
    actions = (lost, KillNode(node.number), Order(left_over, End(message, at_once=True)))
    for number in node.members:
        state = state.with_member(number, lost=True)
    noticed = node.leave_by < math.inf
    state = state.with_node(node.number, phase=Phase.ENDING, since=now)
    decision: Decision = (state if noticed else schedule_replacement(state, now), actions)
    formation = state.formation
    if formation is not None and set(node.members) & {*formation.members, *formation.leavers}:
        decision = then(decision, fail_formation, message, (), now, True)
    decision = then(decision, break_off, message, True, node.leave if noticed else "failure")
    decision = then(then(decision, check_holders, member, now, message), appoint_saver)
    return then(decision, check_minimum, [node], now) if noticed and state.generation else decision


def bear_failure(state: State, member: Member, fact: str, now: float) -> Decision | None:
    """Takes a failure of the script on one rank as the loss of its node, if that is wanted and others can go on."""
    recent = [at for at in state.borne if now - at < FAILURE_WINDOW]
    others = [state.members[number] for number in state.survivors() if state.members[number].node != member.node]
    able = any(other.failure is None and other.exit is None and not other.ended for other in others)
    follows = member.failure is None or concerns_a_peer(member.failure)
    if follows and lost_elsewhere(state, member.node) is not None:
        return None  # that is no failure of the script
    if len(recent) >= state.rules.max_failures or not able or state.over or member.number not in state.survivors():
        return None
    state = state.with_member(member.number, borne=_account(state, member, fact))
    return lose_node(replace(state, borne=(*recent, now)), state.members[member.number], now, fact)


def _account(state: State, member: Member, fact: str) -> str:
    return f"{state.name(member.number)} {fact} {when(state)}"


def take_broken_step(state: State, number: int, report: StepFailed, reason: str, now: float) -> Decision:
    """Takes a report that a member's step broke off; it holds the state and waits for a new formation."""
    state, actions = break_off(state, reason)
    recovery = state.recovery
    assert recovery is not None
    others = recovery.others if number in (*state.group, *recovery.others) else (*recovery.others, number)
    again = report.formation == recovery.given_up  # its recovery broke off once more
    steps = {**recovery.steps, number: report.step}
    recovery = replace(recovery, steps=steps, others=others, counted=recovery.counted and not again)
    state = replace(state, recovery=recovery, broken=state.broken | {number})
    if state.verdict is not None and not state.survivors():
        state = replace(state, verdict=None)  # here is one who holds the state
    return then((state, actions), ended_early, now)


def take_unformed(state: State, member: Member, report: FormFailed, now: float) -> Decision:
    """A formation did not come about at a member, or it has taken note that it was given up."""
    number = member.number
    state, actions = take_form_failed(state, number, report, now)
    recovery = state.recovery
    if recovery is not None and report.formation == recovery.given_up and number not in recovery.steps:
        steps = {**recovery.steps, number: state.members[number].step}
        state = replace(state, recovery=replace(recovery, steps=steps))
    return state, actions


def recover(state: State, now: float) -> Decision:
    """Forms a new group of the members whose step broke off, once all of them wait for it."""
    waiting = state.recovery
    if waiting is None or state.formation is not None or now < waiting.not_before:
        return state, ()
    gone = len(state.members.departed) + len(state.members.ended)  # at most so many of the group are not expected
    if len(waiting.steps) < len(state.group) - gone:
        return state, ()
    survivors = state.survivors()
    if state.members.early and any(owes_exit(state.members[number], now) for number in survivors):
        return state, ()  # whether it is lost, or the training over, is known in a moment
    expected = [number for number in survivors if not state.members[number].ended]
    if not all(number in waiting.steps for number in expected):
        return state, ()
    decision: Decision = (state, ())
    joined = []
    for node in state.in_phase(Phase.WARM):
        holders = [number for number in node.members if number in waiting.others and number in waiting.steps]
        if holders == list(node.members):
            joined += holders
        elif holders:
            decision = then(decision, dismiss, node, "failed", now)
    members = (*expected, *joined)
    if not members:
        return replace(decision[0], recovery=None), decision[1]
    step = max(waiting.steps[number] for number in members)
    state = decision[0]
    if not waiting.counted:
        broke = state.broke + 1 if step == state.broke_at else 1
        state = replace(state, broke_at=step, broke=broke, recovery=replace(waiting, counted=True))
    if state.broke >= MOST_BREAKS:
        message = f"step {step} broke off {state.broke} times in a row, the last time: {waiting.reason}"
        return then((state, decision[1]), finish, ExitCode.SCRIPT_FAILED, message)
    return then((state, decision[1]), begin, "recover", members, (), (), {}, waiting.cause, now)


def break_off(state: State, reason: str, loss: bool = False, cause: str = "failure") -> Decision:
    """Has all survivors drop what they do in their group, so that all of them notice at once.

    ``loss`` means that a node is gone, so that nothing else need be looked for. The ``cause`` is ``failure``, or
    ``notice`` or ``hint`` where the node had a notice: then the step does not count as broken.
    """
    recovery = state.recovery
    noticed = cause != "failure"
    if recovery is not None:
        if loss:
            known = recovery.reason if recovery.explained else reason
            if not (noticed and recovery.explained):
                recovery = replace(recovery, cause=cause, counted=noticed or recovery.counted)
            recovery = replace(recovery, reason=known, explained=True, failures=0, not_before=0.0)
        return replace(state, recovery=recovery), ()
    if state.over and loss:
        return state, ()  # who needs the others says so
    state = replace(state, recovery=Recovery(reason, loss, counted=noticed, cause=cause))
    told = tuple(number for number in state.survivors() if state.members[number].exit is None)
    if not told or not state.group_formation:
        return state, ()
    return state, (Order(told, Abandon(state.group_formation, told if loss else ())),)


def check_holders(state: State, member: Member, now: float, message: str = "") -> Decision:
    """Ends the job if no member is left that holds the state; a joiner may still report that it does.

    ``member`` is lost, or has left after the others were lost; ``message`` says how it was lost.
    """
    if state.survivors() or not state.group:
        return state, ()
    recovery = state.recovery or Recovery(message)
    message = message or recovery.reason or f"{state.name(member.number)} has left"
    if any(state.members[one].exit is None for one in recovery.others):
        return state, ()
    if recovery.explained and recovery.reason != message:
        message = f"{recovery.reason}; {message}"
    verdict = Verdict(
        ExitCode.SCRIPT_FAILED,
        f"{message}; no other node holds the state",
        Weight.DEATH,
        now + COLLECT_SECONDS,
        (member.node, member.local_rank),
        curable=True,
    )
    return condemn(state, verdict)


def take_hang(state: State, observation: GroupHangs) -> Decision:
    """Restarts a job in which a member waits for a lost peer in a group of the script's own, which can't be aborted."""
    member = state.members[observation.member]
    lost = lost_elsewhere(state, member.node)
    if lost is None or member.number not in state.survivors() or member.exit is not None:
        return state, ()
    message = (
        f"{state.name(lost.number)} is lost, and {state.name(member.number)} has waited {observation.seconds:.0f} s "
        "in a collective operation of the script's own, which may need it"
    )
    until, log_of = observation.now, (member.node, member.local_rank)
    return condemn(state, Verdict(ExitCode.SCRIPT_FAILED, message, Weight.DEATH, until, log_of, curable=True))


def schedule_replacement(state: State, now: float) -> State:
    """Lets the first loss be replaced at once, and those that follow soon after it later and later."""
    losses = state.losses + 1 if now - state.lost_at < CALM_SECONDS else 1
    pause = 0.0 if losses == 1 else min(LONGEST_RETRY, RETRY_SECONDS * 2 ** (losses - 2))
    earliest = max(state.start_not_before, now + pause)
    return replace(state, losses=losses, lost_at=now, start_not_before=earliest, to_replace=state.to_replace + 1)
