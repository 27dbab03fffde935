"""Ends a job: with success when all its members have ended, and otherwise with the best evidence of the cause."""

from __future__ import annotations

import math
import signal as signals
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from elastic_launcher.config import ExitCode
from elastic_launcher.control.messages import End, Fail, Save
from elastic_launcher.coordinator.model.actions import Action, Emit, Finish, Order
from elastic_launcher.coordinator.model.deadlines import time_to_save
from elastic_launcher.coordinator.model.ending import Stopping, StopRequest, Verdict, Weight
from elastic_launcher.coordinator.model.observations import Interrupted, SaveAsked, StopAsked
from elastic_launcher.coordinator.model.roster import Exit, Member, Phase
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.rules.root_cause import PEER_SECONDS, concerns_a_peer, excuse
from elastic_launcher.host.processes import signal_name

Decision = tuple[State, tuple[Action, ...]]

COLLECT_SECONDS = 1.0  # what dies together is seen together: better evidence may be on its way
EXIT_SECONDS = 5.0  # from a script's end until its process's exit code is known; until then it may have failed
UNCAUGHT = 1  # what Python exits with after an exception that nothing caught
AGENT_SECONDS = 15.0  # that agents take to end after their ranks, at most

RESTART = -1  # the exit code of a stop after which the job restarts
STOPS = (ExitCode.STOPPED, ExitCode.NO_QUOTA, ExitCode.INTERRUPTED, RESTART)  # of a job in which nothing failed

IS_SAVED = "the job is saved, and then ends"
"""The end of the message about a job that stops."""
APART = "; stopped "
"""The text between the cause of a stop and the step, where the cause is a clause of its own."""


def then(decision: Decision, rule: Callable[..., Decision], *arguments: Any) -> Decision:
    """Returns the decision of one rule after another: the last state, and the actions of both."""
    state, actions = decision
    state, more = rule(state, *arguments)
    return state, actions + more


def emit(state: State, kind: str, **fields: Any) -> Emit:
    """Returns an event of the current generation."""
    return Emit(kind, state.generation_number, fields)


def kept(state: State) -> str:
    """Returns for a message what of the job is saved."""
    if state.saved is None:
        return "nothing was saved"
    return f"step {state.saved.step} is saved in {state.saved.path}{state.rules.resume_advice}"


def finish(
    state: State,
    exit_code: int,
    message: str,
    log_of: tuple[int, int] | None = None,
    traceback: str = "",
    uncaught: bool = False,
    curable: bool = False,
) -> Decision:
    """Ends the job now; what is saved of it is added to the message, unless it is done or nothing was ever started."""
    if state.finished:
        return state, ()
    if exit_code != ExitCode.DONE and (state.nodes or state.saved is not None):
        message = f"{message}; {kept(state)}"
    actions: tuple[Action, ...] = (Finish(exit_code, message, log_of, traceback, uncaught, curable),)
    alive = tuple(one.number for one in state.members.values() if one.pid is not None and one.exit is None)
    if exit_code != ExitCode.DONE and alive:
        actions = (Order(alive, Fail(message, failed=exit_code not in STOPS)), *actions)
    return replace(state, finished=True), actions


def condemn(state: State, verdict: Verdict) -> Decision:
    """Records why the job will end; the heavier evidence is kept, the first of equal weight."""
    known = state.verdict
    if known is not None:
        best = verdict if verdict.weight > known.weight else known
        verdict = replace(best, until=min(known.until, verdict.until))
    return replace(state, verdict=verdict), ()


def conclude(state: State, now: float) -> Decision:
    """Ends the job when its time has come, or there is no more evidence to wait for."""
    verdict, stopping = state.verdict, state.stopping
    if state.finished:
        return state, ()
    if stopping is not None and (state.halted or verdict is not None or now >= stopping.until):
        return finish_stopped(state, stopping)
    if verdict is not None and (state.pause is None or state.pause.asks or verdict.weight is Weight.SCRIPT):
        joining = state.in_phase(Phase.WARM) and not state.survivors()  # one of them may hold the state
        known = state.group and all(
            state.members[number].failure or state.members[number].exit for number in state.survivors()
        )
        if now >= verdict.until or (known and not joining):
            verdict = excuse(state, verdict)
            message = "; ".join([verdict.message, *_own_exits(state, verdict)])
            how_it_was = verdict.log_of, verdict.traceback, verdict.uncaught, verdict.curable
            return finish(state, verdict.exit_code, message, *how_it_was)
        return state, ()
    return _finish_when_all_ended(state, now)


def interrupt(state: State, observation: Interrupted) -> Decision:
    """Ends the job because the user, or the system, asks the launcher to."""
    by_keyboard = observation.signal == signals.SIGINT
    what = "interrupted from the keyboard" if by_keyboard else f"stopped by {signal_name(observation.signal)}"
    code = ExitCode.INTERRUPTED if by_keyboard else ExitCode.STOPPED
    return stop(state, code, what, observation.now)


def stop_asked(state: State, observation: StopAsked) -> Decision:
    """Saves and ends the job on request; a further request waits for the same end.

    The shortest deadline counts. A job with a verdict ends by that, unless it can go on: then the request ends it.
    """
    now, within = observation.now, observation.within
    if state.verdict is not None:
        first = state.stop_request or StopRequest(observation.why, math.inf)
        return replace(state, stop_request=replace(first, until=min(first.until, now + within))), ()
    if state.stopping is None or state.stopping.exit_code == RESTART:
        return stop(state, ExitCode.STOPPED, observation.why, now, within)
    until = min(state.stopping.until, now + time_to_save(within, state.save_seconds))
    return replace(state, stopping=replace(state.stopping, until=until)), ()


def take_stop_request(state: State, now: float) -> Decision:
    """Stops a job that was asked to stop after a verdict, which was then withdrawn."""
    asked = state.stop_request
    if asked is None or state.verdict is not None or state.finished:
        return state, ()
    return stop_asked(replace(state, stop_request=None), StopAsked(now, asked.why, asked.until - now))


def save(state: State, observation: SaveAsked) -> Decision:
    """Has the job saved after its next step, where it trains."""
    return state, (Order(state.survivors(), Save()),) if state.generation and not state.over else ()


def stop(
    state: State, exit_code: int, cause: str, now: float, within: float = math.inf, *, joint: str = " "
) -> Decision:
    """Ends the job although nothing is wrong, with a last checkpoint where it trains; at once at the second request.

    Args:
        state: The state before.
        exit_code: What the launcher exits with.
        cause: What it was stopped by.
        now: Monotonic seconds.
        within: Seconds after which the launcher is killed; infinite if it is not.
        joint: The text between the cause and the step, such as :data:`APART`.
    """
    where = f"{joint}{when(state)}"
    nobody = not state.generation or (state.pause is not None and state.pause.released)
    if state.stopping is not None and state.stopping.exit_code == RESTART:
        state = replace(state, stopping=None, restart=None)  # it is being saved already, but will not restart
    if nobody or state.over or state.verdict is not None or state.stopping is not None:
        return finish(state, exit_code, cause + where)
    until = now + time_to_save(within, state.save_seconds)
    state = replace(state, stopping=Stopping(exit_code, cause, until, joint))
    told = emit(state, "warning", message=f"{cause}{'' if joint == APART else where}: {IS_SAVED}")
    return state, (told, Order(state.survivors(), Save(halt=True)))


def finish_stopped(state: State, stopping: Stopping) -> Decision:
    """Ends a job now that was to stop."""
    return finish(state, stopping.exit_code, f"{stopping.cause}{stopping.joint}{when(state)}")


def appoint_saver(state: State) -> Decision:
    """Has another member save a job that stops where the first one is gone before it has saved."""
    if not state.halts or state.halted or not state.group or state.group[0] in state.survivors():
        return state, ()
    able = [number for number in state.survivors() if number in state.halting.standing]
    if not able or state.halting.saver in able:
        return state, ()
    order = Order((able[0],), Save(halt=True, saver=able[0]))
    return replace(state, halting=replace(state.halting, saver=able[0])), (order,)


def when(state: State, step: int | None = None) -> str:
    """Returns the job's position for a message, which may be about a rank that has reported ``step``."""
    if state.pause is not None and state.pause.released:
        return f"while it waited for {state.pause.lack.value}"
    if not state.generation:
        return "before training began" if state.restart is None else "while it restarted"
    if state.rules.own_saves:  # a script that reports no steps
        return f"in generation {state.generation_number}"
    if state.over:
        return f"after the training, at step {state.step}"
    return f"after step {state.step}" if step is None else f"at step {step}"


def how(end: Exit) -> str:
    """Returns for a message how a process ended."""
    if end.signal is not None:
        return f"was killed by {signal_name(end.signal)}"
    if end.code is None:
        return "vanished"
    return f"exited with code {end.code}"


def script_failed(state: State, member: Member, now: float) -> Decision:
    """Ends a job whose script raised an exception on a member that it can't do without."""
    assert member.failure is not None
    said = member.failure.message.rstrip(". ")
    message = f"{state.name(member.number)} failed {when(state, member.failure.step)}: {said}"
    excusable = len(state.group) > 1 and concerns_a_peer(member.failure)
    return condemn(
        state,
        Verdict(
            ExitCode.SCRIPT_FAILED,
            message,
            Weight.PEER if excusable else Weight.SCRIPT,
            now + (PEER_SECONDS if excusable else COLLECT_SECONDS),
            (member.node, member.local_rank),
            member.failure.traceback,
            excusable=excusable,
        ),
    )


def exited_by_itself(state: State, member: Member, now: float) -> Decision:
    """Ends a job whose script exited with a code of its own on a member that was needed."""
    assert member.exit is not None
    if member.failure is not None:
        return state, ()  # its own account is better, and known
    fact = f"the script of {state.name(member.number)} exited with code {member.exit.code} {when(state)}"
    verdict = Verdict(
        ExitCode.SCRIPT_FAILED,
        fact,
        Weight.DEATH,
        now + COLLECT_SECONDS,
        (member.node, member.local_rank),
        uncaught=member.exit.code == UNCAUGHT,
        excusable=True,
    )
    first = state.verdict is None or state.verdict.weight < Weight.DEATH
    fields = {"node": member.node, "member": member.number, "signal": None, "exit_code": member.exit.code}
    lost: tuple[Action, ...] = (emit(state, "node_lost", **fields, step=state.step, message=fact),) if first else ()
    return then((state, lost), condemn, verdict)


def ended_early(state: State, now: float) -> Decision:
    """Ends the job if a member's script has ended while others train on."""
    if not state.members.early:
        return state, ()
    members = [state.members[number] for number in state.survivors()]
    furthest = max((one.step for one in members), default=0)
    broken = {one.number for one in members} & state.broken
    all_ended = all(one.ended for one in members)
    for member in members:
        if member.number not in state.members.early or (owes_exit(member, now) and not all_ended):
            continue
        if broken - {member.number} or (member.ended and member.step < furthest):
            step = member.step if member.ended else state.step
            message = (
                f"rank {state.group.index(member.number)}'s script (member {member.number}, node {member.node}) ended "
                f"after step {step} while other ranks train on; end all ranks at one step with job.stop()"
            )
            log_of = (member.node, member.local_rank)
            return condemn(
                state,
                Verdict(ExitCode.SCRIPT_FAILED, message, Weight.DEATH, now + COLLECT_SECONDS, log_of),
            )
    return state, ()


def owes_exit(member: Member, now: float) -> bool:
    """Returns whether a script has ended before its training loop was over, and may yet be seen to have failed."""
    return member.ended and not member.done and member.exit is None and now < member.exit_by


def wind_down(state: State) -> Decision:
    """Dismisses the members that wait for admission, since the training loop is over on some member."""
    if state.over:
        return state, ()
    formation = state.formation
    taking_part = formation.members if formation is not None and formation.active else ()
    waiting = tuple(
        member
        for node in state.in_phase(Phase.STARTING, Phase.WARM)
        for member in node.members
        if state.members[member].pid is not None and member not in taking_part
    )
    return replace(state, over=True), (Order(waiting, End("the training is over")),) if waiting else ()


def _own_exits(state: State, verdict: Verdict) -> list[str]:
    """Returns the scripts that have ended with exit codes of their own that are not in the message yet."""
    told = "exited with code" in verdict.message
    members = [] if told else [state.members[number] for number in state.survivors()]
    return [
        f"{state.name(one.number)} {how(one.exit)}"
        for one in members
        if one.failure is None and one.exit is not None and one.exit.code
    ]


def _finish_when_all_ended(state: State, now: float) -> Decision:
    survivors = state.survivors() if state.over else ()
    if not survivors or len(state.members.exited) < len(survivors):
        return state, ()
    there = (node for phase, numbers in state.nodes.phases.items() if phase is not Phase.GONE for node in numbers)
    recent = (node for node in map(state.nodes.__getitem__, there) if now - node.since < AGENT_SECONDS)
    if any(
        number in state.group and number not in state.members.departed for node in recent for number in node.members
    ):
        return state, ()
    exits = (state.members[number].exit for number in survivors)
    if not all(one is not None and one.clean for one in exits):
        return state, ()
    lost = [state.members[number] for number in state.lost()]  # and no generation was formed since
    for one in lost:
        if one.borne:  # after the loop, as is seen now
            traceback = one.failure.traceback if one.failure is not None else ""
            uncaught = one.failure is None and one.exit is not None and one.exit.code == UNCAUGHT
            return finish(state, ExitCode.SCRIPT_FAILED, one.borne, (one.node, one.local_rank), traceback, uncaught)
    missing = [one for one in lost if not one.ended]
    if missing:  # what its script was to do after the loop is not done
        member = missing[0]
        message = (
            f"{state.name(member.number)} was lost {when(state)}, before its script had ended: what it had to do there "
            "may be missing"
        )
        log_of = (member.node, member.local_rank)
        return finish(state, ExitCode.SCRIPT_FAILED, message, log_of, curable=True)
    samples = "" if state.samples is None else f", {state.samples} samples"
    reason = f" ({state.reason})" if state.reason else ""
    return finish(state, ExitCode.DONE, f"done{reason}: {state.step} steps{samples}{_where_left(state)}")


def _where_left(state: State) -> str:
    """Returns for a message where all scripts ended before their epochs had: by a break, or a caught exception."""
    left = all(state.members[number].ended and not state.members[number].done for number in state.survivors())
    told = state.progress
    if not left or told is None or told.epochs is None:
        return ""
    if told.statistical_epoch is not None:
        return f"; the script ended after {told.statistical_epoch:.2f} of {told.epochs} statistical epochs"
    return f"; the script ended in epoch {told.epoch + 1} of {told.epochs}"
