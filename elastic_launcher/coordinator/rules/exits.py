"""Decides what follows when processes of ranks and nodes end."""

from __future__ import annotations

from dataclasses import replace

from elastic_launcher.config import ExitCode
from elastic_launcher.coordinator.model.actions import KillNode
from elastic_launcher.coordinator.model.observations import AgentKilled, NodeExited, RankEnded
from elastic_launcher.coordinator.model.restart_budget import RestartBudget
from elastic_launcher.coordinator.model.roster import Exit, Member, Node, Phase
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.rules.ending import (
    Decision,
    emit,
    ended_early,
    exited_by_itself,
    how,
    then,
    wind_down,
)
from elastic_launcher.coordinator.rules.formation import fail_formation, form_if_active, let_go
from elastic_launcher.coordinator.rules.loss import bear_failure, check_holders, lose_node
from elastic_launcher.coordinator.rules.nodes import dismiss, fail_node, hold_back, warn_of_exit
from elastic_launcher.coordinator.rules.pending import is_earlier_pod, take_back


def take_rank_end(state: State, observation: RankEnded) -> Decision:
    """Takes the end of a member's process."""
    number = state.nodes[observation.node].members[observation.local_rank]
    if state.members[number].exit is not None:
        return state, ()
    state = state.with_member(number, exit=observation.exit)
    member, node = state.members[number], state.nodes[observation.node]
    if node.phase in (Phase.ENDING, Phase.GONE):
        return state, ()
    if state.may_leave(number) and not state.over and observation.exit.clean:
        return then(let_go(state, number, observation.now), check_holders, member, observation.now)
    if member.left:
        return _end_of_leaver(state, member)
    decision = form_if_active(state, observation.now) if state.forming(node) else (state, ())
    ends = _end_in_group if number in decision[0].group else _end_before_admission
    return then(decision, ends, member, observation.now)


def take_agent_killed(state: State, observation: AgentKilled) -> Decision:
    """Takes the end of an agent by a signal: the others continue without its node before its last process is gone."""
    node = state.nodes.get(observation.node)
    if node is None or node.phase is not Phase.ADMITTED:
        return state, ()
    return _end_ranks(state, node, dict(observation.ranks), Exit(signal=observation.signal), observation.now)


def take_node_exit(state: State, observation: NodeExited) -> Decision:
    """Takes the end of a node with all its processes; one that never trained may wait to start again."""
    if observation.taken:
        # This does not count as a failure: there is no limit to such restarts.
        state = replace(state, restart_budget=RestartBudget())
    if observation.node not in state.nodes:
        return state, ()  # a node from before a restart, which ended late
    node = state.nodes[observation.node]
    if is_earlier_pod(node, observation.pod):
        return state, ()
    if observation.again and state.untrained(node):
        return take_back(state, node, observation.again, observation.now)
    unknown = _unrecorded_exit(observation.exit_code)
    told = warn_of_exit(state, observation)
    if observation.taken:  # no failure: the next is started as fast as after a first loss
        state = replace(state, losses=0, failures=0, broke=0)
    decision = then((state, told), _end_ranks, node, dict(observation.ranks), unknown, observation.now)
    if observation.taken and node.phase in (Phase.STARTING, Phase.WARM):
        decision = then(decision, hold_back, node, observation.now)
    state, actions = decision
    if observation.again:  # its numbers are used: another takes its place
        actions = (*actions, KillNode(node.number))
        return state.with_node(node.number, phase=Phase.ENDING, since=observation.now), actions
    return state.with_node(node.number, phase=Phase.GONE, since=observation.now), actions


def _end_ranks(state: State, node: Node, known: dict[int, Exit], unknown: Exit, now: float) -> Decision:
    """Takes the ends of a node's ranks: by their records, or else as given."""
    decision: Decision = (state, ())
    for local_rank in range(len(node.members)):
        end = RankEnded(now, node.number, local_rank, known.get(local_rank, unknown))
        decision = then(decision, take_rank_end, end)
    return decision


def _unrecorded_exit(agent: int | None) -> Exit:
    """Returns the end of a rank without a record: an agent's exit code is never taken for a script's own."""
    if agent is not None and agent < 0:
        return Exit(signal=-agent)
    return Exit(agent) if agent in (ExitCode.DONE, ExitCode.STOPPED) else Exit()


def _end_of_leaver(state: State, member: Member) -> Decision:
    assert member.exit is not None
    if member.exit.clean:
        return state, ()
    message = f"{state.name(member.number)} {how(member.exit)} after it had left the training"
    return state, (emit(state, "warning", message=message),)


def _end_in_group(state: State, member: Member, now: float) -> Decision:
    assert member.exit is not None
    if member.failure is None and (member.exit.signal is not None or member.exit.code is None):
        return lose_node(state, member, now)
    if member.gave_up:
        fact = "ran out of memory" if member.outgrown else "left by itself, as its log says,"
        return lose_node(state, member, now, fact)
    if not member.exit.clean:
        return _fail_by_exit(state, member, now)
    if all(one.exit is not None for one in siblings(state, member)):
        state = state.with_node(member.node, phase=Phase.LEAVING, since=now)
    return then(wind_down(state), ended_early, now)


def _fail_by_exit(state: State, member: Member, now: float) -> Decision:
    assert member.exit is not None
    alone = _ended_alone(state, member)
    if member.failure is None:
        opened, actions = reopen(state, now) if alone else (state, ())
        if borne := bear_failure(opened, member, how(member.exit), now):
            return borne[0], actions + borne[1]
    return exited_by_itself(replace(state, over=state.over and not alone), member, now)


def _ended_alone(state: State, member: Member) -> bool:
    """Whether the training was taken for over because the scripts of one node have ended, and no other one has."""
    if not state.over or not member.ended or member.done:
        return False
    others = (state.members[number] for number in state.survivors())
    return not any(
        one.done or one.ended or (one.exit is not None and one.exit.clean) for one in others if one.node != member.node
    )


def _end_before_admission(state: State, member: Member, now: float) -> Decision:
    assert member.exit is not None
    formation, end = state.formation, member.exit
    forming = formation is not None and member.number in formation.members
    by_itself = end.signal is None and end.code is not None and not member.gave_up
    stood = formation is not None and set(formation.members) <= formation.formed | formation.active.keys()
    if not state.generation and by_itself and (end.code or (forming and stood)):
        return exited_by_itself(state, member, now)
    if not state.generation and end.clean and not forming:
        return state, ()  # judged with all the others
    if end.clean:
        message = f"the script of {state.name(member.number)} ended before it trained"
    else:
        failure = f": {member.failure.message}" if member.failure else ""
        message = f"{state.name(member.number)} {how(end)} before it was admitted{failure}"
    return fail_joiner(state, member, message, now)


def fail_joiner(state: State, member: Member, message: str, now: float) -> Decision:
    """Gives up the node of a member that can't be admitted, or the formation that has it."""
    if state.over:
        return state, ()  # it was not needed any more
    if state.formation is not None and member.number in state.formation.members:
        return fail_formation(state, message, (member.node,), now)
    return fail_node(state, member.node, message, now)


def siblings(state: State, member: Member) -> list[Member]:
    """Returns the members of a member's node."""
    return [state.members[number] for number in state.nodes[member.node].members]


def reopen(state: State, now: float) -> Decision:
    """Reopens a training that was taken for over: nodes that were dismissed for it are replaced."""
    if not state.over:
        return state, ()
    fails = state.formation is not None and not state.formation.active
    decision = fail_formation(state, "the training was over", (), now, True) if fails else (state, ())
    for node in state.in_phase(Phase.STARTING, Phase.WARM):
        joined = any(state.members[number].pid is not None for number in node.members)
        if joined and not decision[0].forming(node):
            decision = then(decision, dismiss, node, "over", now)
    return replace(decision[0], over=False), decision[1]
