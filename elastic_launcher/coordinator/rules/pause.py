"""Pauses a job that lacks quota or nodes: saves it, ends its nodes, and resumes it from its checkpoint.

It goes through these stages: its members save and halt; its nodes end; its last checkpoint is looked for; and it
waits, as a job that starts. Where it lacks quota, nothing is asked for until the target allows its minimum. Where it
lacks nodes that the target allows, they are asked for at once, and it waits until so many train.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from elastic_launcher.config import ExitCode
from elastic_launcher.control.messages import End, Save
from elastic_launcher.coordinator.model.actions import Action, FindResumePoint, KillNode, Order
from elastic_launcher.coordinator.model.deadlines import time_to_save
from elastic_launcher.coordinator.model.ending import Restart, Weight
from elastic_launcher.coordinator.model.observations import ResumePointFound
from elastic_launcher.coordinator.model.pause import Lack, Pause, Stage
from elastic_launcher.coordinator.model.roster import Node, Phase
from elastic_launcher.coordinator.model.roster_tables import Members, Nodes
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.rules.ending import APART, Decision, emit, finish, stop, then


def lose_quota(state: State, exit_code: int, message: str, now: float) -> Decision:
    """Pauses or ends a job that may not have its minimum, with a last checkpoint.

    Args:
        state: The state before.
        exit_code: What the launcher exits with if the job is not to wait.
        message: What took the quota.
        now: Monotonic seconds.
    """
    pause = state.pause
    if pause is not None and pause.lack is Lack.QUOTA:
        return state, ()
    if not state.wait_for_quota:
        if not state.nodes:
            return finish(state, exit_code, f"{message}; nothing was started")
        return stop(state, exit_code, message, now, joint=APART)
    if pause is None:
        return _pause(state, Lack.QUOTA, message, now)
    waits_already = pause.asks
    state = replace(state, pause=replace(pause, lack=Lack.QUOTA, message=message))
    decision: Decision = (state, (emit(state, "quota_lost", step=state.step, message=message),))
    return then(decision, _end_nodes, now) if waits_already else decision


def lose_nodes(state: State, message: str, now: float) -> Decision:
    """Pauses or ends a job of which fewer nodes than the minimum stay although the target allows it.

    Args:
        state: The state before.
        message: What took them.
        now: Monotonic seconds.
    """
    if not state.rules.node_timeout:
        return stop(state, ExitCode.STOPPED, message, now, joint=APART)
    return _pause(state, Lack.NODES, message, now) if state.pause is None else (state, ())


def _pause(state: State, lack: Lack, message: str, now: float) -> Decision:
    until = now + time_to_save(math.inf, state.save_seconds)
    state = replace(state, pause=Pause(message, Stage.SAVING, until, lack=lack))
    kind = "quota_lost" if lack is Lack.QUOTA else "nodes_taken"
    told = emit(state, kind, step=state.step, message=message)
    if not state.generation:
        return then((state, (told,)), _end_nodes, now)
    return state, (told, Order(state.survivors(), Save(halt=True)))


def take_pause(state: State, now: float) -> Decision:
    """Brings a paused job to its next stage, when it is time."""
    pause = state.pause
    if pause is None or state.finished:
        return state, ()
    if pause.stage is Stage.SAVING:
        return _end_when_saved(state, pause, now)
    if pause.stage is Stage.ENDING and not state.in_phase(Phase.ADMITTED, Phase.LEAVING, Phase.ENDING):
        return replace(state, pause=replace(pause, stage=Stage.LOOKING)), (FindResumePoint(),)
    if pause.stage is Stage.WAITING and now >= _ends(state, pause) and not _come_up(state):
        quota = f"no quota within the {state.wait_for_quota:g} s of {_source_of_wait(state)}"
        nodes = f"too few nodes within the {state.rules.node_timeout:g} s of --node-timeout"
        within = quota if pause.lack is Lack.QUOTA else nodes
        return finish(state, ExitCode.STOPPED, f"{within}: {pause.message}")
    return state, ()


def _ends(state: State, pause: Pause) -> float:
    """Returns when a wait is over; a hint may have changed for how long quota is waited for."""
    return pause.since + state.wait_for_quota if pause.lack is Lack.QUOTA else pause.until


def _source_of_wait(state: State) -> str:
    by_hint = state.target is not None and state.target.wait is not None
    return "the hint's waitSeconds" if by_hint else "--wait-for-quota"


def _come_up(state: State) -> bool:
    """Whether so many nodes have a place, or form a group already, that the job goes on as soon as they are ready."""
    placed = [node for node in state.in_phase(Phase.STARTING, Phase.WARM) if not node.waits and not node.leave]
    return len(placed) >= state.rules.min_nodes


def _end_when_saved(state: State, pause: Pause, now: float) -> Decision:
    if state.over and not state.halted:
        return replace(state, pause=None), ()  # what scripts do after the training is not broken off
    verdict = state.verdict
    if state.stopping is not None or (verdict is not None and verdict.weight is Weight.SCRIPT):
        return state, ()  # it ends as it would have without this
    return _end_nodes(state, now) if state.halted or verdict is not None or now >= pause.until else (state, ())


def resume_paused(state: State, observation: ResumePointFound) -> Decision:
    """Resumes a paused job from the checkpoint found, after its nodes have ended."""
    now, first, pause = observation.now, observation.first, state.pause
    assert pause is not None
    trained = state.generation > 0
    left = [node for node in state.nodes.values() if node.phase is not Phase.GONE]
    state = replace(_with_nodes(state.carried_to(first), state, left), target=state.target)
    refused = tuple(emit(state, "warning", message=message) for message in observation.refused)
    decision = then((state, refused), _dismiss_useless, pause.lack, now)
    if pause.lack is Lack.NODES:
        restart = Restart("notice", pause.halted_at) if trained else None
        return then(decision, wait_for_nodes, pause.message, now, restart)
    waiting = replace(pause, stage=Stage.WAITING, since=now, until=now + state.wait_for_quota)
    state = replace(decision[0], pause=waiting)
    message = f"waiting for quota, without any process, up to {state.wait_for_quota:g} s: {pause.message}"
    waits = emit(state, "quota_wait", step=state.step, message=message)
    return then((state, (*decision[1], waits)), check_quota, now)


def wait_for_nodes(
    state: State, message: str, now: float, restart: Restart | None = None, waited: float | None = None
) -> Decision:
    """Has a job without members that train ask for nodes, and wait for its minimum of them.

    However long it has waited before, the nodes that it asks for now have the time to come up.

    Args:
        state: What is known of it, as of a job that begins.
        message: What took its nodes.
        now: Monotonic seconds.
        restart: The cause and pause that its next generation records; None for none.
        waited: For how many seconds it has waited already, under launchers before this one; None if it has not.
    """
    rules, before = state.rules, waited or 0.0
    left = max(rules.node_timeout - before, min(rules.node_timeout, rules.start_timeout))
    pause = Pause(message, Stage.WAITING, now + left, now - before, Lack.NODES)
    state = replace(state, pause=pause, restart=restart or state.restart)
    text = f"waiting for nodes, up to {round(left, 1):g} s (--node-timeout): {message}"
    fields: dict[str, Any] = {"message": text, "reason": message}
    if not rules.own_saves:
        fields["step"] = state.step
    if state.restart is not None:
        fields["cause"] = state.restart.cause
    if waited is not None:
        fields["waited"] = round(waited, 3)
    return state, (emit(state, "nodes_wait", **fields),)


def go_on_waiting(state: State, now: float) -> Decision:
    """Has a job whose launcher before this one waited for nodes wait for them for the rest of that time."""
    wait = state.rules.waits
    if wait is None or not state.rules.node_timeout or state.generation:
        return state, ()
    restart = Restart(wait.cause, now - wait.seconds - wait.away) if wait.cause else None
    return wait_for_nodes(state, wait.message, now, restart, wait.seconds)


def _with_nodes(state: State, before: State, nodes: list[Node]) -> State:
    """Returns a state that keeps nodes of the one before; numbers go on after the highest."""
    first = max(state.rules.first_member, before.next_member)  # some may have been given since these were looked up
    rules = replace(state.rules, first_node=state.rules.first_node - len(nodes), first_member=first)
    members = {number: before.members[number] for node in nodes for number in node.members}
    kept = Nodes({node.number: node for node in nodes})
    return replace(state, rules=rules, nodes=kept, members=Members(members))


def _dismiss_useless(state: State, lack: Lack, now: float) -> Decision:
    """Ends nodes that asked what to begin with before that was known; those that have still to ask are used."""
    actions: tuple[Action, ...] = ()
    for node in state.in_phase(Phase.STARTING, Phase.WARM):
        joined = tuple(number for number in node.members if state.members[number].pid is not None)
        if joined or lack is Lack.QUOTA:
            state = state.with_node(node.number, phase=Phase.ENDING, since=now, leave=lack.value)
            left = emit(state, "node_left", node=node.number, cause=lack.value)
            actions = (*actions, Order(joined, End("not wanted any more")), KillNode(node.number), left)
    return state, actions


def check_quota(state: State, now: float) -> Decision:
    """Has a job that waits for its quota ask for nodes once it is there."""
    pause, target = state.pause, state.target
    waits = pause is not None and pause.stage is Stage.WAITING and pause.lack is Lack.QUOTA
    if pause is None or not waits or target is None or target.nodes < state.rules.min_nodes:
        return state, ()
    event = emit(state, "quota_back", step=state.step, seconds=round(now - pause.since, 3))
    decision: Decision = (replace(state, pause=None), (event,))
    if not state.rules.node_timeout:
        return decision
    return then(decision, wait_for_nodes, "quota is there again", now)


def _end_nodes(state: State, now: float) -> Decision:
    """Kills the nodes: what could be saved is saved, and nothing of theirs counts any more.

    A job that waits for nodes keeps those whose processes have still to come up.
    """
    pause = state.pause
    assert pause is not None
    going = [node for node in state.nodes.values() if node.phase is not Phase.GONE and not _is_of_use(state, node)]
    causes = {node.number: node.leave or "nodes" if pause.lack is Lack.NODES else "quota" for node in going}
    for number in causes:
        state = state.with_node(number, phase=Phase.ENDING, since=now)
    ending = replace(pause, stage=Stage.ENDING, halted_at=now)
    state = replace(state, pause=ending, verdict=None, formation=None, recovery=None)
    left = (emit(state, "node_left", node=number, cause=cause) for number, cause in causes.items())
    return state, (*(KillNode(number) for number in causes), *left)


def _is_of_use(state: State, node: Node) -> bool:
    """Whether a node that starts will begin with what is saved: it has not asked for it yet."""
    assert state.pause is not None
    waited_for = state.pause.lack is Lack.NODES and node.phase is Phase.STARTING and not node.leave
    return waited_for and all(state.members[number].pid is None for number in node.members)
