"""A Lease: one process leads at a time, and who leads knows when it has to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.kube.lease import LEAD_SECONDS, LEASE_SECONDS, Held, Lease, held_of
from tests.support.fake_cluster import FakeCluster

Steps = Callable[[FakeCluster, Callable[[str], Lease], "Clock"], Awaitable[None]]


@dataclass
class Clock:
    """Monotonic seconds that a test sets."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def play(steps: Steps) -> None:
    """Runs the steps of a test, which get a cluster, what makes a process's Lease of it, and their clock."""

    async def run() -> None:
        cluster, clock = FakeCluster(), Clock()
        async with cluster.serve() as login, Api(login) as api:
            await steps(cluster, lambda name: Lease(api, "quota", "hints-controller", name, clock), clock)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("holder", "unchanged", "free"),
    [("", 0.0, True), ("own", 0.0, True), ("other", 15.0, False), ("other", 15.1, True)],
)
def test_a_lease_is_free_without_a_holder_for_its_holder_and_after_its_time(
    holder: str, unchanged: float, free: bool
) -> None:
    assert Held("1", holder, 15.0, 0).is_free("own", unchanged) is free


def test_a_lease_that_says_nothing_is_free() -> None:
    assert held_of({"metadata": {"resourceVersion": "7"}}) == Held("7", "", 0.0, 0)


def test_the_first_one_leads_and_the_others_wait_until_it_is_silent_for_long() -> None:
    async def steps(cluster: FakeCluster, lease: Callable[[str], Lease], clock: Clock) -> None:
        first, second = lease("first"), lease("second")
        await first.try_once()
        await second.try_once()
        assert (first.leads, second.leads, second.holder) == (True, False, "first")
        clock.now += LEAD_SECONDS
        assert not first.leads, "it could not renew its Lease"
        clock.now += LEASE_SECONDS - LEAD_SECONDS
        await second.try_once()
        assert not second.leads
        clock.now += 0.1
        await second.try_once()
        assert second.leads
        await first.try_once()
        assert not first.leads and first.holder == "second"
        found = cluster.get("leases", "hints-controller", "quota")
        assert found is not None and found["spec"]["leaseTransitions"] == 1

    play(steps)


def test_a_leader_that_renews_goes_on_leading() -> None:
    async def steps(_: FakeCluster, lease: Callable[[str], Lease], clock: Clock) -> None:
        first, second = lease("first"), lease("second")
        for _ in range(20):
            await first.try_once()
            await second.try_once()
            assert first.leads and not second.leads
            clock.now += LEAD_SECONDS / 2

    play(steps)


def test_a_lease_that_is_given_back_is_taken_at_once() -> None:
    async def steps(_: FakeCluster, lease: Callable[[str], Lease], clock: Clock) -> None:
        first, second = lease("first"), lease("second")
        await first.try_once()
        await second.try_once()
        await second.release()
        assert first.leads, "who does not have it gives nothing back"
        await first.release()
        await second.try_once()
        assert second.leads and not first.leads

    play(steps)


def test_of_two_that_come_at_once_one_leads() -> None:
    async def steps(_: FakeCluster, lease: Callable[[str], Lease], clock: Clock) -> None:
        several = [lease(f"process-{number}") for number in range(4)]
        for _ in range(2):
            await asyncio.gather(*(one.try_once() for one in several))
            assert sum(one.leads for one in several) == 1

    play(steps)


def test_a_leader_stops_while_the_api_server_is_away_and_leads_again_afterwards() -> None:
    async def steps(cluster: FakeCluster, lease: Callable[[str], Lease], clock: Clock) -> None:
        only = lease("only")
        await only.try_once()
        cluster.down = True
        clock.now += LEAD_SECONDS
        with pytest.raises(ApiError):
            await only.try_once()
        assert not only.leads
        cluster.down = False
        await only.try_once()
        assert only.leads

    play(steps)


def test_whoever_keeps_a_lease_hears_of_each_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.kube.lease.RENEW_SECONDS", 0.01)

    async def steps(cluster: FakeCluster, lease: Callable[[str], Lease], clock: Clock) -> None:
        other, own = lease("other"), lease("own")
        await other.try_once()
        heard: asyncio.Queue[tuple[bool, str]] = asyncio.Queue()
        keeping = asyncio.create_task(own.keep(lambda: heard.put_nowait((own.leads, own.holder))))
        try:
            assert await heard.get() == (False, "other")
            await other.release()
            assert await heard.get() == (True, "own")
        finally:
            keeping.cancel()

    play(steps)
