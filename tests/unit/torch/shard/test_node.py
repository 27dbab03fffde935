"""The ranks of a node go from one thing to the next together: what breaks, or comes, on one of them counts for all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import TCPStore
from torch.utils.data import TensorDataset

from elastic_launcher.torch.collectives.group import Group
from elastic_launcher.torch.collectives.work import GroupError
from elastic_launcher.torch.job import Job
from elastic_launcher.torch.membership.formations import Formations
from elastic_launcher.torch.membership.membership import Formation
from elastic_launcher.torch.membership.reconcile import At
from elastic_launcher.torch.reconfigure.recovery import Recovery
from elastic_launcher.torch.reconfigure.resize import Resizer
from elastic_launcher.torch.shard.node import NodeShards, init_node_group
from tests.support.thread_group import Exchange, ThreadGroup, run_ranks, thread_job

RANKS = 2


def node_of(group: Any) -> NodeShards:
    def lost(reason: str) -> None:
        raise AssertionError(reason)

    return NodeShards(group, lost)


def formation(number: int) -> Formation:
    return Formation(number, number, "recover", (1, 2), group=Group(f"formation {number}", 0, 1))


def test_what_breaks_on_one_rank_breaks_on_all() -> None:
    def play(group: ThreadGroup) -> str:
        node = node_of(group)
        cuts: list[int] = []
        with node.agreed(lambda: cuts.append(0)):
            pass
        try:
            with node.agreed(lambda: cuts.append(1)):
                if group.rank == 1:
                    raise GroupError("a peer was lost")
        except GroupError as error:
            return f"{error} {cuts}"  # what the other ranks of the node may wait in is cut before they are waited for
        return "went on"

    assert run_ranks(RANKS, play) == ["another rank of this node has lost a peer []", "a peer was lost [1]"]


def test_the_latest_of_the_ranks_numbers_is_known_to_all() -> None:
    def play(group: ThreadGroup) -> list[Any]:
        node = node_of(group)
        return [node.latest(5 + group.rank), node.latest(7), node.any(group.rank == 1), node.any(False)]

    assert run_ranks(RANKS, play) == [[(6, False), (7, True), True, False]] * RANKS


class Seen:
    """Formations that a rank sees one after the other."""

    def __init__(self, *numbers: int) -> None:
        self.coming = [formation(number) for number in numbers]
        self.given_up: list[int] = []
        self.taken: list[int] = []

    def wait_for(self, wanted: Any, prepare: Any = lambda formation: None, *, takes: bool = True) -> Formation:
        while not wanted(found := self.coming.pop(0)):
            pass
        if takes:
            self.take(found.number)
        return found

    def take(self, number: int) -> None:
        self.taken.append(number)

    def give_up(self, one: Formation, error: object) -> None:
        self.given_up.append(one.number)

    def check_over(self) -> None:
        """It is not."""


def session_of(group: ThreadGroup, formations: Seen) -> Any:
    node = node_of(group)
    member = SimpleNamespace(number=1, formations=formations, reports=SimpleNamespace(put=lambda report: None))
    return SimpleNamespace(
        shards=node,
        member=member,
        need_member=lambda: member,
        agreed=lambda group=None: node.agreed(lambda: None),
        any_on_node=node.any,
        membership=None,
    )


def test_ranks_that_see_different_formations_take_the_same_one() -> None:
    def play(group: ThreadGroup) -> tuple[int, list[int], list[bool]]:
        seen = [Seen(5, 6, 7), Seen(7)][group.rank]
        all_of_them = list(seen.coming)
        found = Resizer(session_of(group, seen)).wait_for_formation(lambda one: True)
        return found.number, seen.taken, [one.group.is_cut for one in all_of_them if one.group is not None]

    assert run_ranks(RANKS, play) == [(7, [7], [True, False, False]), (7, [7], [False])]


class Entering(Resizer):
    """Enters formations, of which the first breaks on the second rank of the node."""

    def __init__(self, session: Any, rank: int) -> None:
        super().__init__(session)
        self._rank = rank
        self.dropped_after: list[list[int]] = []

    def enter(self, formation: Formation, number: int | None = None) -> None:
        if formation.number == 1 and self._rank == 1:
            raise GroupError("a peer was lost")
        self._session.membership = "of this rank"  # type: ignore[assignment]

    def drop(self) -> bool:
        self.dropped_after.append(list(self._session.need_member().formations.given_up))  # type: ignore[attr-defined]
        return super().drop()


def test_a_rank_is_admitted_only_with_all_of_its_node() -> None:
    def play(group: ThreadGroup) -> tuple[bool, list[int], list[list[int]]]:
        seen = Seen(1, 2)
        resizer = Entering(session_of(group, seen), group.rank)
        resizer.join_point = SimpleNamespace(wait=lambda there: 0)  # type: ignore[assignment]
        for one in seen.coming:
            object.__setattr__(one, "members", (1, 2))
        return resizer.admit({}), seen.given_up, resizer.dropped_after

    assert run_ranks(RANKS, play) == [(True, [1], [[1]]), (True, [1], [])]  # the group is cut before it is dropped


def job_of_node(group: ThreadGroup, nodes: Exchange) -> tuple[Job, nn.Module, torch.optim.Optimizer]:
    """Returns a job whose ranks are those of one node, with a small model."""
    nodes.turn = group._exchange.turn
    job = thread_job(group, 4, 2)
    model = nn.Linear(1, 1)
    model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    job._session.shards = node_of(ThreadGroup(nodes, group.rank))
    return job, model, optimizer


def test_a_step_that_breaks_when_it_is_accepted_breaks_on_all_ranks_of_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = Exchange(RANKS)

    def play(group: ThreadGroup) -> str:
        job, model, optimizer = job_of_node(group, nodes)

        def give_up(*_: Any) -> None:
            raise GroupError("formation 3 was given up")

        def recover(error: Exception, at: At) -> Any:
            raise error

        monkeypatch.setattr(job._engine.recovery, "recover", recover)
        if group.rank == 1:
            monkeypatch.setattr(job._engine._backward, "_check_agreement", give_up)
        try:
            for x in job.dataloader(TensorDataset(torch.ones(4, 1))):
                job.backward(model(x[0]).mean())
                optimizer.step()
        except GroupError as error:
            return str(error)
        return "went on"

    assert run_ranks(RANKS, play) == ["another rank of this node has lost a peer", "formation 3 was given up"]


def test_a_step_that_breaks_on_one_rank_has_nothing_saved_on_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ranks would ask each other different numbers of times from then on."""
    nodes = Exchange(RANKS)
    agreed: list[int] = []

    def play(group: ThreadGroup) -> None:
        job, model, optimizer = job_of_node(group, nodes)
        job._session.checkpoints = SimpleNamespace(  # type: ignore[assignment]
            note_data=lambda data: None,
            doubt=str,
            wishes=lambda: (True, False),
            agree=lambda agreement: agreed.append(group.rank),
        )

        def finish_sending() -> None:
            if group.rank == 1:
                raise GroupError("a peer was lost")

        def recover(error: Exception, at: At) -> Any:
            raise error

        monkeypatch.setattr(job._engine.recovery, "recover", recover)
        monkeypatch.setattr(job._engine._backward._resizer, "finish_sending", finish_sending)
        with pytest.raises(GroupError, match="lost"):
            for x in job.dataloader(TensorDataset(torch.ones(4, 1))):
                job.backward(model(x[0]).mean())
                optimizer.step()

    run_ranks(RANKS, play)
    assert agreed == []


def test_a_loss_that_does_not_count_is_refused_where_it_would_spoil_the_gradient_of_the_node() -> None:
    def play(group: ThreadGroup) -> None:
        job = thread_job(group, 4, 2)
        model = nn.Linear(1, 1)
        model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        job._session.shards = node_of(group)
        for x in job.dataloader(TensorDataset(torch.ones(4, 1))):
            job.backward(model(x[0]).sum() * float("nan"), weight=0)
            optimizer.step()

    with pytest.raises(ValueError, match="Divide by at least 1"):
        run_ranks(1, play)


def test_a_stop_is_not_agreed_on_before_the_node_is_admitted() -> None:
    def play(group: ThreadGroup) -> list[bool]:
        job = thread_job(group, 4, 2)
        session = job._session
        session.shards = node_of(group)
        membership, session.membership = session.membership, None
        before = session.wants_stop() if group.rank == 0 else False  # the other rank is on its way to another epoch
        session.membership = membership
        if group.rank == 1:
            job.stop()
        return [before, session.wants_stop()]

    assert run_ranks(RANKS, play) == [[False, True]] * RANKS


def test_a_node_whose_step_is_to_be_dropped_is_saved_by_all_of_its_ranks() -> None:
    class Halts(Exception):
        pass

    def halt(*, whole: bool) -> None:
        raise Halts

    def play(group: ThreadGroup) -> None:
        session = session_of(group, Seen())
        session.member.orders = SimpleNamespace(drops_step=group.rank == 1)  # the other one's order is still to come
        session.checkpoints = SimpleNamespace(halt=halt)
        session.torn, session.position, session.micro = False, SimpleNamespace(calls=0), None
        session.need_membership = lambda what: SimpleNamespace(group=Group("broken", 0, 1))
        with pytest.raises(Halts):
            Recovery(session, Resizer(session), None).recover(GroupError("a peer was lost"), At.STEP)  # type: ignore[arg-type]

    run_ranks(RANKS, play)


def test_a_formation_of_a_part_of_a_node_fails() -> None:
    connection: Any = SimpleNamespace(rejoin_state=None, number=2)
    formations = Formations(connection, None, torch.device("cpu"))  # type: ignore[arg-type]
    formations.shards = RANKS
    order: Any = SimpleNamespace(members=(1, 2, 3), formation=4)
    with pytest.raises(GroupError, match="3 ranks are no whole nodes of 2"):
        formations._join(order)


def test_the_nodes_of_a_job_have_groups_of_their_own_in_its_one_store(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []

    def take(backend: str, *, store: Any, rank: int, world_size: int) -> None:
        store.set("key", f"of rank {rank}")
        made.append((backend, rank, world_size))

    job = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(torch.distributed, "init_process_group", take)
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job.port), "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for node in ("2", "3"):
        for name, value in (variables | {"ELASTIC_NODE": node, "RANK": "5", "WORLD_SIZE": "6"}).items():
            monkeypatch.setenv(name, value)
        init_node_group("gloo")
    assert made == [("gloo", 1, 2)] * 2
    assert [job.get(f"elastic-launcher/node/{node}/key") for node in (2, 3)] == [b"of rank 1"] * 2
    assert not job.check(["key"])


def test_the_plan_of_a_sharded_model_is_the_nodes() -> None:
    def play(group: ThreadGroup) -> list[tuple[int, ...]]:
        job = thread_job(group, 9, 2)
        job._session.shards = SimpleNamespace(size=2)  # type: ignore[assignment]
        return [one.micro_batches for one in job.plan.shares]

    found = run_ranks(4, play)[0]
    assert [len(one) for one in found] == [2, 2, 1, 1]  # both ranks of a node have as many
    assert sum(map(sum, found)) == 9
