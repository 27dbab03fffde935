"""Hints and admission agree: whatever else a Kueue in memory has to admit, it admits each node that was hinted."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.projects_document import parse_projects
from elastic_launcher.quota.queues import with_queues
from elastic_launcher.quota.rounds.ledger import Ledger
from elastic_launcher.quota.rounds.round import decide
from elastic_launcher.quota.rounds.world import World
from elastic_launcher.quota.sources.enforcer import Following, with_words
from elastic_launcher.quota.sources.kueue.objects import cluster_queue_of, local_queue_of, workload_of
from elastic_launcher.quota.sources.kueue.source import Kept, KueueSource
from elastic_launcher.quota.sources.kueue.tree import FlavorTree, Quota
from tests.support.kueue_objects import cluster_queue, local_queue, workload
from tests.support.quota_jobs import job

DOCUMENT = parse_projects("{apiVersion: elastic-quota/v1, unmatched: refuse, capacity: {machines: {}, kueue: {}}}")
ROUNDS = 9
"""More than the changes of three jobs that give way to each other one after another."""
QUEUES = ("a", "b", "c")


@dataclass
class Work:
    """A Workload of one Job.

    Attributes:
        name: The Job's name.
        queue: Its queue, which is its namespace too.
        gpus: What it asks for.
        job: The elastic job that it is a node of; "" for none.
        since: When it was admitted, in steps; None while it waits.
    """

    name: str
    queue: str
    gpus: int
    job: str = ""
    since: int | None = None


@dataclass
class Scene:
    """A Kueue in memory, with elastic jobs that follow their hints at once.

    Attributes:
        quotas: The quota of each queue; all are in one cohort.
        reclaims: The queues that take back what they have lent.
        jobs: The most nodes of each elastic job, by its queue.
        works: All Workloads, in the order in which they are looked at.
    """

    quotas: dict[str, Quota]
    reclaims: frozenset[str]
    jobs: dict[str, int]
    works: list[Work]
    steps: int = 0
    made: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    generation: int = 0

    def available(self, queue: str) -> int:
        usage = {name: self.used(name) for name in self.quotas}
        return FlavorTree({**dict.fromkeys(self.quotas, "all"), "all": None}, self.quotas, usage).available(queue)

    def used(self, queue: str) -> int:
        return sum(one.gpus for one in self.works if one.queue == queue and one.since is not None)

    def admit(self) -> None:
        """Admits all that can be, with what is taken back for it."""
        for one in [one for one in self.works if one.since is None]:
            self.steps += 1
            if self.available(one.queue) >= one.gpus or self._take_back(one):
                one.since = self.steps

    def _take_back(self, one: Work) -> bool:
        within = self.used(one.queue) + one.gpus <= self.quotas[one.queue].nominal
        before = {id(work): work.since for work in self.works}
        while within and one.queue in self.reclaims and self.available(one.queue) < one.gpus:
            borrowing = {name for name, quota in self.quotas.items() if self.used(name) > quota.nominal}
            victims = [(work.since, work) for work in self.works if work.since and work.queue in borrowing]
            if not victims:
                break
            max(victims, key=lambda row: row[0])[1].since = None
        if within and self.available(one.queue) >= one.gpus:
            return True
        for work in self.works:
            work.since = before[id(work)]
        return False

    def follow(self, allowed: dict[str, int]) -> None:
        """Has jobs make or end nodes as their hints say, those that wait first."""
        for queue in self.jobs:
            own = sorted((one for one in self.works if one.job == queue), key=lambda one: one.since or 10**9)
            for one in own[allowed[queue] :]:
                self.works.remove(one)
            for _ in range(allowed[queue] - len(own)):
                self.made += 1
                self.works.append(Work(f"{queue}-{self.made}", queue, 1, queue))

    def round(self, source: KueueSource, projects: Projects) -> dict[str, int]:
        """Makes a round; returns what each job is allowed."""
        shown = [workload(one.queue, one.name, "gpus", one.gpus, one.queue if one.since else "") for one in self.works]
        source.watched[3].objects = {one["metadata"]["uid"]: Kept(workload_of(one)) for one in shown}
        self.generation += 1
        jobs = [
            replace(
                job(queue, most=most, held=sum(one.job == queue for one in self.works)),
                match={"id": queue, "namespace": queue, "queue": "gpus"},
                following=self.ledger.accounts[queue].allowed if queue in self.ledger.accounts else None,
                following_generation=self.ledger.generation,
                reported_at=self.generation * 100.0,
            )
            for queue, most in self.jobs.items()
        ]
        world = with_words(World(100, tuple(jobs)), projects, [source.word(projects, jobs, ())])
        self.ledger = decide(world, projects, self.ledger, self.generation * 100.0).ledger
        return {name: account.allowed for name, account in self.ledger.accounts.items()}


limits = st.none() | st.integers(0, 3)
quotas = st.builds(Quota, st.integers(0, 4), limits, limits)
rigid = st.builds(Work, st.just(""), st.sampled_from(QUEUES), st.integers(1, 3))


def _owning(*nominal: int) -> dict[str, Quota]:
    return {name: Quota(gpus) for name, gpus in zip(QUEUES, nominal, strict=True)}


@settings(deadline=None, max_examples=30)
@given(
    st.fixed_dictionaries(dict.fromkeys(QUEUES, quotas)),
    st.frozensets(st.sampled_from(QUEUES)),
    st.dictionaries(st.sampled_from(QUEUES), st.integers(1, 6), min_size=1),
    st.lists(rigid, max_size=4),
)
@example(_owning(0, 0, 2), frozenset("ab"), {"a": 1, "b": 1}, [Work("", "a", 1)])
@example(_owning(0, 1, 1), frozenset("ab"), {"a": 1, "b": 1, "c": 1}, [Work("", "a", 1)])
@example(_owning(0, 2, 1), frozenset("ab"), {"a": 1, "b": 2, "c": 1}, [Work("", "a", 1), Work("", "a", 1)])
@example(_owning(0, 1, 1), frozenset("b"), {"a": 1, "b": 1}, [Work("", "a", 1), Work("", "a", 1), Work("", "c", 1)])
@example({**_owning(0, 1, 0), "a": Quota(1, None, 0)}, frozenset(), {"b": 1, "c": 1}, [])
@example({**_owning(1, 0, 0), "b": Quota(1, None, 0)}, frozenset("a"), {"a": 1}, [Work("", "c", 1)])
@example({**_owning(0, 0, 1), "b": Quota(2, None, 0)}, frozenset("c"), {"a": 1, "b": 1, "c": 1}, [Work("", "a", 1)])
def test_in_the_end_all_hinted_nodes_are_admitted_and_hints_stay(
    quotas: dict[str, Quota], reclaims: frozenset[str], jobs: dict[str, int], others: list[Work]
) -> None:
    works = [replace(one, name=f"rigid-{number}-x") for number, one in enumerate(others)]
    scene = Scene(quotas, reclaims, jobs, works)
    source = KueueSource(Following((), threading.Lock(), lambda: None))
    shown = [
        cluster_queue(
            name,
            quota.nominal,
            "all",
            reclaim="Any" if name in reclaims else "Never",
            **{
                key: value
                for key, value in (("borrowingLimit", quota.borrowing), ("lendingLimit", quota.lending))
                if value is not None
            },
        )
        for name, quota in quotas.items()
    ]
    source.watched[0].objects = {one["metadata"]["name"]: Kept(cluster_queue_of(one)) for one in shown}
    source.watched[2].objects = {name: Kept(local_queue_of(local_queue(name, "gpus", name))) for name in QUEUES}
    projects = with_queues(DOCUMENT, source.queues(DOCUMENT))
    scene.admit()
    seen = []
    for _ in range(ROUNDS):
        allowed = scene.round(source, projects)
        scene.follow(allowed)
        scene.admit()
        seen.append((allowed, [one.name for one in scene.works if one.job and one.since is None]))
    assert seen[-1] == seen[-2] == seen[-3], "nothing flaps"
    assert seen[-1][1] == [], "no node waits"
    waiting = {one.queue for one in scene.works if one.since is None}
    for queue in reclaims & set(jobs) - waiting:
        others = sum(one.gpus for one in scene.works if one.queue == queue and not one.job)
        assert allowed[queue] >= min(jobs[queue], quotas[queue].nominal - others), "what a queue owns comes back"
