"""How a job whose script uses our library changes its size by a new start: it saves, all its nodes end, others start.

It trains under the same rules as a job that changes its size in process, but for one: where those would begin a resize,
the training is told to save and to stand still, and then begins anew from that checkpoint.
"""

from __future__ import annotations

from dataclasses import replace

from elastic_launcher.control.messages import Save
from elastic_launcher.coordinator.actions import Action, Finish, Order
from elastic_launcher.coordinator.decide import decide
from elastic_launcher.coordinator.decide_end import RESTART, SAVE_SECONDS, Decision, then
from elastic_launcher.coordinator.decide_nodes import take_notice
from elastic_launcher.coordinator.observations import MemberReported, NodeNoticed, Observation, TargetChanged, Tick
from elastic_launcher.coordinator.respawn.anew import fall_back, let_nodes_go, tell_why
from elastic_launcher.coordinator.respawn.work import gathered
from elastic_launcher.coordinator.roster import Phase
from elastic_launcher.coordinator.state import Restart, State, Stopping


def decide_restarts(state: State, observation: Observation) -> Decision:
    """Returns what is known after an observation, and what to do about it, in order."""
    if state.finished:
        return state, ()
    before, now = state, observation.now
    if _trains(state) and isinstance(observation, TargetChanged) and _is_another(state, observation):
        decision = _begin(replace(state, target=observation.target), "hint", now)
    elif _trains(state) and isinstance(observation, NodeNoticed) and _can_spare(state, observation.node):
        decision = then(take_notice(state, observation), _begin, "notice", now)
    else:
        decision = _decide_together(state, observation)
        if _trains(decision[0]) and decision[0].to_replace:
            decision = then(decision, _begin, "failure", now)
    decision = _let_all_go(*decision, now)
    return tell_why(before, *fall_back(*decision, now), now)


def _decide_together(state: State, observation: Observation) -> Decision:
    """Decides as in process, but has a job begin with all nodes that come soon, since it does not take in any later."""
    ready = [node for node in state.in_phase(Phase.WARM) if not node.leave]
    waits = not state.generation and not (ready and gathered(state, ready, observation.now))
    if state.target is None or not waits or not isinstance(observation, (MemberReported, Tick)):
        return decide(state, observation)
    rules = state.rules
    minimum = max(rules.min_nodes, state.target.nodes)
    decided, actions = decide(replace(state, rules=replace(rules, min_nodes=minimum)), observation)
    return replace(decided, rules=rules), actions


def _trains(state: State) -> bool:
    ends = state.over or state.finished or state.halts or state.verdict is not None
    return state.generation > 0 and not ends


def _is_another(state: State, observation: TargetChanged) -> bool:
    """Whether a target is one to change to; below the minimum the job ends."""
    assert state.target is not None
    nodes = observation.target.nodes
    return nodes >= state.rules.min_nodes and nodes != state.target.nodes


def _can_spare(state: State, number: int) -> bool:
    """Whether a node of the group may go without the job falling below its minimum."""
    node = state.nodes[number]
    return node.phase is Phase.ADMITTED and not node.leave and len(state.staying()) > state.rules.min_nodes


def _begin(state: State, cause: str, now: float) -> Decision:
    """Has the training save and stand still."""
    stopping = Stopping(RESTART, f"starting anew ({cause})", now + SAVE_SECONDS)
    state = replace(state, stopping=stopping, restart=Restart(cause, now))
    return state, (Order(state.survivors(), Save(halt=True)),)


def _let_all_go(state: State, actions: tuple[Action, ...], now: float) -> Decision:
    """Makes a new start of the end of a job that has saved for it, and stands still."""
    restart, told = state.restart, list[Action]()
    for action in actions:
        if restart is not None and isinstance(action, Finish) and action.exit_code == RESTART:
            saved = state.saved
            saving = saved.seconds if state.halted and saved is not None and saved.step == state.step else 0.0
            state = replace(state, restart=replace(restart, since=now - saving))  # no step was done meanwhile
            told += let_nodes_go(state, restart.cause)
        else:
            told.append(action)
    return state, tuple(told)
