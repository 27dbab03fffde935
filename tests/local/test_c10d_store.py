"""The store in which groups meet."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from elastic_launcher.coordinator.runtime.store import Store


def test_what_groups_leave_there_goes_when_a_later_one_is_formed() -> None:
    torch = pytest.importorskip("torch")
    from elastic_launcher.torch.collectives.group import Group, build_group

    store = Store()
    asyncio.run(store.serve())
    groups: list[Group] = []

    def meet(formation: int, rank: int) -> None:
        groups.append(build_group(store.address, formation, rank, 2, 30.0, torch.device("cpu")))

    host, port = store.address.split(":")
    client = torch.distributed.TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    if not hasattr(client, "list_keys"):
        pytest.skip("this torch can't tell what a store holds")
    with contextlib.closing(store):
        client.set("of/the/script", "stays")
        held = []
        for formation in (9, 10, 11):
            members = [threading.Thread(target=meet, args=(formation, rank)) for rank in range(2)]
            for member in members:
                member.start()
            for member in members:
                member.join()
            store.forget_before(formation)
            held.append(client.num_keys())
        assert held[0] == held[1] == held[2] > 1
        assert client.get("of/the/script") == b"stays"
        assert all(key.startswith(("formation/11/", "of/")) for key in client.list_keys())
        for group in groups:
            group.close()


@pytest.mark.parametrize("lists", [True, False])
def test_a_job_that_restarts_finds_nothing_of_before(monkeypatch: pytest.MonkeyPatch, lists: bool) -> None:
    """torch 2.5 can't tell what a store holds; there another one takes its place, at the same address."""
    distributed = pytest.importorskip("torch.distributed")
    for kind in () if lists else distributed.TCPStore.__mro__:
        if "list_keys" in vars(kind):
            monkeypatch.delattr(kind, "list_keys")
    store = Store()
    asyncio.run(store.serve())
    host, port = store.address.split(":")

    def client() -> Any:
        return distributed.TCPStore(host, int(port), is_master=False, wait_for_workers=False)

    with contextlib.closing(store):
        client().set("of/the/script", "rank 0 is at port 4000")
        store.forget_all()
        assert not client().check(["of/the/script"])
        client().set("of/the/script", "rank 0 is at port 5000")
        assert client().get("of/the/script") == b"rank 0 is at port 5000"
