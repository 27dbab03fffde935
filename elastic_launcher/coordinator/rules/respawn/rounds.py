"""Decides for scripts that don't use our library: their workers are ended and started in rounds.

Nodes are torchrun agents that stay; a round is one start of workers on all of them that take part. What is known comes
from the nodes alone. Invariants: one round is on at a time, and a new one is opened only when all workers of the one
before have ended; a round never has more nodes than the target, nor fewer than the minimum.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from elastic_launcher.config import ExitCode
from elastic_launcher.coordinator.model import observations
from elastic_launcher.coordinator.model.actions import Action, Emit, Finish, LetGo, OpenRound, RestartAll
from elastic_launcher.coordinator.model.restart_budget import Taken
from elastic_launcher.coordinator.model.roster import Exit, Node, Phase
from elastic_launcher.coordinator.model.roster_tables import Ranks
from elastic_launcher.coordinator.model.state import Formation, State
from elastic_launcher.coordinator.rules.ending import (
    APART,
    IS_SAVED,
    Decision,
    emit,
    finish,
    finish_stopped,
    interrupt,
    kept,
    stop,
    stop_asked,
    take_stop_request,
    then,
    when,
)
from elastic_launcher.coordinator.rules.nodes import (
    change_target,
    check_nodes,
    dismiss,
    release_surplus,
    start_missing,
    take_unstarted,
)
from elastic_launcher.coordinator.rules.notice import take_notice
from elastic_launcher.coordinator.rules.pause import take_pause, wait_for_nodes
from elastic_launcher.coordinator.rules.respawn.ends import (
    check_stuck,
    judge,
    take_node_exit,
    take_rank_end,
    take_silent_node,
)
from elastic_launcher.coordinator.rules.respawn.round_state import close, ended_well, gathered, in_round, living

OWN_SAVES = "what is kept is what the script itself has saved"
ENDS_RANKS = "its ranks get SIGTERM and 30 s, and then the job ends"


def decide_rounds(state: State, observation: observations.Observation) -> Decision:
    """Returns the next state, and the actions in order."""
    if state.finished:
        return state, ()
    decision = _OBSERVATIONS[type(observation)](state, observation)
    state, actions = then(decision, _settle, observation.now)
    return state, tuple(_for_own_saves(action, kept(state)) for action in actions)


def _for_own_saves(action: Action, saved: str) -> Action:
    """Changes a message for a script that saves by itself."""
    if isinstance(action, Finish):
        return replace(action, message=action.message.replace(saved, OWN_SAVES))
    if isinstance(action, Emit) and IS_SAVED in str(action.fields.get("message")):
        message = str(action.fields["message"]).replace(IS_SAVED, ENDS_RANKS)
        return replace(action, fields={**action.fields, "message": message})
    return action


def _settle(state: State, now: float) -> Decision:
    decision = then(take_stop_request(state, now), judge, now)
    for rule in _STEPS:
        state = decision[0]
        if state.finished or state.verdict is not None or state.target is None:
            return decision
        if (state.over or state.stopping is not None) and rule is not _end_round and rule is not check_stuck:
            continue
        decision = then(decision, rule, now)
    return decision


def _end_round(state: State, now: float) -> Decision:
    """Ends the workers of a job that is to stop, and then the job; or the job, when all its workers have ended well."""
    if state.stopping is not None:
        if now < state.stopping.until and (state.group or state.formation) and living(state):
            return close(state, state.restart.cause if state.restart else "notice", now)
        return finish_stopped(state, state.stopping)
    if not in_round(state) or not all(ended_well(state, node) for node in state.nodes_of(in_round(state))):
        return state, ()
    gone = all(state.nodes[node].phase is Phase.GONE for node in state.nodes_of(in_round(state)))
    by_itself = state.restart is None and not state.rules.c10d  # not because they were ordered to end
    return finish(state, ExitCode.DONE, "done") if by_itself or gone else (state, ())


def _resize(state: State, now: float) -> Decision:
    """Ends a round whose nodes are not those that there should be, once those that come to it are there."""
    if state.restart is not None or state.formation is not None or not state.group:
        return state, ()
    leaving = [node for node in state.in_phase(Phase.ADMITTED, Phase.WARM) if node.leave and _takes_part(state, node)]
    if leaving:
        staying = state.staying()
        decision: Decision = (state, ())
        if len(staying) < state.rules.min_nodes:
            message = (
                f"node {leaving[-1].number} must leave ({leaving[-1].leave}) and {len(staying)} of at least "
                f"{state.rules.min_nodes} nodes would stay"
            )
            if not state.rules.node_timeout:
                return stop(state, ExitCode.STOPPED, message, now, joint=APART)
            decision = wait_for_nodes(state, message, now)
        decision = then(decision, close, leaving[-1].leave, now)
        for node in leaving if state.rules.c10d else ():
            decision = then(decision, _let_go, node, now)
        return decision
    joining = [node for node in state.in_phase(Phase.WARM) if not node.leave and not _takes_part(state, node)]
    if not joining or not gathered(state, joining, now):
        return state, ()
    return close(state, "failure" if joining[-1].cause == "failure" else "hint", now)


def _dismiss_leavers(state: State, now: float) -> Decision:
    """Dismisses the nodes above the target; while workers are ended, only those that have to leave."""
    if state.restart is None:
        return release_surplus(state, now)
    decision: Decision = (state, ())
    for node in state.in_phase(Phase.WARM):
        if node.leave:
            decision = then(decision, dismiss, node, node.leave, now)
    return decision


def _let_go(state: State, node: Node, now: float) -> Decision:
    """Ends a node under torchrun's own rendezvous: the others notice that it has gone."""
    state = state.with_node(node.number, phase=Phase.LEAVING, since=now)
    return state, (LetGo(node.number), emit(state, "node_left", node=node.number, cause=node.leave))


def _takes_part(state: State, node: Node) -> bool:
    return any(number in in_round(state) for number in node.members)


def _open_round(state: State, now: float) -> Decision:
    """Opens the next round when it is time for it."""
    assert state.target is not None
    first = not state.generation and state.formation is None
    if state.rules.c10d or not (first or state.restart) or living(state):
        return state, ()
    if any(_takes_part(state, node) for node in state.in_phase(Phase.ADMITTED)):
        return state, ()  # its torchrun has still to return
    nodes = [node for node in state.in_phase(Phase.WARM) if not node.leave][: state.target.nodes]
    if len(nodes) < state.rules.min_nodes:
        if not (state.gave_up and not state.in_phase(Phase.STARTING)):
            return state, ()
        message = f"{len(nodes)} of at least {state.rules.min_nodes} nodes are left {when(state)}"
        return finish(state, ExitCode.SCRIPT_FAILED, message)
    if len(nodes) < state.target.nodes and not gathered(state, nodes, now):
        return state, ()
    number = state.formations + 1
    for node in nodes:
        state = state.with_node(node.number, phase=Phase.ADMITTED, since=now)
        for member in node.members:
            state = state.with_member(member, pid=None, exit=None, place=None)
    members = tuple(member for node in nodes for member in node.members)
    cause = state.restart.cause if state.restart is not None else "start"
    formation = Formation(number, "start", Ranks(members), Ranks(), Ranks(), cause, now)
    state = replace(state, formation=formation, formations=number)
    return state, (OpenRound(number, tuple(node.number for node in nodes)),)


def _take_waits(state: State, observation: observations.NodeWaits) -> Decision:
    """Takes a node's torchrun that asks for a round: its earlier workers are gone."""
    node = state.nodes[observation.node]
    if node.phase in (Phase.LEAVING, Phase.ENDING, Phase.GONE):
        return state, ()
    if node.phase is Phase.STARTING:
        state = state.with_node(node.number, phase=Phase.WARM, since=observation.now)
        return state, (emit(state, "node_warm", node=node.number),)
    decision: Decision = (state.with_node(node.number, phase=Phase.WARM, since=observation.now), ())
    for local_rank in range(len(node.members)):  # one that had to be killed could not say so
        end = observations.RankEnded(observation.now, node.number, local_rank, Exit(signal=signal.SIGKILL))
        decision = then(decision, take_rank_end, end)
    return decision


def _take_rank_start(state: State, observation: observations.RankStarted) -> Decision:
    """Takes the start of a worker."""
    node = state.nodes[observation.node]
    if node.phase in (Phase.LEAVING, Phase.ENDING, Phase.GONE):
        return state, ()
    number = node.members[observation.local_rank]
    place = observation.rank, observation.world_size
    state = replace(state.with_member(number, pid=observation.pid, exit=None, place=place), over=False)
    if state.rules.c10d:
        return _form_by_itself(state, node, observation.now)
    formation = state.formation
    if formation is None or any(state.members[one].place is None for one in formation.members):
        return state, ()
    return _form(state, formation.members, observation.now)


def _form_by_itself(state: State, node: Node, now: float) -> Decision:
    """Makes a generation of the workers that are there, once their number is the world size that torchrun gave them."""
    decision: Decision = (state, ())
    if node.phase is Phase.STARTING and all(state.members[number].place is not None for number in node.members):
        state = state.with_node(node.number, phase=Phase.ADMITTED, since=now)
        decision = state, (emit(state, "node_warm", node=node.number),)
    there = [m for m in state.members.values() if m.place is not None and m.exit is None]
    there = [m for m in there if state.nodes[m.node].phase in (Phase.STARTING, Phase.ADMITTED)]
    there.sort(key=lambda member: member.place or (0, 0))
    whole = [(rank, len(there)) for rank in range(len(there))]
    if [member.place for member in there] != whole or (state.generation and state.restart is None):
        return decision
    return then(decision, _form, tuple(member.number for member in there), now)


def _form(state: State, members: tuple[int, ...], now: float) -> Decision:
    """Makes a generation of a round all of whose workers have started."""
    restart, before = state.restart, state.nodes_of(state.group)
    nodes = state.nodes_of(members)
    for number in nodes:
        state = state.with_node(number, phase=Phase.ADMITTED, since=now)
    formations = state.formation.number if state.formation is not None else state.formations + 1
    state = replace(
        state,
        generation=state.generation + 1,
        group=Ranks(members),
        group_formation=formations,
        formations=formations,
        formation=None,
        restart=None,
        pause=None,
        failures=0,
        taken=Taken(),
    )
    event = emit(
        state,
        "generation_formed",
        formation=formations,
        world_size=len(members),
        nodes=len(nodes),
        members=[{"member": number, "node": state.members[number].node} for number in members],
        cause=restart.cause if restart is not None else "start",
        pause_seconds=round(now - restart.since, 4) if restart is not None else 0.0,
        joined=[number for number in nodes if number not in before],
        left=[number for number in before if number not in nodes],
    )
    return state, (event,)


def _switch(state: State, observation: observations.MemberJoined) -> Decision:
    """Restarts a script that turns out to use our library, with in-process reports; ends a job that is to stop."""
    if state.stopping is not None:
        return finish_stopped(state, state.stopping)
    return replace(state, rules=replace(state.rules, own_saves=False), finished=True), (RestartAll(),)


def _change_target(state: State, observation: observations.TargetChanged) -> Decision:
    """Changes the target; a script that saves by itself does not wait for quota once it runs."""
    rules, target = state.rules, replace(observation.target, wait=None)
    unwaiting = replace(state, rules=replace(rules, wait_for_quota=0.0))
    decided, actions = change_target(unwaiting, replace(observation, target=target))
    return replace(decided, rules=rules), actions


def _nothing(state: State, observation: observations.Observation) -> Decision:
    return state, ()


_STEPS: tuple[Callable[[State, float], Decision], ...] = (
    _end_round,
    take_pause,
    check_nodes,
    check_stuck,
    _dismiss_leavers,
    start_missing,
    _resize,
    _open_round,
)
_OBSERVATIONS: dict[type, Callable[[State, Any], Decision]] = {
    observations.Tick: _nothing,
    observations.TargetChanged: _change_target,
    observations.MemberJoined: _switch,
    observations.MemberReported: _nothing,
    observations.MemberSilent: _nothing,
    observations.NodeSilent: take_silent_node,
    observations.NodeNotStarted: take_unstarted,
    observations.NodeNoticed: take_notice,
    observations.NodeWaits: _take_waits,
    observations.RankStarted: _take_rank_start,
    observations.RankEnded: take_rank_end,
    observations.AgentKilled: _nothing,
    observations.NodeExited: take_node_exit,
    observations.MemberStuck: _nothing,
    observations.MembersApart: _nothing,
    observations.MemberAwaited: _nothing,
    observations.GroupHangs: _nothing,
    observations.MemberSlow: _nothing,
    observations.NoticeExpires: _nothing,
    observations.ResumePointFound: _nothing,
    observations.SaveAsked: _nothing,
    observations.StopAsked: stop_asked,
    observations.Interrupted: interrupt,
}
