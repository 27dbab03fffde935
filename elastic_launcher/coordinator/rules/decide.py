"""Decides what the coordinator does next: one pure function of its state and an observation.

Invariants, over any order of observations: a job that may not have its minimum ends; one formation is under way at a
time, and it never has both joiners and leavers; numbers of nodes, members and formations are never used again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elastic_launcher.coordinator.model import observations
from elastic_launcher.coordinator.model.actions import Action
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.rules.checkpoint_restart import record_restart_cause, restart_if_curable
from elastic_launcher.coordinator.rules.ending import (
    Decision,
    conclude,
    ended_early,
    interrupt,
    save,
    stop_asked,
    take_stop_request,
    then,
)
from elastic_launcher.coordinator.rules.exits import take_agent_killed, take_node_exit, take_rank_end
from elastic_launcher.coordinator.rules.formation import check_formation, form_next
from elastic_launcher.coordinator.rules.loss import recover, take_hang
from elastic_launcher.coordinator.rules.nodes import (
    change_target,
    check_nodes,
    check_untrained,
    move_within,
    release_surplus,
    start_missing,
    take_unfit,
    take_unstarted,
)
from elastic_launcher.coordinator.rules.notice import take_expired_notice, take_notice
from elastic_launcher.coordinator.rules.pause import resume_paused, take_pause
from elastic_launcher.coordinator.rules.pending import check_held, check_pending, take_registration, take_standing
from elastic_launcher.coordinator.rules.reports import take_join, take_report
from elastic_launcher.coordinator.rules.unhealthy_members import (
    take_apart,
    take_awaited,
    take_silence,
    take_silent_node,
    take_slow,
    take_stuck,
)


def decide_in_process(state: State, observation: observations.Observation) -> Decision:
    """Decides for a job with in-process resize; where all state is lost, it restarts from the last checkpoint."""
    if state.finished:
        return state, ()
    before, now = state, observation.now
    state, actions = restart_if_curable(*decide(state, observation), now)
    return record_restart_cause(before, state, actions, now)


def decide(state: State, observation: observations.Observation) -> tuple[State, tuple[Action, ...]]:
    """Returns the next state, and the actions in order."""
    if state.finished:
        return state, ()
    decision = _OBSERVATIONS[type(observation)](state, observation)
    steps = (*_DEADLINES, *_STEPS) if isinstance(observation, observations.Tick) else _STEPS
    return then(decision, _settle, observation.now, steps)


def _settle(state: State, now: float, steps: tuple[Callable[[State, float], Decision], ...]) -> Decision:
    """Takes the steps that are due: few but towards the end once that is in sight."""
    decision = then(take_stop_request(state, now), conclude, now)
    decision = then(decision, take_pause, now)
    for rule in steps:
        state = decision[0]
        if state.finished or state.verdict is not None or state.target is None:
            return decision
        pause = None if state.pause is None or state.pause.asks else state.pause
        if pause is not None and pause.released:
            return decision
        ends = state.over or state.stopping is not None or pause is not None
        if ends and rule not in _TOWARDS_THE_END:
            continue
        decision = then(decision, rule, now)
    return decision


def _nothing(state: State, observation: observations.Tick) -> Decision:
    return state, ()


_STEPS: tuple[Callable[[State, float], Decision], ...] = (
    check_untrained,
    release_surplus,
    move_within,
    start_missing,
    recover,
    form_next,
)
_DEADLINES: tuple[Callable[[State, float], Decision], ...] = (
    ended_early,
    check_nodes,
    check_pending,
    check_held,
    check_formation,
)
"""Rules that only check deadlines; they look through all nodes, so they run at ticks only."""
_TOWARDS_THE_END = (ended_early, check_formation, recover)  # scripts may still evaluate together, or save
_OBSERVATIONS: dict[type, Callable[[State, Any], Decision]] = {
    observations.Tick: _nothing,
    observations.TargetChanged: change_target,
    observations.MemberJoined: take_join,
    observations.MemberReported: take_report,
    observations.MemberSilent: take_silence,
    observations.NodeSilent: take_silent_node,
    observations.MemberStuck: take_stuck,
    observations.MembersApart: take_apart,
    observations.MemberAwaited: take_awaited,
    observations.GroupHangs: take_hang,
    observations.MemberSlow: take_slow,
    observations.NodeNotStarted: take_unstarted,
    observations.NodeUnfit: take_unfit,
    observations.NodeNoticed: take_notice,
    observations.NodeRegistered: take_registration,
    observations.NodeStands: take_standing,
    observations.NoticeExpires: take_expired_notice,
    observations.RankEnded: take_rank_end,
    observations.AgentKilled: take_agent_killed,
    observations.NodeExited: take_node_exit,
    observations.SaveAsked: save,
    observations.StopAsked: stop_asked,
    observations.ResumePointFound: resume_paused,
    observations.Interrupted: interrupt,
}
