"""What members report, and how their processes end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from elastic_launcher import __version__
from elastic_launcher.config import ExitCode
from elastic_launcher.control.messages import (
    Active,
    Again,
    Done,
    End,
    Ended,
    Failed,
    Formed,
    FormFailed,
    Halted,
    Left,
    Log,
    Progress,
    Saved,
    SaveFailed,
    StepFailed,
    StepRedone,
    Summed,
    Warm,
)
from elastic_launcher.coordinator.model.actions import Emit, KillNode, Order
from elastic_launcher.coordinator.model.observations import (
    AgentKilled,
    MemberJoined,
    MemberReported,
    MemberSilent,
    MemberSlow,
    MemberStuck,
    NodeExited,
    NodeSilent,
    RankEnded,
)
from elastic_launcher.coordinator.model.restart_budget import RestartBudget
from elastic_launcher.coordinator.model.roster import Exit, Member, Node, Phase
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.rules.ending import (
    EXIT_SECONDS,
    Decision,
    appoint_saver,
    emit,
    ended_early,
    exited_by_itself,
    finish,
    how,
    script_failed,
    then,
    wind_down,
)
from elastic_launcher.coordinator.rules.formation import (
    fail_formation,
    form_if_active,
    let_go,
    take_active,
    take_formed,
)
from elastic_launcher.coordinator.rules.loss import (
    bear_failure,
    check_holders,
    lose_node,
    take_broken_step,
    take_unformed,
)
from elastic_launcher.coordinator.rules.nodes import dismiss, fail_node, hold_back, tell_exit
from elastic_launcher.coordinator.rules.requeue import is_earlier_pod, take_back


def take_join(state: State, observation: MemberJoined) -> Decision:
    """A member's process is there."""
    member = state.members[observation.member]
    if member.pid == observation.pid:
        return state, ()
    state = state.with_member(member.number, pid=observation.pid)
    if state.over or state.nodes[member.node].phase is Phase.ENDING or state.superseded(member.number):
        return state, (Order((member.number,), End("the training is over" if state.over else "not wanted any more")),)
    if observation.version in ("", __version__):
        return state, ()
    message = (
        f"{state.name(member.number)} runs elastic-launcher {observation.version}, the launcher {__version__}: "
        "install the same version for both"
    )
    return state, (emit(state, "warning", message=message),)


def take_silence(state: State, observation: MemberSilent) -> Decision:
    """Nothing is heard from a member whose process lives: it is said, or its node is lost."""
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
    return (state, ()) if member.left else _fail_joiner(state, member, f"{state.name(member.number)} {fact}", now)


def _end_silent_process(state: State, member: Member, fact: str, now: float) -> Decision:
    """Kills a process whose script has ended, with its node, once no other script there has anything left to do."""
    fact = f"{state.name(member.number)} {fact} after its script had ended"
    alive = [one for one in _siblings(state, member) if one.exit is None]
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
    """Nothing is heard from the agent of a node that has no members yet: it is given up."""
    node = state.nodes[observation.node]
    if node.phase is not Phase.STARTING or node.waits or state.over:
        return state, ()
    message = f"nothing was heard from node {node.number} for {observation.seconds:.0f} s (--silence-timeout)"
    return fail_node(state, node.number, message, observation.now)


def _silent(state: State, member: Member, over: bool) -> Emit:
    rank = state.group.index(member.number) if member.number in state.group else None
    return emit(state, "silent", member=member.number, rank=rank, node=member.node, over=over)


def take_stuck(state: State, observation: MemberStuck) -> Decision:
    """A member gets no further inside a step, and others wait for it: its node is lost."""
    member = state.members[observation.member]
    if member.number not in state.survivors() or member.exit is not None or state.over:
        return state, ()
    fact = f"made no progress in its step for {observation.seconds:.0f} s while others waited for it,"
    return lose_node(state, member, observation.now, fact)


def take_slow(state: State, observation: MemberSlow) -> Decision:
    """A member is slower than the others, or no longer: it is said."""
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


def take_report(state: State, observation: MemberReported) -> Decision:
    """A member reported."""
    member = state.members[observation.member]
    if state.nodes[member.node].phase in (Phase.ENDING, Phase.GONE) or state.superseded(member.number):
        return state, ()
    return _REPORTS[type(observation.report)](state, member, observation.report, observation.now)


def take_rank_end(state: State, observation: RankEnded) -> Decision:
    """A member's process ended."""
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
    """A signal ended the agent of a node that trains: the others go on without it before its last process is gone."""
    node = state.nodes.get(observation.node)
    if node is None or node.phase is not Phase.ADMITTED:
        return state, ()
    return _end_ranks(state, node, dict(observation.ranks), Exit(signal=observation.signal), observation.now)


def take_node_exit(state: State, observation: NodeExited) -> Decision:
    """A node is gone, with all its processes; one that never trained, and may be started anew, waits for that."""
    if observation.taken:
        state = replace(
            state, fallen=RestartBudget()
        )  # nor is that the job's fault: it may begin anew as often as it happens
    if observation.node not in state.nodes:
        return state, ()  # one of before the job began anew, which took its time
    node = state.nodes[observation.node]
    if is_earlier_pod(node, observation.pod):
        return state, ()
    if observation.again and state.untrained(node):
        return take_back(state, node, observation.again, observation.now)
    unknown = _without_a_word(observation.exit_code)
    told = tell_exit(state, observation)
    if observation.taken:  # nobody failed: the next is started as fast as after a first loss, and no step is to blame
        state = replace(state, losses=0, failures=0, broke=0)
    decision: Decision = (state, told)
    decision = then(decision, _end_ranks, node, dict(observation.ranks), unknown, observation.now)
    if observation.taken and node.phase in (Phase.STARTING, Phase.WARM):
        decision = then(decision, hold_back, node, observation.now)
    state, actions = decision
    if observation.again:  # its numbers are used: another takes its place
        return state.with_node(node.number, phase=Phase.ENDING, since=observation.now), (
            *actions,
            KillNode(node.number),
        )
    return state.with_node(node.number, phase=Phase.GONE, since=observation.now), actions


def _end_ranks(state: State, node: Node, known: dict[int, Exit], unknown: Exit, now: float) -> Decision:
    """Takes the ends of a node's ranks: those that left a record by that, the others as told."""
    decision: Decision = (state, ())
    for local_rank in range(len(node.members)):
        end = RankEnded(now, node.number, local_rank, known.get(local_rank, unknown))
        decision = then(decision, take_rank_end, end)
    return decision


def _without_a_word(agent: int | None) -> Exit:
    """Returns how a rank ended that left no record of it: an agent's exit code is never taken for a script's own."""
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
        return lose_node(state, member, now, "left by itself, as its log says,")
    decision: Decision = (state, ())
    if not member.exit.clean:
        return _fail_by_exit(state, member, now)
    if all(one.exit is not None for one in _siblings(state, member)):
        decision = state.with_node(member.node, phase=Phase.LEAVING, since=now), ()
    return then(then(decision, wind_down), ended_early, now)


def _fail_by_exit(state: State, member: Member, now: float) -> Decision:
    assert member.exit is not None
    alone = _ended_alone(state, member)
    if member.failure is None:
        opened, actions = reopen(state, now) if alone else (state, ())
        if borne := bear_failure(opened, member, how(member.exit), now):
            return borne[0], actions + borne[1]
    return exited_by_itself(replace(state, over=state.over and not alone), member, now)


def _ended_alone(state: State, member: Member) -> bool:
    """Whether the training was taken for over since the scripts of a member's node have ended, and no other one has."""
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
    return _fail_joiner(state, member, message, now)


def _fail_joiner(state: State, member: Member, message: str, now: float) -> Decision:
    if state.over:
        return state, ()  # it was not needed any more
    if state.formation is not None and member.number in state.formation.members:
        return fail_formation(state, message, (member.node,), now)
    return fail_node(state, member.node, message, now)


def _siblings(state: State, member: Member) -> list[Member]:
    return [state.members[number] for number in state.nodes[member.node].members]


def _warm(state: State, member: Member, report: Warm, now: float) -> Decision:
    # One that waits again after a failed admission has nothing new to tell.
    fingerprint = report.fingerprint or member.fingerprint or {}
    state = state.with_member(member.number, fingerprint=fingerprint, wait=report.wait)
    if (resumes := state.rules.resumes) is not None and not state.generation:
        if different := resumes.refuse(fingerprint):
            return finish(state, ExitCode.BAD_USAGE, different)
    ready = all(one.fingerprint is not None for one in _siblings(state, member))
    if not ready or state.nodes[member.node].phase is not Phase.STARTING:
        return state, ()
    state = state.with_node(member.node, phase=Phase.WARM, since=now)
    return state, (emit(state, "node_warm", node=member.node),)


def _formed(state: State, member: Member, report: Formed, now: float) -> Decision:
    return take_formed(state, member.number, report)


def _form_failed(state: State, member: Member, report: FormFailed, now: float) -> Decision:
    return take_unformed(state, member.number, report, now)


def _active(state: State, member: Member, report: Active, now: float) -> Decision:
    return take_active(state, member.number, report, now)


def _left(state: State, member: Member, report: Left, now: float) -> Decision:
    if not state.may_leave(member.number):
        return state, ()
    state = state.with_member(member.number, step=max(member.step, report.step))
    return then(let_go(state, member.number, now), check_holders, member, now)


def _progress(state: State, member: Member, report: Progress, now: float) -> Decision:
    if not _trains(state, member):
        return state, ()
    state = state.with_member(member.number, step=max(member.step, report.step))
    state = replace(
        state,
        progress=report,
        step=max(state.step, report.step),
        samples=report.samples if report.samples is not None else state.samples,
    ).at_epoch(report.phase, report.epoch)
    fields = {name: value for name, value in asdict(report).items() if value is not None}
    if not report.phase:  # most scripts have one
        del fields["phase"]
    world_size = len(state.group) or len(state.formation.members if state.formation else ())
    event = emit(state, "progress", **fields, world_size=world_size)
    return then((state, (event,)), ended_early, now)


def _log(state: State, member: Member, report: Log, now: float) -> Decision:
    if not _trains(state, member):
        return state, ()
    logged, values = state.logged.add(report.step, report.rank, report.values)
    if not values:
        return state, ()  # a lower rank has logged them all
    state = replace(state, logged=logged)
    return state, (emit(state, "log", step=report.step, rank=report.rank, values=values),)


def _step_failed(state: State, member: Member, report: StepFailed, now: float) -> Decision:
    if member.left:
        return state, ()  # it had to leave within the step
    formation = state.formation
    if formation is not None and formation.number == report.formation:
        return then(form_if_active(state, now), _break_off, member, report, now)
    return _break_off(state, member, report, now)


def _break_off(state: State, member: Member, report: StepFailed, now: float) -> Decision:
    formation, number = state.formation, member.number
    pending = formation is not None and formation.number == report.formation
    state = replace(state.with_member(number, step=max(member.step, report.step)), step=max(state.step, report.step))
    if not pending and report.formation not in (*state.abandoned, state.group_formation):
        return state, ()
    reason = f"the step broke off on {state.name(number)}: {report.error or 'no reason given'}"
    if not state.generation:  # nothing is lost yet: the first generation is formed anew
        return fail_formation(state, reason, (), now) if pending else (state, ())
    if number not in state.group:
        node = state.nodes[member.node]
        too_late = not pending and (state.recovery is None or formation is not None)
        if node.phase is not Phase.WARM or too_late:
            return dismiss(state, node, "failed", now) if node.phase is Phase.WARM else (state, ())
    decision: Decision = (state, ())
    if formation is not None and (pending or formation.mode != "recover"):
        decision = fail_formation(state, reason, (), now)
    return then(decision, take_broken_step, number, report, reason, now)


def _step_redone(state: State, member: Member, report: StepRedone, now: float) -> Decision:
    if state.redone == report.step or not _trains(state, member):
        return state, ()
    return replace(state, redone=report.step), (emit(state, "step_redone", step=report.step),)


def _saved(state: State, member: Member, report: Saved, now: float) -> Decision:
    state = replace(state, saved=report, step=max(state.step, report.step))
    fields = {key: value for key, value in report.to_dict().items() if key != "kind"}
    return state, (emit(state, "checkpoint_saved", **fields),)


def _save_failed(state: State, member: Member, report: SaveFailed, now: float) -> Decision:
    after = "the training goes on, and the next checkpoint is tried when it is due"
    if state.halts and state.restart is None:
        after = f"that is tried again for as long as the job waits for it, {state.halts_by - now:.0f} s from now on"
    message = f"step {report.step} could not be saved: {report.message}; {after}"
    return state, (emit(state, "warning", message=message),)


def _halted(state: State, member: Member, report: Halted, now: float) -> Decision:
    if not state.halts or not _trains(state, member):
        return state, ()
    halting = replace(state.halting, standing=state.halting.standing | {member.number})
    state = replace(state, halting=halting, halted=state.halted or report.saved, step=max(state.step, report.step))
    return appoint_saver(state)


def _failed(state: State, member: Member, report: Failed, now: float) -> Decision:
    state = state.with_member(member.number, failure=report)
    if report.step is not None and _trains(state, member):
        state = replace(state, step=max(state.step, report.step))
    member = state.members[member.number]
    if member.left:
        message = f"{state.name(member.number)} failed after it had left the training: {report.message}"
        return state, (emit(state, "warning", message=message),)
    if not state.generation or member.number in state.group:
        borne = bear_failure(state, member, f"failed ({report.message})", now)
        return borne or script_failed(state, member, now)
    return _fail_joiner(state, member, f"{state.name(member.number)} failed: {report.message}", now)


def _done(state: State, member: Member, report: Done, now: float) -> Decision:
    if not _trains(state, member) or report.phase < state.phase:
        return state, ()
    state = state.with_member(member.number, done=True, step=max(member.step, report.step))
    state = replace(
        state,
        step=max(state.step, report.step),
        samples=report.samples if report.samples is not None else state.samples,
        reason=report.reason or state.reason,
    )
    return then(wind_down(state), ended_early, now)


def _again(state: State, member: Member, report: Again, now: float) -> Decision:
    """The script trains again, in another `job.epochs`: who was sent away at the end of the one before is replaced."""
    if not _trains(state, member) or report.phase <= state.phase:
        return state, ()
    state, actions = reopen(state, now)
    for number in (*state.group, *(state.formation.members if state.formation is not None else ())):
        state = state.with_member(number, done=False)
    step = max(state.step, report.step)
    return replace(state, reason="", phase=report.phase, epoch=0, sums=report.sums, step=step), actions


def reopen(state: State, now: float) -> Decision:
    """The training is not over after all: nodes that were sent away, since it was, are replaced."""
    if not state.over:
        return state, ()
    decision: Decision = (state, ())
    if state.formation is not None and not state.formation.active:
        decision = then(decision, fail_formation, "the training was over", (), now, True)
    for node in state.in_phase(Phase.STARTING, Phase.WARM):
        joined = any(state.members[number].pid is not None for number in node.members)
        if joined and not decision[0].forming(node):
            decision = then(decision, dismiss, node, "over", now)
    return replace(decision[0], over=False), decision[1]


def _summed(state: State, member: Member, report: Summed, now: float) -> Decision:
    return (replace(state, sums=report.sums) if _trains(state, member) else state), ()


def _ended(state: State, member: Member, report: Ended, now: float) -> Decision:
    leaves = state.may_leave(member.number) and not report.done
    if member.left or leaves or not _trains(state, member):
        return state, ()
    done, step = member.done or report.done, max(member.step, report.step)
    state = state.with_member(member.number, ended=True, done=done, step=step, exit_by=now + EXIT_SECONDS)
    if report.samples is not None and report.step >= state.step:
        state = replace(state, samples=report.samples)
    state = replace(state, step=max(state.step, report.step))
    decision = then(wind_down(state), ended_early, now)
    survivors = state.survivors()
    enough = len(state.members.ended) >= len(survivors) > 0
    if enough and all(state.members[number].ended for number in survivors):
        decision = then(decision, lambda same: (same, (Order(survivors, End("all scripts have ended")),)))
    return decision


def _trains(state: State, member: Member) -> bool:
    """Whether a member takes part in the training: in the current generation, or already in the next one."""
    formation = state.formation
    return member.number in state.group or (formation is not None and member.number in formation.active)


_REPORTS: dict[type, Callable[[State, Member, Any, float], Decision]] = {
    Warm: _warm,
    Formed: _formed,
    FormFailed: _form_failed,
    Active: _active,
    Left: _left,
    Progress: _progress,
    Log: _log,
    StepFailed: _step_failed,
    StepRedone: _step_redone,
    Saved: _saved,
    SaveFailed: _save_failed,
    Halted: _halted,
    Failed: _failed,
    Done: _done,
    Again: _again,
    Summed: _summed,
    Ended: _ended,
}
