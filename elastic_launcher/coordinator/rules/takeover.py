"""Rebuilds the `State` of a job whose coordinator has ended, from its members' reports and its files.

Invariants: members that agree on one generation continue in it, undisturbed. A formation under way continues where all
its members have it; otherwise the ordinary rules give it up, as they do what died meanwhile. No number is reused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from elastic_launcher.control.introduction import Introduction
from elastic_launcher.control.messages import Active, Form, Halted, Left, Report, StepFailed, Warm
from elastic_launcher.coordinator.model.actions import Action, Emit, KillNode
from elastic_launcher.coordinator.model.event_replay import Generation, Record
from elastic_launcher.coordinator.model.observations import MemberReported, MemberSilent, NodeExited, RankEnded
from elastic_launcher.coordinator.model.roster import Exit, Member, Node, Phase
from elastic_launcher.coordinator.model.roster_tables import Members, Nodes, Ranks
from elastic_launcher.coordinator.model.state import Formation, Recovery, State, Target
from elastic_launcher.coordinator.rules.decide import decide
from elastic_launcher.coordinator.rules.ending import Decision, then
from elastic_launcher.coordinator.rules.formation import fail_formation
from elastic_launcher.coordinator.rules.pause import go_on_waiting

GIVEN_UP = "the launcher was away while the group formed"


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers that are used.

    Attributes:
        node: Of the next node.
        member: Of its first member.
        generations: How many generations there were.
        members: Of each node, if known: those of a node that its queue took back do not follow the others'.
        nodes: The node of each member, if known.
    """

    node: int
    member: int
    generations: int = 0
    members: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    nodes: Mapping[int, int] = field(default_factory=dict)

    def node_of(self, member: int, nproc_per_node: int) -> int:
        """Returns a member's node: numbers of a run follow each other, except the known ones."""
        if member in self.nodes:
            return self.nodes[member]
        return self.node - 1 - (self.member - 1 - member) // nproc_per_node

    def members_of(self, node: int, nproc_per_node: int) -> tuple[int, ...]:
        """Returns a node's members."""
        if known := self.members.get(node):
            return known
        first = self.member - (self.node - node) * nproc_per_node
        return tuple(range(first, first + nproc_per_node))


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What is left of a job whose coordinator has ended.

    Attributes:
        nodes: The nodes whose agents live.
        introductions: The members' introductions.
        exits: How ranks have ended, by node and local rank.
        record: The record in the events.
        numbers: The numbers that are used.
    """

    nodes: Sequence[int]
    introductions: Mapping[int, Introduction]
    exits: Mapping[tuple[int, int], Exit]
    record: Record
    numbers: Numbers


def runs_on(left: Leftovers, nproc_per_node: int) -> bool:
    """Returns whether the job can continue: a member has the state, or the training has not begun.

    A job that was being stopped has halted, and is saved: it resumes from there.
    """
    size = nproc_per_node
    told = [one for member, one in left.introductions.items() if left.numbers.node_of(member, size) in left.nodes]
    stopped = any(one.halting or any(isinstance(report, Halted) for report in one.reports) for one in told)
    trains = left.record.generation is None or any(one.current is not None for one in told)
    return bool(left.nodes) and trains and not stopped


def expected(left: Leftovers, nproc_per_node: int) -> set[int]:
    """Returns the members that have not introduced themselves, and should: those on living nodes that were warm."""
    known = set(left.record.generation.members) if left.record.generation else set()
    for order in _orders(left.introductions).values():
        known |= {*order.members, *order.leavers}
    for kind, node in left.record.told:
        if kind == "node_warm":
            known |= set(left.numbers.members_of(node, nproc_per_node))
    ended = {left.numbers.members_of(node, nproc_per_node)[place] for node, place in left.exits}
    alive = {member for node in left.nodes for member in left.numbers.members_of(node, nproc_per_node)}
    return (known & alive) - ended - left.introductions.keys()


def adopt(first: State, left: Leftovers, now: float, waited: float) -> Decision:
    """Returns the job's state, and the actions that are due at once.

    Args:
        first: Its state when its run began; the numbers in its rules are set here.
        left: What is left of the job.
        now: Monotonic seconds.
        waited: The seconds that members had to introduce themselves.
    """
    settled, under_way = _generations(left)
    orders = _orders(left.introductions)
    highest = max([one.highest for one in left.introductions.values()], default=0)
    bare = state = _bare(first, left, settled, under_way, now)
    last = settled.formation if settled else 0
    passed = {number: order.leavers for number, order in orders.items() if number > last}
    broken = {
        report.formation: ()
        for one in left.introductions.values()
        for report in one.reports
        if isinstance(report, StepFailed) and report.formation > last
    }
    if under_way is not None:
        passed.pop(under_way.formation, None)
        broken.pop(under_way.formation, None)
        recovering = Recovery("a node was lost", explained=True, counted=True) if under_way.mode == "recover" else None
        state = replace(state, formation=_formation(under_way, now), recovery=recovering)
    state = replace(
        state,
        formations=max(highest, last, *passed, *broken, 0),
        abandoned={**broken, **passed},
    )
    # an order to end may have been lost with the coordinator before
    decision: Decision = (state, tuple(KillNode(node.number) for node in state.in_phase(Phase.ENDING)))
    if under_way is not None and not _can_form(under_way, left):
        decision = then(decision, fail_formation, GIVEN_UP, (), now, True)
    state, actions = _apply_reports(decision, left, now, waited)
    lost = {node for kind, node in left.record.told if kind == "node_lost"}
    there = [node for node in bare.staying() if node.number not in lost]
    state = replace(state, target=Target(len(there), "start"))  # only now: no formation may begin in between
    told = tuple(action for action in actions if not _was_recorded(action, left.record))
    return then((state, told), _wait_as_before, now)


def _wait_as_before(state: State, now: float) -> Decision:
    """Has a job that waits for nodes continue to wait, and ask for its minimum; the hints allow more later."""
    if state.finished or state.verdict is not None:
        return state, ()
    state, actions = go_on_waiting(state, now)
    if state.pause is not None and state.target is not None:
        nodes = max(state.target.nodes, state.rules.min_nodes)
        state = replace(state, target=replace(state.target, nodes=nodes))
    return state, actions


def _orders(introductions: Mapping[int, Introduction]) -> dict[int, Form]:
    """Returns the formations that members know, by number."""
    found: dict[int, Form] = {}
    for one in introductions.values():
        found |= {order.formation: order for order in (*one.pending, *((one.current,) if one.current else ()))}
    return found


def _generations(left: Leftovers) -> tuple[Generation | None, Form | None]:
    """Returns the last complete generation, and the formation that was under way then.

    Where all have changed to a formation and a later one was ordered, the first had become a generation, even if no
    event records it.
    """
    settled = left.record.generation
    orders = _orders(left.introductions)
    last = settled.formation if settled else 0
    later = max((number for number in orders if number > last), default=None)
    if later is None:
        return settled, None
    taken = [one.current.formation for one in left.introductions.values() if one.current is not None]
    reached = min((number for number in taken if number >= last), default=last)
    if last < reached < later:
        order = orders[reached]
        settled = Generation(order.generation, order.formation, order.members)
    return settled, orders[later]


def _bare(first: State, left: Leftovers, settled: Generation | None, under_way: Form | None, now: float) -> State:
    """Returns the nodes and members; those that trained count as still training."""
    rules = first.rules
    numbers, size = left.numbers, rules.nproc_per_node
    group = settled.members if settled is not None else ()
    taking_part = {*group, *((*under_way.members, *under_way.leavers) if under_way is not None else ())}
    lowest = min([*left.nodes, *(numbers.node_of(member, size) for member in taking_part), numbers.node])
    rules = replace(
        rules,
        first_node=lowest,
        first_member=numbers.member,
        generations_before=numbers.generations if settled is None else 0,
    )
    nodes, members = dict[int, Node](), dict[int, Member]()
    for number in range(lowest, numbers.node):
        own = numbers.members_of(number, size)
        phase = _phase(number, own, set(group), left)
        leave = under_way.cause if under_way is not None and set(own) & set(under_way.leavers) else ""
        by = now + rules.grace_period if leave == "notice" else math.inf  # the time of the notice is not known any more
        pod = left.record.pods.get(number, "")
        over_quota = number in left.record.over_quota
        nodes[number] = Node(number, own, now, "hint", phase, now, leave, by, pod=pod, over_quota=over_quota)
        members |= {member: _member(member, number, place, left) for place, member in enumerate(own)}
    for member, number in numbers.nodes.items():  # of pods that queues took back: an order may still name one
        if number in nodes and member not in members:
            members[member] = Member(member, number, 0, exit=Exit())
    state = replace(
        first,
        rules=rules,
        nodes=Nodes(nodes),
        members=Members(members),
        generation=settled.number if settled else 0,
        group=Ranks(group),
        group_formation=settled.formation if settled else 0,
    )
    furthest = max(left.introductions.values(), key=lambda one: one.step, default=None)
    step = max(left.record.step, furthest.step if furthest is not None else 0)
    known = furthest is not None and furthest.step >= left.record.step
    recorded = first.samples if left.record.generation is None else left.record.samples
    samples = furthest.samples if known and furthest is not None and furthest.samples else recorded
    return replace(_at(state, left), step=step, samples=samples)


def _at(state: State, left: Leftovers) -> State:
    """Returns a state in the phase and epoch of the member that is furthest, with the sums known there: all three
    belong together.
    """
    told = max(left.introductions.values(), key=lambda one: (one.phase, one.step, one.epoch), default=None)
    if told is None or (told.phase, told.epoch) < (state.phase, state.epoch):
        return state
    return replace(state, phase=told.phase, epoch=told.epoch, sums=told.sums)


def _phase(node: int, members: Sequence[int], group: set[int], left: Leftovers) -> Phase:
    gone = {kind for kind, number in left.record.told if number == node}
    if group & set(members) and "node_left" not in gone:
        return Phase.ADMITTED  # as recorded; later reports are applied below
    if node not in left.nodes:
        return Phase.GONE
    if group & set(members):
        return Phase.LEAVING
    introductions = [left.introductions[member] for member in members if member in left.introductions]
    if "node_left" in gone and any(isinstance(report, Left) for one in introductions for report in one.reports):
        return Phase.LEAVING
    if gone & {"node_left", "node_failed", "node_lost"}:
        return Phase.ENDING
    warm = [one for one in introductions if _fingerprint(one) is not None]
    return Phase.WARM if len(warm) == len(members) else Phase.STARTING


def _member(number: int, node: int, local_rank: int, left: Leftovers) -> Member:
    group = left.record.generation.members if left.record.generation is not None else ()
    gone = number in group and ("node_left", node) in left.record.told
    told = left.introductions.get(number)
    if told is not None:
        return Member(number, node, local_rank, told.pid, _fingerprint(told), told.step, left=gone)
    others = (left.introductions.get(member) for member in group if number in group)  # whose fingerprints are equal
    fingerprint = next((_fingerprint(one) for one in others if one is not None), None)
    return Member(number, node, local_rank, fingerprint=fingerprint, left=gone)


def _fingerprint(told: Introduction) -> Mapping[str, Any] | None:
    return next((report.fingerprint for report in told.reports if isinstance(report, Warm)), None)


def _formation(order: Form, now: float) -> Formation:
    members, joiners, leavers = Ranks(order.members), Ranks(order.joiners), Ranks(order.leavers)
    return Formation(order.formation, order.mode, members, joiners, leavers, order.cause, now)


def _can_form(order: Form, left: Leftovers) -> bool:
    """Whether all members of a formation have changed to it, or can now; its store is gone."""

    def has(member: int) -> bool:
        told = left.introductions.get(member)
        if told is None:
            return False
        taken = told.current is not None and told.current.formation == order.formation
        return taken or order.formation in told.standing

    leavers = [member for member in order.leavers if member in left.introductions]
    return all(has(member) for member in (*order.members, *leavers))


def _apply_reports(decision: Decision, left: Leftovers, now: float, waited: float) -> Decision:
    """Applies the ordinary rules to the members' reports and to what has ended."""
    formation = decision[0].formation
    for member, told in sorted(left.introductions.items()):
        for report in told.reports:
            if member in decision[0].members and _holds(report, formation):
                decision = then(decision, decide, MemberReported(now, member, report))
    size = decision[0].rules.nproc_per_node
    for (node, place), ended in sorted(left.exits.items()):
        if node in left.nodes:
            decision = then(decision, decide, RankEnded(now, node, place, ended))
    for node in list(decision[0].nodes):
        if node not in left.nodes and decision[0].nodes[node].phase is not Phase.GONE:
            ranks = tuple((place, left.exits[node, place]) for place in range(size) if (node, place) in left.exits)
            decision = then(decision, decide, NodeExited(now, node, None, ranks))
    if decision[0].recovery is not None:  # which waits for all; otherwise a silent member may be busy, as at any time
        for member in sorted(set(decision[0].group) & expected(left, size)):
            decision = then(decision, decide, MemberSilent(now, member, waited, given_up=True))
    return decision


def _holds(report: Report, formation: Formation | None) -> bool:
    """Whether a report is still to be applied: those of a complete generation were applied then."""
    if isinstance(report, Active):
        return formation is not None and formation.number == report.formation
    return not isinstance(report, Warm)


def _was_recorded(action: Action, record: Record) -> bool:
    return isinstance(action, Emit) and (action.kind, action.fields.get("node")) in record.told
