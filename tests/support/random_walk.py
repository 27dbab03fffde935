"""Random histories of a job, fed to ``decide``."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from elastic_launcher.control.messages import (
    Abandon,
    Active,
    Done,
    Ended,
    Failed,
    Form,
    Formed,
    FormFailed,
    Halted,
    Left,
    StepFailed,
)
from elastic_launcher.coordinator.model.actions import Action, Emit, Finish, Order, StartNode
from elastic_launcher.coordinator.model.observations import (
    MemberStuck,
    NodeExited,
    NodeNoticed,
    NodeRegistered,
    NodeStands,
    NoticeExpires,
    ResumePointFound,
)
from elastic_launcher.coordinator.model.pause import Stage
from elastic_launcher.coordinator.model.roster import Phase
from elastic_launcher.coordinator.model.state import Formation, State
from elastic_launcher.coordinator.resume.resume_search import used_up
from elastic_launcher.workdir import Past
from tests.support.played_job import Job

CODES = {0, 1, 75, 76, 130}


def histories(things: list[str], least: int = 0) -> st.SearchStrategy[list[tuple[str, int, int]]]:
    one = st.tuples(st.sampled_from(things), st.integers(0, 7), st.integers(0, 40))
    return st.lists(one, min_size=least, max_size=80)


class Walk:
    """A job to which anything may happen, and the invariants that are checked after each thing."""

    def __init__(self, minimum: int, maximum: int, nproc: int, wait: float = 0.0) -> None:
        self.maximum = maximum
        self.within: int | None = None
        self.mode = ""  # of the last formation
        self.recovered = False  # whether the group is who stayed of another one
        self.open: Formation | None = None
        self.formation = self.node = self.member = self.generation = self.ordered = 0
        self.job = Job(minimum, nproc, watch=self.check, wait_for_quota=wait, node_timeout=wait)
        self.job.target(maximum, "start")

    def apply(self, what: str, which: int, amount: int) -> None:
        job, state = self.job, self.job.state
        nodes, members = list(state.nodes) or [0], list(state.members) or [0]
        node, member = nodes[which % len(nodes)], members[which % len(members)]
        formation = state.formation.number if state.formation else state.formations
        there = member in state.members and state.nodes[state.members[member].node].phase is not Phase.GONE
        alive = there and state.members[member].exit is None
        if what == "tick":
            job.tick(amount / 4)
        elif what == "lost quota":
            job.target(0, within=self.within)
        elif what == "target":
            least = 0 if amount == 0 else state.rules.min_nodes
            job.target(min(max(which, least), self.maximum), within=self.within)
        elif what == "within" and state.target is not None:
            self.within = which % (self.maximum + 1)
            job.target(state.target.nodes, within=self.within)
        elif what == "waits" and node:
            job.feed(NodeStands(job.now, node, "no machine has room" if amount % 3 else "", unplaced=amount % 3 > 0))
        elif what == "begun again" and state.pause is not None and state.pause.stage is Stage.LOOKING:
            self.begin_again()
        elif what == "notice" and node:
            job.notice(node)
        elif what == "taken back" and node and state.nodes[node].phase is not Phase.GONE:
            self.take_back(node, ["told", "gone", "both"][amount % 3])
        elif what == "registered" and node:
            job.feed(NodeRegistered(job.now, node, f"pod-{amount % 2}"))
        elif what == "expires":
            noticed = [one.number for one in state.nodes.values() if one.leave == "notice"]
            job.feed(NoticeExpires(job.now, tuple(noticed)))
        elif what == "stuck" and member:
            job.feed(MemberStuck(job.now, member, 60.0))
        elif what == "gone":
            for one in state.in_phase(Phase.ENDING):
                job.node_exited(one.number, -9)
        elif what == "complete" and state.formation is not None:
            job.complete(step=state.step)
        elif what == "broken":
            job.break_step(state.survivors(), formation, state.step)
        elif what == "agent" and node and state.nodes[node].phase is not Phase.GONE:
            job.node_exited(node, [-9, 0, 1][amount % 3])
        elif alive and what == "warm":
            job.warm(state.members[member].node)
        elif alive and what == "killed":
            job.rank_ended(member, signal=9)
        elif alive and what == "exit":
            job.rank_ended(member, amount % 2)
        elif alive:
            reports = {
                "formed": Formed(formation),
                "active": Active(formation, state.step, state.step + 1),
                "left": Left(state.step),
                "form_failed": FormFailed(formation, "time-out"),
                "step_failed": StepFailed(formation, state.step, "reset"),
                "failed": Failed("ValueError: boom"),
                "done": Done(state.step),
                "ended": Ended(state.step, amount % 2 == 0),
                "halted": Halted(state.step),
            }
            if what in reports:
                job.report(member, reports[what])

    def take_back(self, node: int, heard: str) -> None:
        """Has a node's queue take it back."""
        job, pod = self.job, self.job.state.nodes[node].pod
        if heard != "gone":
            job.feed(NodeNoticed(job.now, node, "its Job is suspended", 30.0, again=True, pod=pod))
        if heard != "told":
            job.feed(NodeExited(job.now, node, None, taken=True, again="its Job is suspended", pod=pod))

    def begin_again(self) -> None:
        state = self.job.state
        past = used_up(state, Past())
        assert past.generations >= self.ordered, "who is cut off may have completed what was ordered"
        self.generation = past.generations
        before = {"first_node": past.first_node, "first_member": past.first_member}
        rules = replace(state.rules, generations_before=past.generations, **before)
        self.job.feed(ResumePointFound(self.job.now, State(rules)))

    def check(self, job: Job, actions: tuple[Action, ...]) -> None:
        state = job.state
        for action in actions:
            if isinstance(action, StartNode):
                assert action.node == self.node + 1
                assert action.first_member == self.member + 1
                self.node, self.member = action.node, self.member + action.nproc_per_node
                self.check_kind(state, action)
            elif isinstance(action, Emit) and action.kind == "node_requeued":
                own = action.fields["members"]
                assert own == list(range(self.member + 1, self.member + 1 + state.rules.nproc_per_node))
                self.member += state.rules.nproc_per_node
            elif isinstance(action, Order) and isinstance(action.order, Form):
                assert set(action.members) == {*action.order.members, *action.order.leavers}
                self.check_form(state, action.order)
            elif isinstance(action, Order) and isinstance(action.order, Abandon):
                assert action.order.formation in (self.formation, state.group_formation)
                if action.order.formation == self.formation:
                    self.open = None
            elif isinstance(action, Emit) and action.kind == "generation_formed":
                assert action.generation == self.generation + 1
                assert action.fields["formation"] == self.formation
                self.generation, self.open, self.recovered = action.generation, None, self.mode == "recover"
            elif isinstance(action, Finish):
                assert action.exit_code in CODES
        self.check_state(state)

    def check_kind(self, state: State, started: StartNode) -> None:
        assert state.nodes[started.node].over_quota is started.over_quota
        there = [one for one in state.nodes.values() if one.phase is not Phase.GONE and not one.over_quota]
        within = None if state.target is None else state.target.within
        if within is None:
            assert not started.over_quota
        elif started.over_quota:
            assert len(there) >= within, "above the guarantee, while nodes within it are missing"
        else:
            assert len(there) <= within, "more nodes than are guaranteed"

    def check_form(self, state: State, form: Form) -> None:
        assert self.open is None, "two formations at once"
        assert form.formation == self.formation + 1
        assert form.generation == self.generation + 1
        self.mode = form.mode
        self.formation, self.open, self.ordered = form.formation, state.formation, form.generation
        assert len(set(form.members)) == len(form.members) > 0
        assert not (form.leavers and form.joiners), "leaves and joins in one formation"
        assert not set(form.leavers) & set(form.members)
        assert set(form.sources) <= set(form.members)
        assert set(form.sources.values()) <= set(form.members) - set(form.joiners)
        nodes = state.nodes_of(form.members)
        whole = {member for node in nodes for member in state.nodes[node].members}
        done = {member for member in whole if state.members[member].ended}  # its script needs no more of the others
        assert whole - done <= {*form.members} <= whole
        for member in form.members:
            assert not state.members[member].left
            assert not state.superseded(member)
            assert state.nodes[state.members[member].node].phase in (Phase.WARM, Phase.ADMITTED)
            if member in form.joiners or form.mode == "start":
                assert state.members[member].exit is None, "a dead member is formed with"
                assert state.members[member].fingerprint is not None
        if form.mode != "recover" and not self.has_lost(state):
            assert len(nodes) >= state.rules.min_nodes

    def check_state(self, state: State) -> None:
        if state.finished:
            assert self.job.finish is not None
            return
        pause = state.pause
        if pause is not None and pause.released and not pause.asks:
            self.open = None  # who took part in it is killed
            assert not state.in_phase(Phase.ADMITTED, Phase.LEAVING)
            if pause.stage is Stage.WAITING:
                assert not state.in_phase(Phase.STARTING, Phase.WARM)
        assert state.rules.generations_before + state.generation == self.generation
        assert (state.formation is None) == (self.open is None)
        below = self.recovered or self.has_lost(state)  # until others take the place of who left within a step
        if state.generation and not state.over and state.verdict is None and not below:
            assert len(state.nodes_of(state.group)) >= state.rules.min_nodes
        starting = state.in_phase(Phase.STARTING, Phase.WARM, Phase.ADMITTED, Phase.LEAVING, Phase.ENDING)
        assert len(starting) <= self.maximum

    def has_lost(self, state: State) -> bool:
        return any(member.lost for member in state.members.values())  # after its notice, too

    def let_it_end(self) -> None:
        """From here on all behave: then the job ends."""
        for _ in range(200):
            job, state = self.job, self.job.state
            if state.finished:
                return
            for node in state.nodes.values():
                ended = [number for number in node.members if state.members[number].exit is not None]
                if node.phase in (Phase.ENDING, Phase.LEAVING) or (ended and node.phase is not Phase.GONE):
                    job.node_exited(node.number, -9 if node.phase is Phase.ENDING else 0)
                elif node.phase is Phase.STARTING and not state.over:
                    job.warm(node.number)
            if job.state.recovery is not None and job.state.formation is None:
                for member in job.state.survivors():
                    if member not in job.state.recovery.steps:
                        job.report(member, StepFailed(job.state.group_formation, job.state.step))
                        if job.state.recovery is None or job.state.finished:
                            break
            if job.state.formation is not None and (job.state.formation.active or not job.state.over):
                job.complete(job.state.step)
            job.tick(1.5)
            pause = job.state.pause
            if pause is not None and pause.stage is Stage.SAVING and job.state.survivors():
                job.report(job.state.survivors()[0], Halted(job.state.step))
            elif pause is not None and pause.stage is Stage.LOOKING:
                self.begin_again()
            elif pause is not None and pause.stage is Stage.WAITING:
                job.target(self.maximum)
            if job.state.over or (job.state.group and job.state.formation is None and job.state.recovery is None):
                for member in job.state.survivors():
                    if job.state.members[member].exit is None:
                        job.report(member, Done(job.state.step))
                        job.report(member, Ended(job.state.step, True))
                        job.rank_ended(member, 0)
        raise AssertionError(f"the job does not end: {self.job.state}")
