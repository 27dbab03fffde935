"""Starts nodes towards the target, dismisses those above it, and gives up those that fail."""

from __future__ import annotations

import math
from dataclasses import replace

from elastic_launcher.config import ExitCode
from elastic_launcher.control.messages import End
from elastic_launcher.coordinator.model.actions import Action, KillNode, Order, StartNode
from elastic_launcher.coordinator.model.observations import NodeExited, NodeNotStarted, NodeUnfit, TargetChanged
from elastic_launcher.coordinator.model.roster import Member, Node, Phase
from elastic_launcher.coordinator.model.roster_tables import Members, Nodes
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.rules.ending import Decision, emit, finish, then
from elastic_launcher.coordinator.rules.pause import check_quota, go_on_waiting, lose_quota

MOST_FAILURES = 3  # nodes in a row that fail to come up, before no more are started
RETRY_SECONDS = 1.0  # until the next node is started after one failed; doubles with each in a row
LONGEST_RETRY = 60.0  # until a node is started in the place of one that is gone, at most
AWAY_SECONDS = 5.0  # until a node is started again where none can be started now
LEAVE_SECONDS = 60.0  # that the processes of a node that left may take to end


def change_target(state: State, observation: TargetChanged) -> Decision:
    """Takes another number of nodes as the target."""
    target = observation.target
    if state.over or state.stopping is not None:
        return replace(state, target=target), ()
    if target.nodes < state.rules.min_nodes:
        message = observation.message or (
            f"the hint allows {target.nodes} nodes, fewer than the minimum of {state.rules.min_nodes}"
        )
        waits = state.pause is not None or state.rules.waits is not None
        begun = state.generation > 0 or state.restart is not None or waits
        code = ExitCode.STOPPED if begun else ExitCode.NO_QUOTA
        return lose_quota(replace(state, target=target), code, message, observation.now)
    before = state.target
    state = replace(state, target=target)
    if before is None:
        return go_on_waiting(state, observation.now)
    raised = target.nodes > before.nodes
    state = replace(state, gave_up=False, failures=0) if raised else state
    return check_quota(state, observation.now)


def release_surplus(state: State, now: float) -> Decision:
    """Dismisses the nodes above the target.

    Those that the hint names go first, then those not admitted, then those over quota, then the youngest.
    """
    assert state.target is not None
    leavers = state.formation.leavers if state.formation is not None else ()
    wanted, by, named = state.target.nodes, state.target.by, state.target.leave
    told = []
    for node in [state.nodes[number] for number in sorted(state.nodes.leaving)]:
        if node.phase is not Phase.ADMITTED:
            told.append(node)  # while it was being admitted
        elif node.leave == "hint" and set(node.members) & set(leavers):
            state = state.with_node(node.number, leave_by=by) if node.leave_by != by else state
        elif node.leave == "hint":  # the target may have been raised again
            state = state.with_node(node.number, leave="", leave_by=math.inf)
    excess = state.nodes.staying - wanted
    missing = max(0, -excess)
    if state.to_replace + state.to_move > missing:
        to_replace = min(state.to_replace, missing)
        state = replace(state, to_replace=to_replace, to_move=min(state.to_move, missing - to_replace))
    surplus = []
    if excess > 0:
        surplus = sorted(
            state.staying(),
            key=lambda one: (one.number in named, one.phase is not Phase.ADMITTED, one.over_quota, one.number),
        )[wanted:]
    for node in surplus:
        if node.phase is Phase.ADMITTED:
            state = state.with_node(node.number, leave="hint", leave_by=by)
    decision: Decision = (state, ())
    for node in (*surplus, *told):
        if node.phase is not Phase.ADMITTED and not state.forming(node):
            decision = then(decision, dismiss, node, node.leave or "hint", now)
    return decision


def check_untrained(state: State, now: float) -> Decision:
    """Ends a job whose script ended well before there was a generation: on all nodes, or on too many of them."""
    if state.generation or state.formation is not None or not state.members.exited:
        return state, ()
    nodes = [node for node in state.in_phase(Phase.STARTING, Phase.WARM, Phase.GONE) if not node.leave]
    ended = [node for node in nodes if state.exited(node)]
    if not ended:
        return state, ()
    if all(state.members[number].exit is not None for node in nodes for number in node.members):
        message = "the script ended without a training step"
        warning = emit(state, "warning", message=message)
        return then((state, (warning,)), finish, ExitCode.DONE, f"done: 0 steps; {message}")
    able = [node for node in nodes if node not in ended]
    if len(able) >= state.rules.min_nodes or not all(node.phase is Phase.WARM for node in able):
        return replace(state, gave_up=True), ()
    member = state.members[ended[0].members[0]]
    message = (
        f"the script of {state.name(member.number)} ended before its first training step while others wait to train"
    )
    return finish(state, ExitCode.SCRIPT_FAILED, message, (member.node, member.local_rank))


def start_missing(state: State, now: float) -> Decision:
    """Starts nodes towards the target; one whose processes are not gone yet still counts."""
    assert state.target is not None
    there = len(state.nodes) - state.nodes.count(Phase.GONE)
    if state.gave_up or now < state.start_not_before or state.target.nodes <= there:
        return state, ()
    rules = state.rules
    actions: list[Action] = []
    nodes, members = dict(state.nodes), dict(state.members)
    size, first = rules.nproc_per_node, state.next_member
    within = _within_missing(state)
    for place in range(state.target.nodes - there):
        cause, over_quota = _cause(state, place), within is not None and place >= within
        number = rules.first_node + len(nodes)  # none is ever removed, so no number is used again
        own = tuple(range(first, first + size))
        nodes[number] = Node(number, own, now, cause, since=now, over_quota=over_quota)
        members |= {member: Member(member, number, local_rank) for local_rank, member in enumerate(own)}
        waits = rules.own_saves and state.restart is not None  # the workers of its round are ended
        kind = {"over_quota": True} if over_quota else {}
        kind |= {"others_wait": True} if waits else {}
        started = emit(state, "node_started", node=number, members=list(own), **kind)
        actions += [StartNode(number, first, size, over_quota), started]
        first += size
    count = len(nodes) - len(state.nodes)
    to_replace = max(0, state.to_replace - count)
    to_move = max(0, state.to_move - max(0, count - state.to_replace))
    state = replace(state, nodes=Nodes(nodes), members=Members(members), to_replace=to_replace, to_move=to_move)
    return state, tuple(actions)


def move_within(state: State, now: float) -> Decision:
    """Dismisses nodes of one kind that wait for a place while those of the other kind are missing: these come next.

    A node that has a place stays what it is.
    """
    if state.target is None or state.target.within is None or state.gave_up:
        return state, ()
    count = state.target.within - _within(state) - max(0, state.target.nodes - state.nodes.staying)
    over_quota = count > 0  # those that are missing, beyond what is started anyway
    if not over_quota:
        count = sum(not one.over_quota for one in state.staying()) - state.target.within
    waiting = [
        one for one in state.in_phase(Phase.STARTING) if one.over_quota == over_quota and one.unplaced and not one.leave
    ]
    decision: Decision = (state, ())
    for node in waiting[-count:] if count > 0 else ():
        decision = then(decision, dismiss, node, "hint", now)
    return decision


def _within_missing(state: State) -> int | None:
    """Returns how many nodes within the guarantee are missing; None where nodes are all of one kind."""
    if state.target is None or state.target.within is None:
        return None
    return max(0, state.target.within - _within(state))


def _within(state: State) -> int:
    """Returns how many nodes are within the guarantee; one whose processes are not gone yet still counts."""
    return sum(not one.over_quota for one in state.nodes.values() if one.phase is not Phase.GONE)


def _cause(state: State, place: int) -> str:
    """Returns why a node is started, the first of several at place 0."""
    if place < state.to_replace:
        return "failure"
    if not state.generation:
        return "start"
    return "notice" if place < state.to_replace + state.to_move else "hint"


def dismiss(state: State, node: Node, cause: str, now: float) -> Decision:
    """Ends a node that was never admitted; it need not wait for a boundary."""
    joined = tuple(number for number in node.members if state.members[number].pid is not None)
    actions: list[Action] = [Order(joined, End("not wanted any more"))] if joined else []
    actions += [KillNode(node.number), emit(state, "node_left", node=node.number, cause=cause)]
    return state.with_node(node.number, phase=Phase.ENDING, since=now, leave=cause), tuple(actions)


def fail_node(state: State, number: int, message: str, now: float) -> Decision:
    """Gives up a node that failed to come up: it does not count as a failure of the script."""
    node = state.nodes[number]
    if node.phase in (Phase.ENDING, Phase.GONE):
        return state, ()
    failures = state.failures + (not any(state.members[member].outgrown for member in node.members))
    actions: list[Action] = [KillNode(number), emit(state, "node_failed", node=number, message=message)]
    state = replace(
        state.with_node(number, phase=Phase.ENDING, since=now, leave="failed"),
        failures=failures,
        gave_up=failures >= MOST_FAILURES,
        start_not_before=now + RETRY_SECONDS * 2 ** (failures - 1),
    )
    if not state.gave_up:
        return state, tuple(actions)
    fewer = len(state.staying()) < state.rules.min_nodes
    if not state.generation and fewer:
        log_of = (number, _first_to_blame(state, node))
        goes_on = state.pause is not None or state.restart is not None or state.rules.resumes is not None
        end = "the training could not go on" if goes_on else "training never began"
        code = ExitCode.STOPPED if goes_on else ExitCode.SCRIPT_FAILED  # another launch may find better machines
        summary = f"{failures} nodes in a row failed to come up, the last: {message}; {end}"
        return then((state, tuple(actions)), finish, code, summary, log_of)
    text = (
        f"{failures} nodes in a row failed to come up; no more are started until the target is raised, training goes on"
    )
    return state, (*actions, emit(state, "warning", message=text))


def hold_back(state: State, node: Node, now: float) -> Decision:
    """Has nodes asked for later and later where they are taken again and again, and no step is done in between.

    This does not count as a failure: the first one is replaced at once, and there is no limit.
    """
    members = [state.members[number] for number in node.members]
    if state.over or any(one.left or one.lost or one.number in state.group for one in members):
        return state, ()
    before, taken = state.taken, state.taken.once_more(state.step, node.started_at, now)
    state = replace(state, taken=taken)
    if taken.times == 1 or taken == before:
        return state, ()
    pause = min(LONGEST_RETRY, RETRY_SECONDS * 2 ** (taken.times - 2))
    state = replace(state, start_not_before=max(state.start_not_before, now + pause))
    message = (
        f"nodes were taken {taken.times} times in a row before a step was done, node {node.number} the last time: "
        f"the next one is asked for in {pause:g} s"
    )
    return state, (emit(state, "warning", message=message),)


def warn_of_exit(state: State, observation: NodeExited) -> tuple[Action, ...]:
    """Warns with the reason of a node's end, if its engine knows it, or with its last line if it sent no log."""
    phase = state.nodes[observation.node].phase
    why = observation.why
    if not why and phase is Phase.STARTING and not observation.ranks:
        why = observation.last_line
    if not why or phase not in (Phase.STARTING, Phase.WARM, Phase.ADMITTED):
        return ()
    return (emit(state, "warning", message=f"node {observation.node}: {why}"),)


def take_unstarted(state: State, observation: NodeNotStarted) -> Decision:
    """Gives up a node that could not be started; there is nothing to kill or wait for."""
    if observation.away:
        message = f"node {observation.node} can't be started now: {observation.message}; another is tried soon"
        gone = state.with_node(observation.node, phase=Phase.GONE, since=observation.now, leave="failed")
        pause = observation.now + AWAY_SECONDS
        failed = emit(state, "node_failed", node=observation.node, message=message)
        return replace(gone, start_not_before=pause), (failed,)
    message = f"node {observation.node} could not be started: {observation.message}"
    state, actions = fail_node(state, observation.node, message, observation.now)
    kept = tuple(action for action in actions if not isinstance(action, KillNode))
    return state.with_node(observation.node, phase=Phase.GONE, since=observation.now), kept


def take_unfit(state: State, observation: NodeUnfit) -> Decision:
    """Takes that a node's machine lacks what the job needs: a usage error, unless others train already."""
    if state.generation or state.pause is not None:
        return fail_node(state, observation.node, observation.message, observation.now)
    if state.nodes[observation.node].phase in (Phase.ENDING, Phase.GONE):
        return state, ()
    failed = emit(state, "node_failed", node=observation.node, message=observation.message)
    return then((state, (failed,)), finish, ExitCode.BAD_USAGE, observation.message)


def check_nodes(state: State, now: float) -> Decision:
    """Ends nodes that take too long to be warm, or to end after they left."""
    decision: Decision = (state, ())
    for node in state.in_phase(Phase.STARTING):
        if node.waits or state.over:
            continue
        if now - max(node.started_at, node.began_at) > state.rules.start_timeout:
            message = f"node {node.number} was not ready to train {state.rules.start_timeout:g} s after its start"
            decision = then(decision, fail_node, node.number, message, now)
    for node in state.in_phase(Phase.LEAVING):
        if now - node.since > LEAVE_SECONDS and not state.over:
            message = f"node {node.number} left {LEAVE_SECONDS:g} s ago and its processes still run: killed"
            changed = decision[0].with_node(node.number, phase=Phase.ENDING, since=now)
            decision = changed, (*decision[1], KillNode(node.number), emit(state, "warning", message=message))
    return decision


def _first_to_blame(state: State, node: Node) -> int:
    """Returns the local rank of a node whose log is worth showing."""
    members = [state.members[number] for number in node.members]
    bad = [one for one in members if one.failure or (one.exit is not None and not one.exit.clean)]
    return (bad or members)[0].local_rank
