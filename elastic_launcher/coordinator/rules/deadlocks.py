"""What follows when ranks wait for each other in vain, or one keeps the others waiting."""

from __future__ import annotations

import math

from elastic_launcher.config import ExitCode
from elastic_launcher.control.vitals import name_apart
from elastic_launcher.coordinator.model.observations import MemberAwaited, MembersApart
from elastic_launcher.coordinator.model.state import State, Verdict, Weight
from elastic_launcher.coordinator.rules.ending import COLLECT_SECONDS, Decision, condemn, emit


def take_apart(state: State, observation: MembersApart) -> Decision:
    """All ranks wait, and not in the same operation: none of them gets any further, so the job ends."""
    numbers = [number for number, _ in observation.waits]
    if state.recovery is not None or state.verdict is not None or not set(numbers) <= set(state.survivors()):
        return state, ()
    where = ", ".join(f"rank {state.group.index(number)} is {doing}" for number, doing in observation.waits)
    member = state.members[numbers[0]]
    until, log_of = observation.now + COLLECT_SECONDS, (member.node, member.local_rank)
    return condemn(state, Verdict(ExitCode.SCRIPT_FAILED, name_apart(where), Weight.SCRIPT, until, log_of))


def take_awaited(state: State, observation: MemberAwaited) -> Decision:
    """One rank has kept another one waiting for long: it is said where both are, and what may help."""
    if not {observation.waiter, observation.member} <= set(state.survivors()) or state.verdict is not None:
        return state, ()
    waiter, awaited = state.group.index(observation.waiter), state.group.index(observation.member)
    message = (
        f"rank {waiter} has waited {observation.waits:.0f} s {observation.waits_in}; rank {awaited} has been "
        f"{observation.doing} for {observation.busy:.0f} s"
    )
    if not state.members[observation.member].ended:
        message += ": if that is an evaluation, use job.evaluate, in which all ranks take part"
    if observation.longest < math.inf:
        message += f"; it is given up after {observation.longest:.0f} s unless --progress-timeout is raised"
    return state, (emit(state, "warning", message=message),)
