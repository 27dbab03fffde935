"""What a coordinator makes of a job that ran without one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from elastic_launcher.control.introduction import Introduction
from elastic_launcher.control.messages import (
    Abandon,
    Active,
    BatchChanged,
    Done,
    Form,
    Left,
    Message,
    MicroBatchLowered,
    PhaseStarted,
    Saved,
    StepFailed,
    Warm,
)
from elastic_launcher.coordinator.api.live_status import phase
from elastic_launcher.coordinator.model.actions import Action, Emit, KillNode, Order, RestartAll
from elastic_launcher.coordinator.model.event_replay import Generation, Record, read_record
from elastic_launcher.coordinator.model.observations import NodeRegistered, NodeStands, NodeUnfit
from elastic_launcher.coordinator.model.pause import EarlierWait
from elastic_launcher.coordinator.model.roster import Exit, Phase
from elastic_launcher.coordinator.model.state import State
from elastic_launcher.coordinator.rules.checkpoint_restart import record_restart_cause, restart_if_curable
from elastic_launcher.coordinator.rules.takeover import Leftovers, Numbers, adopt, expected, runs_on
from elastic_launcher.events import Event
from elastic_launcher.torch.membership.rejoin_state import RejoinState
from tests.support.played_job import Job
from tests.support.random_walk import Walk, histories

WARM = Warm({"dataset": 100})
PATIENCE = 10.0


def order(number: int, mode: str, members: tuple[int, ...], generation: int, **more: Any) -> Form:
    joiners, leavers = more.get("joiners", ()), more.get("leavers", ())
    sources = dict.fromkeys(joiners, members[0])
    cause = more.get("cause", "hint")
    return Form(number, generation, mode, members, joiners, leavers, sources, "127.0.0.1:1", 10.0, cause)


def member(current: Form | None, step: int = 40, **more: Any) -> Introduction:
    reports = (WARM, *more.pop("reports", ()))
    return Introduction(1000, step, 1, 24 * step, current, reports=reports, highest=3, **more)


SECOND = order(2, "grow", (1, 2), 2, joiners=(2,))
THIRD = order(3, "grow", (1, 2, 3), 3, joiners=(3,))
SMALLER = order(3, "shrink", (1,), 3, leavers=(2,))
AGAIN = order(3, "recover", (1, 2), 3)
STANDS = Generation(2, 2, (1, 2))


def leftovers(introductions: dict[int, Introduction], **more: Any) -> Leftovers:
    """One rank a node; nodes 1 to 3 were started, and generation 2 is that of members 1 and 2."""
    nodes = more.pop("nodes", tuple(introductions))
    record = Record(STANDS, 1, step=38, **more.pop("record", {}))
    return Leftovers(nodes, introductions, more.pop("exits", {}), record, Numbers(4, 4, 2))


def taken(left: Leftovers, minimum: int = 1) -> Job:
    """Returns a job that goes on from there."""
    job = Job(minimum)
    job.state, actions = adopt(job.state, left, job.now, PATIENCE)
    job.take(actions)
    return job


def test_a_node_stays_of_its_kind() -> None:
    job = taken(leftovers({1: member(SECOND), 2: member(SECOND, 41)}, record={"over_quota": frozenset({1})}))
    assert [node.over_quota for node in job.state.nodes.values()] == [True, False, False]


def test_members_that_agree_go_on_undisturbed() -> None:
    job = taken(leftovers({1: member(SECOND), 2: member(SECOND, 41)}))
    assert job.actions == []
    state = job.state
    assert (state.generation, state.group, state.group_formation, state.step) == (2, (1, 2), 2, 41)
    assert (state.generation_number, state.samples, state.epoch) == (2, 24 * 41, 1)
    assert {number: node.phase for number, node in state.nodes.items()} == {
        1: Phase.ADMITTED,
        2: Phase.ADMITTED,
        3: Phase.GONE,
    }
    assert state.target is not None and state.target.nodes == 2
    assert job.tick(100.0) == ()


def test_numbers_go_on() -> None:
    job = taken(leftovers({1: member(SECOND), 2: member(SECOND)}))
    job.target(3)
    assert job.state.nodes[4].members == (4,)
    job.warm(4)
    job.tick(5.0)
    [form] = job.orders(Form)
    assert (form.formation, form.generation, form.members, form.joiners) == (4, 3, (1, 2, 4), (4,))


def test_a_group_that_stands_everywhere_becomes_the_next_generation() -> None:
    """Two have changed to it already, and told it to who was no more; the third is about to."""
    told = (Active(3, 40, 41),)
    left = leftovers(
        {
            1: member(THIRD, reports=told),
            2: member(SECOND, pending=(THIRD,), standing=(3,)),
            3: member(THIRD, reports=told),
        }
    )
    job = taken(left)
    assert job.actions == []
    job.report(2, Active(3, 40, 41))
    [formed] = [action for action in job.actions if isinstance(action, Emit)]
    assert (formed.kind, formed.generation, formed.fields["joined"]) == ("generation_formed", 3, [3])
    assert job.state.group == (1, 2, 3)


NOT_EVERYWHERE = [
    pytest.param({3: member(None)}, id="a joiner has no order"),
    pytest.param({3: member(None, pending=(THIRD,))}, id="a joiner has no group"),
    pytest.param({}, id="a joiner is gone"),
]


@pytest.mark.parametrize("joiner", NOT_EVERYWHERE)
def test_a_group_that_does_not_stand_everywhere_is_formed_again(joiner: dict[int, Introduction]) -> None:
    waits = {number: member(SECOND, pending=(THIRD,), standing=(3,)) for number in (1, 2)}
    job = taken(leftovers(waits | joiner))
    assert job.orders(Abandon) == [Abandon(3)]
    assert job.state.generation == 2 and job.state.formation is None
    job.tick(5.0)
    formed = [form.members for form in job.orders(Form)]
    assert formed == ([(1, 2, 3)] if joiner else [])


def test_who_left_meanwhile_has_left() -> None:
    left = leftovers(
        {1: member(SMALLER, reports=(Active(3, 40, 41),))},
        exits={(2, 0): Exit(0)},
    )
    job = taken(left)
    kinds = [action.kind for action in job.actions if isinstance(action, Emit)]
    assert kinds == ["generation_formed", "node_left"]
    assert job.state.group == (1,)


def test_a_leaver_that_has_not_ended_yet_has_left_too() -> None:
    left = leftovers({1: member(SMALLER), 2: member(SMALLER, reports=(Left(40),))})
    job = taken(left)
    job.report(1, Active(3, 40, 41))
    assert job.state.group == (1,) and job.state.nodes[2].phase is Phase.LEAVING


@pytest.mark.parametrize("nodes", [(1,), (1, 2)], ids=["and is gone", "and is about to end"])
def test_a_node_that_had_to_leave_within_the_step_has_left(nodes: tuple[int, ...]) -> None:
    told = {"told": frozenset({("notice", 2), ("node_left", 2)})}
    ended = {} if 2 in nodes else {(2, 0): Exit(0)}
    broken = member(SECOND, reports=(StepFailed(2, 40, "reset"),))
    job = taken(leftovers({1: broken}, nodes=nodes, exits=ended, record=told))
    job.tick()
    assert [form.members for form in job.orders(Form)] == [(1,)]
    assert not job.state.over and job.state.losses == 0


def test_a_leaver_whose_group_is_given_up_leaves_in_the_next_one() -> None:
    smaller = order(3, "shrink", (1,), 3, leavers=(2,), cause="notice")
    job = taken(leftovers({1: member(SECOND, pending=(smaller,)), 2: member(SECOND)}))
    job.tick(1.0)
    assert [(form.mode, form.leavers) for form in job.orders(Form)] == [("shrink", (2,))]


@pytest.mark.parametrize("told", [False, True], ids=["new", "known"])
def test_a_rank_that_died_meanwhile_is_lost_once(told: bool) -> None:
    record = {"told": frozenset({("node_lost", 2)})} if told else {}
    broken = member(SECOND, reports=(StepFailed(2, 40, "reset"),))
    job = taken(leftovers({1: broken}, exits={(2, 0): Exit(signal=9)}, record=record))
    assert [action.kind for action in job.actions if isinstance(action, Emit)] == ([] if told else ["node_lost"])
    job.tick()
    [form] = job.orders(Form)
    assert (form.mode, form.members, form.generation) == ("recover", (1,), 3)


def test_a_recovery_whose_group_stands_goes_on() -> None:
    waits = {1: member(AGAIN), 2: member(SECOND, pending=(AGAIN,), standing=(3,))}
    job = taken(leftovers(waits))
    job.report_all((1, 2), Active(3, 40, 41))
    assert job.orders(Abandon) == [] and job.state.generation == 3 and job.state.recovery is None


def test_a_recovery_whose_group_does_not_stand_is_restarted() -> None:
    broken = (StepFailed(2, 40, "reset"),)
    waits = {1: member(SECOND, pending=(AGAIN,), reports=broken), 2: member(SECOND, reports=broken)}
    job = taken(leftovers(waits))
    job.tick()
    [form] = job.orders(Form)
    assert (form.formation, form.mode, form.members) == (4, "recover", (1, 2))


def test_a_member_that_says_nothing_has_time_where_nobody_waits_for_it() -> None:
    left = leftovers({1: member(SECOND)}, nodes=(1, 2))
    assert expected(left, 1) == {2}
    job = taken(left)
    assert job.actions == [] and job.state.group == (1, 2)
    assert job.state.members[2].fingerprint == WARM.fingerprint, "or joiners would differ from it"


def test_a_member_that_says_nothing_is_given_up_where_others_wait_to_be_formed_again() -> None:
    broken = member(SECOND, reports=(StepFailed(2, 40, "reset"),))
    job = taken(leftovers({1: broken}, nodes=(1, 2)))
    assert KillNode(2) in job.actions
    [lost] = [action for action in job.actions if isinstance(action, Emit) and action.kind == "node_lost"]
    assert "gave no sign of life for 10 s" in lost.fields["message"]


def test_a_node_that_was_being_ended_is_ended() -> None:
    record = {"told": frozenset({("node_lost", 3)})}
    left = leftovers({number: member(SECOND) for number in (1, 2)} | {3: member(SECOND)}, record=record)
    job = taken(left)
    assert job.actions == [KillNode(3)]


REQUEUED = {
    "members": {1: (1,), 2: (2,), 3: (5,), 4: (4,)},
    "nodes": {1: 1, 2: 2, 3: 3, 4: 4, 5: 3},
    "pods": {4: "digits-4-a"},
}


def test_a_node_that_its_queue_took_back_has_the_members_that_it_got_then() -> None:
    record = Record(STANDS, 1, step=38, told=frozenset({("node_warm", 4)}), **REQUEUED)
    numbers = Numbers(5, 6, 2, record.members, record.nodes)
    introductions = {1: member(SECOND), 2: member(SECOND), 4: member(None)}
    left = Leftovers((1, 2, 3, 4), introductions, {}, record, numbers)
    assert runs_on(left, 1) and expected(left, 1) == set()
    job = taken(left)
    nodes = job.state.nodes
    assert [(one.members, one.phase) for one in nodes.values()] == [
        ((1,), Phase.ADMITTED),
        ((2,), Phase.ADMITTED),
        ((5,), Phase.STARTING),
        ((4,), Phase.WARM),
    ]
    job.target(5)
    assert [(one.node, one.first_member) for one in job.started] == [(5, 6)]
    for node, pod in ((3, "digits-3-b"), (4, "digits-4-a")):
        job.feed(NodeRegistered(job.now, node, pod))
    assert (job.state.nodes[3].members, job.state.nodes[4].members) == ((5,), (4,))
    job.feed(NodeRegistered(job.now, 4, "digits-4-b"))
    assert job.state.nodes[4].members == (7,), "its queue took it back while the launcher was away"
    job.warm(3, 4, 5)
    job.tick(5.0)
    assert job.orders(Form)[-1].members == (1, 2, 5, 6, 7)


def test_an_order_that_names_a_member_whose_pod_was_taken_back_is_given_up() -> None:
    record = Record(STANDS, 1, step=38, told=frozenset({("node_warm", 4)}), **REQUEUED)
    numbers = Numbers(5, 6, 2, record.members, record.nodes)
    told = {number: member(SECOND, pending=(THIRD,)) for number in (1, 2)}
    job = taken(Leftovers((1, 2, 3, 4), told, {}, record, numbers))
    assert job.state.formation is None and job.state.nodes[3].members == (5,)
    assert Abandon(THIRD.formation) in job.orders(Abandon) and 3 not in job.told(Abandon)
    assert job.state.superseded(3)


def test_numbers_that_a_node_got_which_is_gone_are_used() -> None:
    record = Record(STANDS, 1, members={1: (3,), 2: (1,), 3: (2,)}, nodes={1: 2, 2: 3, 3: 1})
    numbers = Numbers(4, 4, 2, record.members, record.nodes)
    left = Leftovers((2, 3), {1: member(SECOND), 2: member(SECOND)}, {}, record, numbers)
    job = taken(left)
    job.target(3)
    assert [(one.node, one.first_member) for one in job.started] == [(4, 4)]


def test_where_nobody_has_the_state_there_is_nothing_to_go_on_with() -> None:
    assert not runs_on(leftovers({3: member(None)}), 1)
    assert not runs_on(leftovers({1: member(SECOND)}, nodes=(3,)), 1)
    assert not runs_on(leftovers({1: member(SECOND, halting=True), 2: member(SECOND)}), 1)
    assert runs_on(leftovers({1: member(SECOND)}), 1)


class Returning(Walk):
    """A job whose coordinator is lost now and then; its members behave (see `Walk`)."""

    def __init__(self, minimum: int, maximum: int, nproc: int) -> None:
        self.accounts: dict[int, RejoinState] = {}
        super().__init__(minimum, maximum, nproc)
        tell = self.job.report

        def report(number: int, message: Message) -> tuple[Action, ...]:
            rejoin_state = self.accounts.setdefault(number, RejoinState())
            if isinstance(message, (Active, Left)):
                rejoin_state.note_taken(self.formation)
            rejoin_state.note_report(message)
            return tell(number, message)

        self.job.report = report  # type: ignore[method-assign]

    def check(self, job: Job, actions: tuple[Action, ...]) -> None:
        for action in actions:
            if isinstance(action, Order):
                for number in action.members:
                    self.obey(self.accounts.setdefault(number, RejoinState()), action.order)
        super().check(job, actions)

    def obey(self, rejoin_state: RejoinState, given: Message) -> None:
        if isinstance(given, Form):
            rejoin_state.note_order(given)
        elif isinstance(given, Abandon):
            rejoin_state.note_given_up(given.formation)

    def has_lost(self, state: State) -> bool:
        return any(isinstance(action, Emit) and action.kind == "node_lost" for action in self.job.actions)

    def stand(self, few: int) -> None:
        """Has the group of the formation under way stand at its members, or at some of them."""
        formation = self.job.state.formation
        if formation is not None:
            for number in (*formation.members, *formation.leavers)[few % 3 :]:
                self.accounts[number].note_standing(formation.number)

    def lose(self) -> bool:
        """Has another coordinator take the job over; returns whether there was anything to go on with."""
        state, job = self.job.state, self.job
        emitted = [action for action in job.actions if isinstance(action, Emit)]
        run = [Event("job_started", 0.0, 0), *(Event(one.kind, 0.0, one.generation, one.fields) for one in emitted)]
        record = read_record(run)
        present = {number: one for number, one in state.members.items() if not record.superseded(number)}
        ended = {number for number, one in present.items() if one.exit is not None}
        left = Leftovers(
            [node.number for node in state.nodes.values() if node.phase is not Phase.GONE],
            {
                number: self.accounts.setdefault(number, RejoinState()).introduction()
                for number, one in present.items()
                if one.pid is not None and number not in ended and state.nodes[one.node].phase is not Phase.GONE
            },
            {(one.node, one.local_rank): one.exit for one in present.values() if one.exit is not None},
            record,
            Numbers(self.node + 1, self.member + 1, self.generation, record.members, record.nodes),
        )
        if not left.nodes or not runs_on(left, state.rules.nproc_per_node):
            return False
        job.state, actions = adopt(State(state.rules), left, job.now, PATIENCE)
        self.open = job.state.formation
        job.take(actions)
        job.target(self.maximum)
        return True


BEHAVING = ["tick", "complete", "gone", "target", "broken", "killed", "notice", "stands", "taken back"]
BEHAVING += ["warm", "lost"] * 3


@pytest.mark.thorough
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(sizes=st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(1, 2)), steps=histories(BEHAVING, 15))
def test_coordinators_may_come_and_go_and_every_job_ends(
    sizes: tuple[int, int, int], steps: list[tuple[str, int, int]]
) -> None:
    minimum, more, nproc = sizes
    walk = Returning(minimum, minimum + more, nproc)
    walk.job.warm(*walk.job.state.nodes)
    walk.job.complete()
    for what, which, amount in steps:
        if walk.job.state.finished:
            return
        if what == "stands":
            walk.stand(amount)
        elif what != "lost":
            walk.apply(what, which, amount)
        elif not walk.lose():
            return
    walk.let_it_end()
    assert walk.job.finish is not None


def test_a_change_of_the_batch_is_recorded_once_whichever_coordinator_hears_of_it() -> None:
    """The one before may have been lost before it wrote down what it was told, or after."""
    changed = BatchChanged(((0, 8), (5, 16)), {5: (1.5, 1.25)}, 40.0, "noise")
    known = {1: member(SECOND, reports=(changed,)), 2: member(SECOND)}
    job = taken(leftovers(known))
    fields = {"step": 5, "old": 8, "new": 16, "gain": 1.5, "gains": [1.25], "noise_scale": 40.0, "reason": "noise"}
    assert job.events("batch_changed") == [fields]
    job.report(1, changed)
    assert job.events("batch_changed") == [fields]


def test_a_smaller_micro_batch_is_recorded_once_whichever_coordinator_hears_of_it() -> None:
    lowered = MicroBatchLowered(5, "T4", 8, 4)
    job = taken(leftovers({1: member(SECOND, reports=(lowered,)), 2: member(SECOND)}))
    fields = {"node": 1, "member": 1, "step": 5, "device": "T4", "old": 8, "new": 4}
    assert job.events("micro_batch_lowered") == [fields]
    job.report(1, lowered)
    assert job.events("micro_batch_lowered") == [fields]
    assert job.state.micro_batches.limits == {"T4": 4}


def test_a_job_in_a_later_phase_goes_on_there_with_what_sums_came_to() -> None:
    """One rank has begun the next `job.epochs`, the other is about to; who joins begins where the first one is."""
    first = member(SECOND, 40, phase=1, sums={"0.end.1": 3}, reports=(PhaseStarted(1, 40, {"0.end.1": 3}),))
    job = taken(leftovers({1: structs.replace(first, epoch=0), 2: member(SECOND, 40, reports=(Done(40, 960),))}))
    state = job.state
    assert (state.phase, state.epoch, state.sums, state.over) == (1, 0, {"0.end.1": 3}, False)


def test_what_is_said_of_a_phase_before_the_present_one_is_no_end() -> None:
    second = member(SECOND, 40, phase=1, sums={"0.end.1": 3})
    job = taken(leftovers({1: second, 2: second}))
    job.report(1, PhaseStarted(1, 40, {}))
    job.report(1, Done(40, 960))
    assert job.state.sums == {"0.end.1": 3} and not job.state.over


def test_who_waits_for_admission_does_not_take_the_job_back_to_the_checkpoint() -> None:
    """Whoever trains may be too busy to say where it is; the joiner was told that by the coordinator before."""
    waits = Introduction(1003, epoch=3, reports=(WARM,), phase=1, sums={"0.end.1": 3})
    job = taken(leftovers({3: waits}, nodes=(1, 2, 3)))
    assert (job.state.phase, job.state.epoch, job.state.sums) == (1, 3, {"0.end.1": 3})


WAIT = EarlierWait("node 1 must leave (notice) and 0 of at least 2 nodes would stay", 600.0, "notice")


def waiting_for_nodes(introductions: dict[int, Introduction], wait: EarlierWait = WAIT) -> Job:
    """Returns a job that is taken over while it waits for its two nodes; 2 and 3 were asked for, and 2 has come."""
    left = Leftovers([2], introductions, {}, Record(step=40), Numbers(4, 4, 2))
    job = Job(2, waits=wait, node_timeout=1800.0)
    first = replace(job.state, phase=1, epoch=3, sums={"0.end.1": 7}, samples=960)
    job.state, actions = adopt(first, left, job.now, PATIENCE)
    job.take(actions)
    return job


def test_a_job_that_waits_for_nodes_waits_for_the_rest_of_that_time() -> None:
    job = waiting_for_nodes({})
    assert phase(job.state) == "waiting for nodes"
    (told,) = job.events("nodes_wait")
    assert told["message"] == f"waiting for nodes, up to 1200 s (--node-timeout): {WAIT.message}"
    assert (told["step"], told["cause"], told["waited"]) == (40, "notice", 600.0)
    job.tick()
    assert [one.node for one in job.started] == [4], "its minimum is asked for, whatever had come of it"
    job.feed(NodeStands(job.now, 4, "0/2 nodes are available"))
    job.tick(1199.0)
    assert job.finish is None
    job.tick(2.0)
    assert job.finish is not None and job.finish.exit_code == 75
    assert job.finish.message.startswith(f"too few nodes within the 1800 s of --node-timeout: {WAIT.message}")


def test_a_job_that_waited_all_of_the_time_waits_as_long_as_nodes_may_take_to_come_up() -> None:
    job = waiting_for_nodes({}, replace(WAIT, seconds=5000.0))
    job.tick()
    assert job.finish is None and [one.node for one in job.started] == [4]
    job.feed(NodeStands(job.now, 4, "0/2 nodes are available"))
    job.tick(job.state.rules.start_timeout - 1.0)
    assert job.finish is None
    job.tick(2.0)
    assert job.finish is not None and job.finish.exit_code == 75


def test_who_comes_begins_where_the_checkpoint_is_and_tells_what_took_the_nodes_before() -> None:
    job = waiting_for_nodes({2: member(None, 0)})
    state = job.state
    assert (state.step, state.phase, state.epoch, state.sums, state.samples) == (40, 1, 3, {"0.end.1": 7}, 960)
    job.tick(10.0)
    job.warm(4)
    formation = job.state.formation
    assert formation is not None and formation.members == (2, 4)
    before = job.state
    job.complete(40)
    assert job.state.pause is None and phase(job.state) == "training"
    _, told = record_restart_cause(before, job.state, tuple(job.actions), job.now)
    (formed,) = [one.fields for one in told if isinstance(one, Emit) and one.kind == "generation_formed"]
    assert (formed["cause"], formed["pause_seconds"]) == ("notice", 610.0)


def test_a_machine_that_lacks_something_ends_no_job_that_waits_for_nodes() -> None:
    job = waiting_for_nodes({})
    job.feed(NodeUnfit(job.now, 2, "there is no work directory"))
    assert job.finish is None


def test_hints_below_the_minimum_end_a_job_that_waits_for_nodes_as_one_that_has_trained() -> None:
    job = waiting_for_nodes({})
    job.target(1, message="the hint allows 1 GPU")
    assert job.finish is not None and job.finish.exit_code == 75


def test_a_job_that_trains_is_not_held_up_by_what_it_was_about_to_wait_for() -> None:
    job = Job(1, waits=WAIT, node_timeout=1800.0)
    left = leftovers({1: member(SECOND), 2: member(SECOND)})
    job.state, actions = adopt(job.state, left, job.now, PATIENCE)
    assert actions == () and phase(job.state) == "training"


def test_a_job_whose_last_holders_died_meanwhile_may_restart_from_what_is_saved() -> None:
    exits = {(1, 0): Exit(signal=9), (2, 0): Exit(signal=9)}
    left = leftovers({1: member(SECOND), 2: member(SECOND)}, exits=exits)
    saved = Saved(35, "/c", 10, 0.0, 0.0)
    state, actions = restart_if_curable(*adopt(State(Job(1).state.rules, saved=saved), left, 100.0, PATIENCE), 100.0)
    assert any(isinstance(action, RestartAll) for action in actions) and state.restart is not None
    (warning,) = [one for one in actions if isinstance(one, Emit) and one.kind == "warning"]
    assert str(warning.fields["message"]).endswith("all nodes restart from step 35")
