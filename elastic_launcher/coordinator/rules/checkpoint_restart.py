"""Restarts a job from its last checkpoint where nobody is left who holds its state.

For both ways to resize. Invariant: a job restarts only as long as it gets further each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from elastic_launcher.config import ExitCode
from elastic_launcher.control.messages import Fail
from elastic_launcher.coordinator.model.actions import Action, Emit, Finish, Order, RestartAll
from elastic_launcher.coordinator.model.ending import Restart
from elastic_launcher.coordinator.model.roster import Phase
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.rules.ending import Decision, emit, kept, when
from elastic_launcher.coordinator.rules.pause import wait_for_nodes


def state_after(old: State, first: State) -> State:
    """Returns the first state after a restart: ``first``, of the checkpoint, with what counts on from ``old``."""
    return replace(
        old.carried_to(first),
        restart=old.restart,
        restart_budget=old.restart_budget,
        broke=old.broke,
        broke_at=old.broke_at,
    )


def await_nodes(state: State, now: float) -> Decision:
    """Has a job that restarts after the loss of its state wait for nodes, for a limited time."""
    restart = state.restart
    if restart is None or restart.cause != "failure" or not state.rules.node_timeout:
        return state, ()
    return wait_for_nodes(state, "no node was left that holds its state", now)


def restart_if_curable(state: State, actions: tuple[Action, ...], now: float) -> Decision:
    """Turns an end that a checkpoint can cure into a restart, if the job got further than the time before.

    Where it was asked to stop, it ends as a job that is stopped, and can resume from there.
    """
    ends = [action for action in actions if isinstance(action, Finish) and action.curable]
    if not ends:
        return state, actions
    end, budget = ends[0], state.restart_budget.once_more(state.step)
    if asked := state.stop_request:
        stopped = Finish(ExitCode.STOPPED, f"{asked.why} {when(state)}: {end.message}")
        return state, tuple(stopped if action is end else action for action in actions)
    if budget.too_often:
        message = f"{end.message}; it restarted {budget.times - 1} times and got no further than step {budget.step}"
        return state, tuple(replace(end, message=message) if action is end else action for action in actions)
    where = "the beginning: nothing was saved" if state.saved is None else f"step {state.saved.step}"
    message = f"{end.message.removesuffix(f'; {kept(state)}')}; all nodes restart from {where}"
    others = [one for one in actions if one is not end and not (isinstance(one, Order) and isinstance(one.order, Fail))]
    state = replace(state, verdict=None, restart=Restart("failure", now), restart_budget=budget)
    return state, (*others, emit(state, "warning", message=message), *end_all_nodes(state, "failure"))


def record_restart_cause(before: State, state: State, actions: tuple[Action, ...], now: float) -> Decision:
    """Records the restart's cause and pause in the first generation after it."""
    restart = state.restart
    if restart is None or before.generation or not state.generation:
        return state, actions
    pause = {"cause": restart.cause, "pause_seconds": round(now - restart.since, 4)}
    return replace(state, restart=None), tuple(_with(action, pause) for action in actions)


def end_all_nodes(state: State, cause: str) -> tuple[Action, ...]:
    """Returns the actions that end all nodes and restart the job once they are gone."""
    there = state.in_phase(Phase.STARTING, Phase.WARM, Phase.ADMITTED)
    return (*(emit(state, "node_left", node=node.number, cause=cause) for node in there), RestartAll())


def _with(action: Action, fields: Mapping[str, Any]) -> Action:
    if not isinstance(action, Emit) or action.kind != "generation_formed":
        return action
    return replace(action, fields={**action.fields, **fields})
