"""Decides what follows when workers end unasked: the loss of a node, or a failure of the script."""

from __future__ import annotations

import signal
from dataclasses import replace

from elastic_launcher.config import ExitCode
from elastic_launcher.coordinator.model.actions import KillNode
from elastic_launcher.coordinator.model.ending import Verdict, Weight
from elastic_launcher.coordinator.model.observations import NodeExited, NodeSilent, RankEnded
from elastic_launcher.coordinator.model.roster import Exit, Member, Phase
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.rules.ending import (
    COLLECT_SECONDS,
    UNCAUGHT,
    Decision,
    condemn,
    emit,
    finish,
    how,
    then,
)
from elastic_launcher.coordinator.rules.loss import CALM_SECONDS, FAILURE_WINDOW, schedule_replacement
from elastic_launcher.coordinator.rules.nodes import fail_node, warn_of_exit
from elastic_launcher.coordinator.rules.respawn.round_state import close, ended_well, in_round, living

MOST_SHORT_ROUNDS = 5
"""Losses in a row, each within `CALM_SECONDS` of its round's start, before it is the script's fault."""
STOP_SECONDS = 45.0
"""For torchrun to end its workers, which has 30 s for it, and to return."""
FORM_SECONDS = 60.0
"""For torchrun to start the workers of a round; its own exchange of ranks waits for no longer."""
SETTLE_SECONDS = 3.0
"""For torchrun to return once its last worker has ended."""


def take_rank_end(state: State, observation: RankEnded) -> Decision:
    """A worker ended."""
    node = state.nodes[observation.node]
    member, end, now = state.members[node.members[observation.local_rank]], observation.exit, observation.now
    if member.exit is not None:
        return state, ()
    state = state.with_member(member.number, exit=end)
    member = state.members[member.number]
    expected = state.restart is not None or state.stopping is not None
    if node.phase in (Phase.LEAVING, Phase.ENDING, Phase.GONE) or expected or member.number not in in_round(state):
        return state, ()
    if end.clean:
        return replace(state, over=True), ()
    if end.signal == signal.SIGTERM and _sibling_failed(state, member):
        return state, ()  # torchrun ends what is left of a node
    if end.signal == signal.SIGTERM and state.rules.c10d:  # torchrun's rendezvous starts a round by itself
        coming = any(not one.leave for one in state.in_phase(Phase.STARTING))
        return close(replace(state, verdict=None), "hint" if coming else "failure", now)
    if end.code is None:
        return _lose(state, member, how(end), now)
    fact = f"the script of {state.name(member.number)} exited with code {end.code}"
    log_of = (node.number, member.local_rank)
    until = now + COLLECT_SECONDS
    verdict = Verdict(ExitCode.SCRIPT_FAILED, fact, Weight.DEATH, until, log_of, uncaught=end.code == UNCAUGHT)
    return condemn(state, verdict)


def take_node_exit(state: State, observation: NodeExited) -> Decision:
    """A node is gone, with all its processes."""
    node, now = state.nodes[observation.node], observation.now
    agent = observation.exit_code
    decision: Decision = (state, warn_of_exit(state, observation))
    for local_rank, number in enumerate(node.members):
        if state.members[number].exit is None and number in in_round(state):
            end = Exit(code=0) if agent == 0 else Exit()
            decision = then(decision, take_rank_end, RankEnded(now, node.number, local_rank, end))
    state, actions = decision
    trained = set(node.members) & set(in_round(state))
    if state.nodes[node.number].phase in (Phase.STARTING, Phase.WARM, Phase.ADMITTED) and not (
        trained and ended_well(state, node.number)
    ):
        message = f"node {node.number} ended (its agent with {agent}) while it waited to train"
        state, more = fail_node(state, node.number, message, now)
        actions += more
    return state.with_node(node.number, phase=Phase.GONE, since=now), actions


def take_silent_node(state: State, observation: NodeSilent) -> Decision:
    """Gives up a node whose agent is silent: its machine is cut off, or gone."""
    node, now = state.nodes[observation.node], observation.now
    if node.phase in (Phase.LEAVING, Phase.ENDING, Phase.GONE) or state.over or state.stopping is not None:
        return state, ()
    if state.untrained(node) and node.waits:
        return state, ()
    silence = f"for {observation.seconds:.0f} s (--silence-timeout)"
    working = [number for number in node.members if number in living(state)]
    if working and state.restart is None:
        return _lose(state, state.members[working[0]], f"was on a node that gave no sign of life {silence}", now)
    return fail_node(state, node.number, f"nothing was heard from node {node.number} {silence}", now)


def judge(state: State, now: float) -> Decision:
    """Ends the job for a failure of the script, or takes it as the loss of its node, once it is known not to follow
    from the loss of another.
    """
    verdict = state.verdict
    if verdict is None or (now < verdict.until and living(state)):
        return state, ()
    assert verdict.log_of is not None
    node, local_rank = verdict.log_of
    member = state.members[state.nodes[node].members[local_rank]]
    recent = tuple(at for at in state.borne if now - at < FAILURE_WINDOW)
    if len(recent) < state.rules.max_failures:
        return _lose(replace(state, borne=(*recent, now)), member, how(member.exit or Exit()), now)
    fields = {"node": node, "member": member.number, "signal": None, "exit_code": member.exit and member.exit.code}
    lost = emit(state, "node_lost", **fields, message=verdict.message)
    return then(
        (state, (lost,)),
        finish,
        verdict.exit_code,
        verdict.message,
        verdict.log_of,
        "",
        verdict.uncaught,
    )


def check_stuck(state: State, now: float) -> Decision:
    """Gives up nodes that hold up a round's end, or its start."""
    decision: Decision = (state, ())
    restart, formation = state.restart, state.formation
    if formation is not None and now - formation.asked_at > FORM_SECONDS:
        message = f"round {formation.number} did not start within {FORM_SECONDS:g} s"
        for number in _unstarted(state):
            decision = then(decision, fail_node, number, message, now)
        return then(decision, close, "failure", now)
    if restart is None:
        return decision
    back = [node.since for node in state.in_phase(Phase.WARM) if set(node.members) & set(in_round(state))]
    for node in state.in_phase(Phase.ADMITTED):
        if node.since > restart.since or not set(node.members) & set(in_round(state)):
            continue
        if ended_well(state, node.number) and back and now - max(back) > SETTLE_SECONDS:
            decision = then(decision, _send_away, node.number, now)  # its torchrun waits for the others to end well too
        elif now - restart.since > STOP_SECONDS:
            message = f"node {node.number} did not end its workers within {STOP_SECONDS:g} s"
            decision = then(decision, fail_node, node.number, message, now)
    return decision


def _lose(state: State, member: Member, fact: str, now: float) -> Decision:
    """Replaces a node that is lost with a worker of the round; all others restart."""
    node = state.nodes[member.node]
    end = member.exit or Exit()
    message = f"{state.name(member.number)} {fact} in generation {state.generation_number}"
    fields = {"member": member.number, "signal": end.signal, "exit_code": end.code}
    lost = emit(state, "node_lost", node=node.number, **fields, message=message)
    began = max((state.nodes[number].since for number in state.nodes_of(in_round(state))), default=now)
    state = replace(state, verdict=None, broke=state.broke + 1 if now - began < CALM_SECONDS else 1)
    state = schedule_replacement(state.with_node(node.number, phase=Phase.ENDING, since=now), now)
    decision: Decision = (state, (lost, KillNode(node.number)))
    if state.broke >= MOST_SHORT_ROUNDS:
        reason = f"{state.broke} rounds in a row were broken off soon after their start, the last: {message}"
        log_of = (node.number, member.local_rank)
        return then(decision, finish, ExitCode.SCRIPT_FAILED, f"{reason}", log_of)
    stale = [number for number in state.nodes_of(in_round(state)) if state.over and ended_well(state, number)]
    state = replace(decision[0], over=False)
    decision = state, decision[1]
    for number in (*stale, *_unstarted(state)):  # torchrun would wait there for the node that is lost
        decision = then(decision, _send_away, number, now)
    return then(decision, close, "failure", now)


def _send_away(state: State, number: int, now: float) -> Decision:
    """Ends a node that is not to blame, and could not take part in the next round."""
    if state.nodes[number].phase is not Phase.ADMITTED:
        return state, ()
    state = state.with_node(number, phase=Phase.ENDING, since=now, leave="failure")
    return state, (KillNode(number), emit(state, "node_left", node=number, cause="failure"))


def _unstarted(state: State) -> list[int]:
    """Returns the nodes of a round that forms whose workers have not all started."""
    members = state.formation.members if state.formation is not None else ()
    return state.nodes_of(number for number in members if state.members[number].place is None)


def _sibling_failed(state: State, member: Member) -> bool:
    others = [state.members[number] for number in state.nodes[member.node].members if number != member.number]
    return any(one.exit is not None and not one.exit.clean for one in others)
