"""A job that loses its quota and may wait for it: saved, all its nodes ended, begun again from what is saved.

It goes through these stages: its members save and halt; its nodes end; its newest checkpoint is looked for; and it
waits, as a job that begins, until the target allows its minimum.
"""

from __future__ import annotations

import math
from dataclasses import replace

from elastic_launcher.config import ExitCode
from elastic_launcher.control.messages import Save
from elastic_launcher.coordinator.actions import BeginAgain, KillNode, Order
from elastic_launcher.coordinator.decide_end import Decision, emit, finish, stop, then, when
from elastic_launcher.coordinator.grace import time_to_save
from elastic_launcher.coordinator.observations import BegunAgain
from elastic_launcher.coordinator.pause import Pause, Stage
from elastic_launcher.coordinator.roster import Phase
from elastic_launcher.coordinator.state import State, Weight


def lose_quota(state: State, exit_code: int, message: str, now: float) -> Decision:
    """The job may not even have its minimum: it ends with a last checkpoint, or waits, as was asked for.

    Args:
        state: The state before.
        exit_code: What the launcher exits with if the job is not to wait.
        message: What took the quota.
        now: Monotonic seconds.
    """
    if not state.rules.wait_for_quota:
        where = f"; stopped {when(state)}" if state.nodes else "; nothing was started"
        return stop(state, exit_code, f"{message}{where}", now)
    if state.pause is not None:
        return state, ()
    until = now + time_to_save(math.inf, state.save_seconds)
    state = replace(state, pause=Pause(message, Stage.SAVING, until))
    lost = emit(state, "quota_lost", step=state.step, message=message)
    if not state.generation:
        return then((state, (lost,)), _end_nodes, now)
    return state, (lost, Order(state.survivors(), Save(halt=True)))


def take_pause(state: State, now: float) -> Decision:
    """Brings a paused job to its next stage, when it is time."""
    pause = state.pause
    if pause is None or state.finished:
        return state, ()
    if pause.stage is Stage.SAVING:
        return _end_when_saved(state, pause, now)
    if pause.stage is Stage.ENDING and not _there(state):
        return replace(state, pause=replace(pause, stage=Stage.LOOKING)), (BeginAgain(),)
    if pause.stage is Stage.WAITING and now >= pause.until:
        message = f"no quota within the {state.rules.wait_for_quota:g} s of --wait-for-quota: {pause.message}"
        return finish(state, ExitCode.STOPPED, message)
    return state, ()


def _end_when_saved(state: State, pause: Pause, now: float) -> Decision:
    if state.over and not state.halted:
        return replace(state, pause=None), ()  # what scripts do after the training is not broken off
    verdict = state.verdict
    if state.stopping is not None or (verdict is not None and verdict.weight is Weight.SCRIPT):
        return state, ()  # it ends as it would have without this
    return _end_nodes(state, now) if state.halted or verdict is not None or now >= pause.until else (state, ())


def begin_again(state: State, observation: BegunAgain) -> Decision:
    """The job's nodes are gone, and what it goes on from is known: it is as one that begins."""
    now, first, pause = observation.now, observation.first, state.pause
    assert pause is not None
    waiting = replace(pause, stage=Stage.WAITING, since=now, until=now + state.rules.wait_for_quota)
    state = replace(state.carried_to(first), target=state.target, pause=waiting)
    refused = tuple(emit(state, "warning", message=message) for message in observation.refused)
    message = f"waiting for quota, without any process, up to {state.rules.wait_for_quota:g} s: {pause.message}"
    waits = emit(state, "quota_wait", step=state.step, message=message)
    return then((state, (*refused, waits)), check_quota, now)


def check_quota(state: State, now: float) -> Decision:
    """Has a job that waits for its quota go on once it is there."""
    pause, target = state.pause, state.target
    if pause is None or pause.stage is not Stage.WAITING or target is None or target.nodes < state.rules.min_nodes:
        return state, ()
    event = emit(state, "quota_back", step=state.step, seconds=round(now - pause.since, 3))
    return replace(state, pause=None), (event,)


def _end_nodes(state: State, now: float) -> Decision:
    """Kills all nodes: what could be saved is saved, and nothing of theirs counts any more."""
    pause, there = state.pause, _there(state)
    assert pause is not None
    for number in there:
        state = state.with_node(number, phase=Phase.ENDING, since=now)
    state = replace(state, pause=replace(pause, stage=Stage.ENDING), verdict=None, formation=None, recovery=None)
    left = (emit(state, "node_left", node=number, cause="quota") for number in there)
    return state, (*(KillNode(number) for number in there), *left)


def _there(state: State) -> list[int]:
    return [node.number for node in state.nodes.values() if node.phase is not Phase.GONE]
