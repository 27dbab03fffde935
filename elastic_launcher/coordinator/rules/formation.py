"""Decides which members train together: one formation at a time, from its order to its generation or its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from elastic_launcher.config import ExitCode
from elastic_launcher.control.messages import Abandon, Active, Form, Formed, FormFailed
from elastic_launcher.coordinator.model.actions import Order
from elastic_launcher.coordinator.model.deadlines import NOTICE_GATHER_SECONDS
from elastic_launcher.coordinator.model.roster import Member, Node, Phase
from elastic_launcher.coordinator.model.roster_tables import Members, Ranks
from elastic_launcher.coordinator.model.state import Formation, State
from elastic_launcher.coordinator.rules.ending import Decision, emit, finish, then, when
from elastic_launcher.coordinator.rules.nodes import fail_node
from elastic_launcher.coordinator.rules.pause import lose_nodes

MOST_UNFORMED = 3  # formations in a row that fail without a cause, before a node is given up for it
SETTLE_SECONDS = 1.0  # after a failed formation: the loss of a node, or a broken step, is known by then
GATHER_SECONDS = 1.0  # that a warm node waits for others that come up with it: one resize instead of two
ORDER_SECONDS = 5.0  # beyond a group's own time-out: for orders and reports on their way on a loaded machine
FIRST_STEP_SECONDS = 60.0  # from the first member that completed a step on a new group to the last


def form_next(state: State, now: float) -> Decision:
    """Begins the formation that is due, if any: leaves before joins, never both in one."""
    if state.formation is not None or state.recovery is not None or now < state.not_before:
        return state, ()
    if not state.nodes.leaving and not _may_join(state, now):
        return state, ()
    admitted = state.in_phase(Phase.ADMITTED)
    warm = [node for node in state.in_phase(Phase.WARM) if not node.leave and not state.exited(node)]
    leaving = [node for node in admitted if node.leave]
    noticed = [node.leave_by - state.rules.grace_period for node in leaving if node.leave == "notice"]
    if noticed and now < max(noticed) + NOTICE_GATHER_SECONDS:
        return state, ()
    staying = len(admitted) - len(leaving)
    enough = staying >= state.rules.min_nodes
    if leaving and enough:
        return _shrink(state, leaving, now)
    if leaving and staying + len(warm) < state.rules.min_nodes:
        if staying + len(warm) + len(_joining(state)) >= state.rules.min_nodes:
            return state, ()  # they may be ready in time: where they are not, the notice expires
        return check_minimum(state, leaving, now)
    if not warm:
        return state, ()
    if not state.generation:
        return _start(state, warm, now) if len(warm) >= state.rules.min_nodes else (state, ())
    return _grow(state, warm, now)


def _may_join(state: State, now: float) -> bool:
    """Returns whether nodes are warm that can begin, or grow the group now; some of them may have ended since."""
    warm, least = state.nodes.count(Phase.WARM), state.rules.min_nodes
    if not state.generation:
        return warm >= least
    return warm > 0 and (state.nodes.count(Phase.ADMITTED) < least or not _others_come(state, now))


def check_minimum(state: State, leaving: list[Node], now: float) -> Decision:
    """Ends the job, or has it wait, if too few nodes stay or can take their place; ``leaving`` are those that go."""
    staying = [node for node in state.in_phase(Phase.ADMITTED) if not node.leave]
    able = len(staying) + len([n for n in state.in_phase(Phase.WARM) if not n.leave and not state.exited(n)])
    if able >= state.rules.min_nodes or state.halts or state.over or state.verdict is not None:
        return state, ()
    told, least = " and ".join(f"node {node.number}" for node in leaving), state.rules.min_nodes
    message = f"{told} must leave ({leaving[-1].leave}) and {len(staying)} of at least {least} nodes would stay"
    return lose_nodes(state, message, now)


def take_formed(state: State, member: Member, report: Formed, now: float) -> Decision:
    """Takes a report that a formation's group is built at a member."""
    formation = state.formation
    if formation is None or formation.number != report.formation:
        return state, ()
    return replace(state, formation=replace(formation, formed=formation.formed | {member.number})), ()


def take_form_failed(state: State, number: int, report: FormFailed, now: float) -> Decision:
    """Takes a report that a formation's group could not be built at a member."""
    if report.wait:
        state = _take_moved_on(state, number, report.wait, now)
    formation = state.formation
    if formation is None or formation.number != report.formation:
        return state, ()
    if formation.active and formation.mode != "grow":
        return state, ()  # a member has completed a step in it, in which all took part
    reason = f"{state.name(number)} could not form the group: {report.error or 'no reason given'}"
    return fail_formation(state, reason, (), now, known=report.moved)


def _take_moved_on(state: State, number: int, wait: int, now: float) -> State:
    """Takes a joiner as starting while it is on its way to the loop of the script in which the training is."""
    member = state.members[number]
    node = state.nodes[member.node]
    if member.wait > wait or node.phase not in (Phase.STARTING, Phase.WARM):
        return state
    state = state.with_node(node.number, phase=Phase.STARTING, since=now, began_at=now)
    return state.with_member(number, fingerprint=None)


def take_active(state: State, member: Member, report: Active, now: float) -> Decision:
    """Takes a member's first step in a formation; after the last member's, the formation is a generation."""
    formation = state.formation
    if formation is None or formation.number != report.formation or member.number not in formation.members:
        return state, ()
    active = {**formation.active, member.number: report}
    first = formation.first_active_at if formation.first_active_at is not None else now
    state = replace(state, formation=replace(formation, active=active, first_active_at=first))
    if len(active) < len(formation.members):
        return state, ()
    return _complete(state, now)


def form_if_active(state: State, now: float) -> Decision:
    """Completes a formation in which a member has completed a step, since all of them took part in it.

    Except one with joiners, which may not have received their state.
    """
    formation = state.formation
    if formation is None or not formation.active or formation.mode == "grow":
        return state, ()
    return _complete(state, now)


def fail_formation(state: State, reason: str, blamed: Iterable[int], now: float, known: bool = False) -> Decision:
    """Gives up the formation under way.

    Args:
        state: The state before.
        reason: What happened.
        blamed: Nodes that caused it, and are ended for it: never those of the current group.
        now: Monotonic seconds.
        known: Whether the reason does not count as a failure here: the loss of a node of the current group, which
            was reported already, or a training that has moved on to another loop.
    """
    formation = state.formation
    assert formation is not None
    told = tuple(n for n in (*formation.members, *formation.leavers) if state.members[n].exit is None)
    blamed = list(blamed)
    explained = bool(blamed) or known
    unformed = 0 if explained else state.unformed + (formation.mode != "recover")
    if unformed >= MOST_UNFORMED and formation.mode == "grow":
        blamed, unformed = state.nodes_of(formation.joiners), 0
    recovery = state.recovery
    settled = now if explained else now + SETTLE_SECONDS
    if recovery is not None and formation.mode == "recover":
        failures = 0 if explained else recovery.failures + 1
        recovery = replace(recovery, steps={}, given_up=formation.number, not_before=settled, failures=failures)
    state = replace(
        state,
        formation=None,
        recovery=recovery,
        abandoned={**state.abandoned, formation.number: formation.leavers},
        not_before=settled,
        unformed=unformed,
    )
    decision: Decision = (state, (Order(told, Abandon(formation.number)),))
    if max(unformed, recovery.failures if recovery else 0) >= MOST_UNFORMED:
        message = f"no group could be formed in {MOST_UNFORMED} attempts {when(state)}, the last: {reason}"
        return then(decision, finish, ExitCode.SCRIPT_FAILED, message)
    if known:
        return decision
    if not blamed:
        return then(decision, lambda same: (same, (emit(same, "warning", message=f"{reason}; trying again"),)))
    for node in blamed:
        decision = then(decision, fail_node, node, reason, now)
    return decision


def check_formation(state: State, now: float) -> Decision:
    """Gives up a formation that takes too long."""
    formation = state.formation
    if formation is None:
        return state, ()
    missing = [number for number in formation.members if number not in formation.formed | formation.active.keys()]
    if missing and now - formation.asked_at > state.rules.form_timeout + ORDER_SECONDS:
        return fail_formation(state, *_late(state, formation, missing, "did not form the group in time"), now)
    missing = [number for number in formation.members if number not in formation.active]
    if formation.first_active_at is not None and now - formation.first_active_at > FIRST_STEP_SECONDS:
        return fail_formation(state, *_late(state, formation, missing, "did not complete the first step"), now)
    return state, ()


def _late(state: State, formation: Formation, missing: list[int], what: str) -> tuple[str, list[int]]:
    reason = f"{', '.join(state.name(number) for number in missing)} {what}"
    blamed = [number for number in missing if number in formation.joiners or formation.mode == "start"]
    return reason, state.nodes_of(blamed)


def _joining(state: State) -> list[Node]:
    """Returns the nodes whose processes come up, and that will be warm before long."""
    starting = [node for node in state.in_phase(Phase.STARTING) if not node.leave]
    return [node for node in starting if any(state.members[number].pid is not None for number in node.members)]


def _others_come(state: State, now: float) -> bool:
    """Returns whether nodes are about to be warm for which those that are can wait a moment."""
    first = next(iter(state.nodes.phases[Phase.WARM]))
    coming = (one for node in state.nodes.phases[Phase.STARTING] for one in state.nodes[node].members)
    return now - state.nodes[first].since < GATHER_SECONDS and any(state.members[one].pid is not None for one in coming)


def _start(state: State, warm: list[Node], now: float) -> Decision:
    members = tuple(sorted(number for node in warm for number in node.members))
    joiners = members[1:]
    return begin(state, "start", members, joiners, (), dict.fromkeys(joiners, members[0]), "start", now)


def _grow(state: State, warm: list[Node], now: float) -> Decision:
    joiners, survivors = tuple(sorted(number for node in warm for number in node.members)), state.survivors()
    sources = {joiner: survivors[place % len(survivors)] for place, joiner in enumerate(joiners)}
    return begin(state, "grow", survivors + joiners, joiners, (), sources, warm[-1].cause, now)


def _shrink(state: State, leaving: list[Node], now: float) -> Decision:
    leavers = tuple(number for number in state.survivors() if state.nodes[state.members[number].node] in leaving)
    members = tuple(number for number in state.survivors() if number not in leavers)
    return begin(state, "shrink", members, (), leavers, {}, leaving[-1].leave, now)


def begin(
    state: State,
    mode: str,
    members: tuple[int, ...],
    joiners: tuple[int, ...],
    leavers: tuple[int, ...],
    sources: Mapping[int, int],
    cause: str,
    now: float,
) -> Decision:
    """Orders a formation."""
    difference = _first_difference(state, members[0], joiners) if mode == "start" else ""
    if difference:  # who joins later compares with what is trained by then
        return finish(state, ExitCode.SCRIPT_FAILED, difference)
    number = state.formations + 1
    formation = Formation(number, mode, Ranks(members), Ranks(joiners), Ranks(leavers), cause, now)
    order = Form(
        number,
        state.rules.generations_before + state.generation + 1,
        mode,
        members,
        joiners,
        leavers,
        sources,
        state.rules.store,
        state.rules.form_timeout,
        cause,
    )
    state = replace(state, formation=formation, formations=number)
    return state, (Order((*members, *leavers), order),)


def _complete(state: State, now: float) -> Decision:
    formation = state.formation
    assert formation is not None
    reports = formation.active
    before = set(state.group)
    survivors = [number for number in formation.members if number in before]
    joined = [node for node in state.nodes_of(formation.members) if state.nodes[node].phase is Phase.WARM]
    for node in joined:
        state = state.with_node(node, phase=Phase.ADMITTED, since=now)
    members: dict[int, Member] = dict(state.members)
    for number, report in reports.items():
        members[number] = replace(members[number], step=max(members[number].step, report.step))
    latest = max(reports.values(), key=lambda report: report.step)
    gone = state.nodes_of(number for number in state.group if number not in formation.members)
    state = replace(
        state,
        generation=state.generation + 1,
        group=formation.members,
        group_formation=formation.number,
        formation=None,
        abandoned={},
        broken=frozenset(),
        recovery=None,
        pause=None if state.pause is not None and state.pause.asks else state.pause,
        unformed=state.unformed if formation.mode == "recover" else 0,
        failures=0 if joined else state.failures,
        members=Members(members),
        step=max(state.step, latest.step),
    ).at_epoch(latest.phase, latest.epoch)
    event = emit(
        state,
        "generation_formed",
        formation=formation.number,
        world_size=len(formation.members),
        nodes=len(state.nodes_of(formation.members)),
        members=[{"member": number, "node": state.members[number].node} for number in formation.members],
        cause=formation.cause,
        first_step=max(report.first_step for report in reports.values()),
        pause_seconds=max((reports[number].pause_seconds for number in survivors if number in reports), default=0.0),
        joined=joined,
        left=gone,
    )
    decision: Decision = (state, (event,))
    for number in formation.leavers:
        decision = then(decision, let_go, number, now)
    return decision


def let_go(state: State, number: int, now: float) -> Decision:
    """A leaver has left: said by itself, by its process's end, or by the rest that trains without it.

    All of a node leaves at the same boundary, so the first of its members speaks for the others.
    """
    node = state.nodes[state.members[number].node]
    if state.members[number].left:
        return state, ()
    for one in node.members:
        state = state.with_member(one, left=True)
    if node.phase is not Phase.ADMITTED:
        return state, ()
    state = state.with_node(node.number, phase=Phase.LEAVING, since=now)
    return state, (emit(state, "node_left", node=node.number, cause=node.leave),)


def _first_difference(state: State, reference: int, others: Iterable[int]) -> str:
    """Returns a message where two members don't train the same; empty if all do."""
    absent = "(absent)"
    expected: Mapping[str, Any] = state.members[reference].fingerprint or {}
    for number in others:
        found: Mapping[str, Any] = state.members[number].fingerprint or {}
        for name in (*expected, *(name for name in found if name not in expected)):
            one, other = expected.get(name, absent), found.get(name, absent)
            if one != other:
                members = [f"member {m} (node {state.members[m].node})" for m in (reference, number)]
                return (
                    f"{members[0]} and {members[1]} do not train the same: {name} is {one!r} on the first and "
                    f"{other!r} on the second. All ranks must have the same data set, models and batch settings"
                )
    return ""
