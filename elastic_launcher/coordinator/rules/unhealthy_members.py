"""Decides what follows when a member is silent, stuck or slow, or ranks wait for each other in vain."""

from __future__ import annotations

import math

from elastic_launcher.config import ExitCode
from elastic_launcher.control.vitals import name_apart
from elastic_launcher.coordinator.model.actions import Emit, KillNode
from elastic_launcher.coordinator.model.ending import Verdict, Weight
from elastic_launcher.coordinator.model.observations import (
    MemberAwaited,
    MembersApart,
    MemberSilent,
    MemberSlow,
    MemberStuck,
    NodeSilent,
    RankEnded,
)
from elastic_launcher.coordinator.model.roster import Exit, Member, Phase
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.rules.ending import COLLECT_SECONDS, Decision, condemn, emit, then
from elastic_launcher.coordinator.rules.exits import fail_joiner, siblings, take_rank_end
from elastic_launcher.coordinator.rules.loss import lose_node
from elastic_launcher.coordinator.rules.nodes import fail_node


def take_silence(state: State, observation: MemberSilent) -> Decision:
    """Warns about a silent member whose process lives, or gives up its node."""
    member, now = state.members[observation.member], observation.now
    silence = f"for {observation.seconds:.0f} s"
    if observation.over:
        return state, (_silent(state, member, over=True),)
    if not observation.given_up:
        message = f"nothing was heard from {state.name(member.number)} {silence}"
        return state, (emit(state, "warning", message=message), _silent(state, member, over=False))
    in_group = member.number in state.survivors()
    if observation.waited_for:
        if not in_group or member.exit is not None or member.ended:
            return state, ()
        return lose_node(state, member, now, f"gave no sign of life {silence} while others waited for it,")
    fact = f"gave no sign of life {silence} (--silence-timeout)"
    if in_group and member.ended:
        return _end_silent_process(state, member, fact, now)
    if in_group:
        return lose_node(state, member, now, fact)
    return (state, ()) if member.left else fail_joiner(state, member, f"{state.name(member.number)} {fact}", now)


def _end_silent_process(state: State, member: Member, fact: str, now: float) -> Decision:
    """Kills a process whose script has ended, with its node, once no other script there has anything left to do."""
    fact = f"{state.name(member.number)} {fact} after its script had ended"
    alive = [one for one in siblings(state, member) if one.exit is None]
    busy = [state.name(one.number) for one in alive if not one.ended]
    if busy:
        if member.lingers:
            return state, ()
        message = f"{fact}: it is killed once the script of {' and '.join(busy)} has ended, too"
        return state.with_member(member.number, lingers=True), (emit(state, "warning", message=message),)
    told = emit(state, "warning", message=f"{fact}: it is killed"), KillNode(member.node)
    decision: Decision = (state, told)
    for one in alive:  # what they had to do is done
        decision = then(decision, take_rank_end, RankEnded(now, one.node, one.local_rank, Exit(0)))
    return decision


def take_silent_node(state: State, observation: NodeSilent) -> Decision:
    """Gives up a node without members whose agent is silent."""
    node = state.nodes[observation.node]
    if node.phase is not Phase.STARTING or node.waits or state.over:
        return state, ()
    message = f"nothing was heard from node {node.number} for {observation.seconds:.0f} s (--silence-timeout)"
    return fail_node(state, node.number, message, observation.now)


def _silent(state: State, member: Member, over: bool) -> Emit:
    rank = state.group.index(member.number) if member.number in state.group else None
    return emit(state, "silent", member=member.number, rank=rank, node=member.node, over=over)


def take_stuck(state: State, observation: MemberStuck) -> Decision:
    """Gives up the node of a member that makes no progress in a step while others wait for it."""
    member = state.members[observation.member]
    if member.number not in state.survivors() or member.exit is not None or state.over:
        return state, ()
    fact = f"made no progress in its step for {observation.seconds:.0f} s while others waited for it,"
    return lose_node(state, member, observation.now, fact)


def take_slow(state: State, observation: MemberSlow) -> Decision:
    """Records that a member is slower than the others, or no longer."""
    member = state.members[observation.member]
    if member.number not in state.group or state.over:
        return state, ()
    return state, (
        emit(
            state,
            "straggler",
            member=member.number,
            rank=state.group.index(member.number),
            node=member.node,
            factor=round(observation.factor, 2),
            step_seconds=round(observation.seconds, 4),
            over=observation.over,
        ),
    )


def take_apart(state: State, observation: MembersApart) -> Decision:
    """Ends a job all of whose ranks wait in different operations: none of them can make progress."""
    numbers = [number for number, _ in observation.waits]
    if state.recovery is not None or state.verdict is not None or not set(numbers) <= set(state.survivors()):
        return state, ()
    where = ", ".join(f"rank {state.group.index(number)} is {doing}" for number, doing in observation.waits)
    member = state.members[numbers[0]]
    until, log_of = observation.now + COLLECT_SECONDS, (member.node, member.local_rank)
    return condemn(state, Verdict(ExitCode.SCRIPT_FAILED, name_apart(where), Weight.SCRIPT, until, log_of))


def take_awaited(state: State, observation: MemberAwaited) -> Decision:
    """Warns about a rank that keeps another one waiting for long: where both are, and what may help."""
    if not {observation.waiter, observation.member} <= set(state.survivors()) or state.verdict is not None:
        return state, ()
    waiter, awaited = state.group.index(observation.waiter), state.group.index(observation.member)
    message = (
        f"rank {waiter} has waited {observation.waits:.0f} s {observation.waits_in}; rank {awaited} has been "
        f"{observation.doing} for {observation.busy:.0f} s"
    )
    if not state.members[observation.member].ended:
        message += ": if that is an evaluation, use job.evaluate, in which all ranks take part"
    if observation.longest < math.inf:
        message += f"; it is given up after {observation.longest:.0f} s unless --progress-timeout is raised"
    return state, (emit(state, "warning", message=message),)
