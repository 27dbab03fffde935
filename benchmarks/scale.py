"""What the coordinator costs as members grow in number: a start, a loss, and the long polls of a training.

Simulated members speak the real HTTP API, signed, to a real coordinator in a process of its own; they train nothing.
The peer is torch's c10d rendezvous over its TCPStore: as many nodes meet in it, each in a thread, as one machine can
hold. Costs are CPU seconds of the coordinator's process (of the whole process for the peer), which other load on the
machine does not change much; the time until the last member knows is printed beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from benchmarks.common import SCRIPTS, finish, row, wait_for
from benchmarks.peer_torchrun import free_port
from elastic_launcher.control.auth import (
    COUNTER_HEADER,
    PROTOCOL_VERSION,
    SENDER_HEADER,
    SIGNATURE_HEADER,
    VERSION_HEADER,
    sign,
)
from elastic_launcher.control.vitals import Vitals
from tests.support.played_job import training

SIZES = (16, 64, 256, 1024, 4096)
LARGEST_PEER = 1024  # ranks whose nodes' threads one process bears
NPROC = 8  # ranks a node
POLL_SECONDS = 2.0  # as members ask (torch/membership/connection.py)
QUIET_SECONDS = 10.0  # over which the long polls of a training are measured
PATIENCE = 300.0


class Members:
    """All members of a job, played.

    Args:
        session: Connections.
        control: What the coordinator wrote for them.
        count: How many.
    """

    def __init__(self, session: aiohttp.ClientSession, control: dict[str, Any], count: int) -> None:
        self._session = session
        self._url, self._key, self._term = control["url"], bytes.fromhex(control["key"]), control["term"]
        self._counters = itertools.count(time.time_ns())
        self._reports = itertools.count(1)
        self._orders: dict[int, int] = {}
        self._step = 1
        self._current = 0
        self.alive = list(range(1, count + 1))
        self.formed: dict[int, tuple[int, ...]] = {}
        self._change = asyncio.Event()

    async def ask(self, method: str, path: str, sender: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
        """Returns the answer to a signed request."""
        body, counter = b"" if content is None else json.dumps(content).encode(), next(self._counters)
        headers = {
            VERSION_HEADER: str(PROTOCOL_VERSION),
            SENDER_HEADER: sender,
            COUNTER_HEADER: str(counter),
            SIGNATURE_HEADER: sign(self._key, method, path, body, sender, counter),
        }
        async with self._session.request(method, self._url + path, data=body, headers=headers) as response:
            return dict(await response.json())

    async def report(self, member: int, kind: str, **fields: Any) -> None:
        """Reports what happened to a member."""
        content = {"term": self._term, "reports": [{"kind": kind, "n": next(self._reports), **fields}]}
        await self.ask("POST", f"/v1/members/{member}/reports", f"m{member}", content)

    async def join(self, member: int) -> None:
        """Has a member's process come up."""
        place = {"pid": 1000 + member, "node": (member - 1) // NPROC + 1, "local_rank": (member - 1) % NPROC}
        await self.ask("POST", f"/v1/members/{member}/join", f"m{member}", place)

    async def follow(self, member: int) -> None:
        """Follows a member's orders while it lives."""
        vitals = Vitals(waits=0.1, work=3, since=0.2, usual=0.3, own=0.2, per_sample=0.01, steps=40).to_query()
        while member in self.alive:
            after = self._orders.get(member, 0)
            query = f"after={after}&wait={POLL_SECONDS:g}&term={self._term}&{vitals}"
            answer = await self.ask("GET", f"/v1/members/{member}/orders?{query}", f"m{member}")
            for order in answer.get("orders", ()):
                self._orders[member] = order["seq"]
                await self._obey(member, order)

    async def _obey(self, member: int, order: dict[str, Any]) -> None:
        if order["kind"] == "form" and member in order["members"]:
            self.formed[member] = tuple(order["members"])
            self._change.set()
            await self.report(member, "formed", formation=order["formation"])
            at = {"step": self._step, "first_step": self._step, "epoch": 0, "pause_seconds": 0.01}
            await self.report(member, "active", formation=order["formation"], **at)
            self._current = order["formation"]
        elif order["kind"] == "abandon" and order["formation"] == self._current:
            await self.report(member, "step_failed", formation=self._current, step=self._step, error="a peer is gone")

    async def all_formed(self, members: Iterable[int]) -> None:
        """Waits until all of these members, and no others, were ordered to form a group."""
        wanted = tuple(members)
        async with asyncio.timeout(PATIENCE):
            while any(set(self.formed.get(member, ())) != set(wanted) for member in (wanted[0], wanted[-1])) or any(
                len(self.formed.get(member, ())) != len(wanted) for member in wanted
            ):
                self._change.clear()
                await self._change.wait()


async def play(count: int, folder: Path, process: psutil.Process) -> dict[str, tuple[float, float]]:
    """Returns what each event cost the coordinator, and how long it took, both in seconds."""
    control = json.loads((folder / "control.json").read_text())
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(PATIENCE)) as session:
        members, costs = Members(session, control, count), dict[str, tuple[float, float]]()

        async def measured(name: str, event: Callable[[], Awaitable[Any]]) -> None:
            began, used = time.monotonic(), sum(process.cpu_times()[:2])
            await event()
            costs[name] = sum(process.cpu_times()[:2]) - used, time.monotonic() - began

        async def lose_one() -> None:
            del members.alive[NPROC : 2 * NPROC]
            for place in range(NPROC):
                content = {"local_rank": place, "exit_code": None, "signal": 9}
                await members.ask("POST", "/v1/nodes/2/rank_ended", "n2", content)
            await members.all_formed(members.alive)

        async def start() -> None:
            await asyncio.gather(*(members.report(member, "warm", fingerprint={"dataset": 1}) for member in everyone))
            await members.all_formed(everyone)

        everyone = tuple(members.alive)
        await asyncio.gather(*map(members.join, everyone))
        async with asyncio.TaskGroup() as group:
            polls = [group.create_task(members.follow(member)) for member in everyone]
            await measured("start", start)
            await asyncio.sleep(1)
            await measured("quiet", lambda: asyncio.sleep(QUIET_SECONDS))
            await measured("loss", lose_one)
            await asyncio.sleep(1)
            for poll in polls:
                poll.cancel()
        return costs


def ours(count: int) -> dict[str, tuple[float, float]]:
    """Plays one job of so many members."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        script = [sys.executable, str(SCRIPTS / "scale_coordinator.py"), name, str(count // NPROC), str(NPROC)]
        with open(folder / "log", "wb") as log, subprocess.Popen(script, stdout=log, stderr=log) as process:
            try:
                wait_for("the coordinator", (folder / "control.json").exists)
                wait_for("its nodes", lambda: _started(folder) == count // NPROC)
                return asyncio.run(play(count, folder, psutil.Process(process.pid)))
            finally:
                process.kill()


def _started(folder: Path) -> int:
    return (folder / "events.jsonl").read_text().count('"node_started"')


def decisions(count: int) -> float:
    """Returns the CPU seconds of all decisions from a loss to the order of the new formation, without HTTP."""
    job = training(count)
    began = time.process_time()
    job.rank_ended(2, signal=9)
    job.break_step(job.state.survivors(), job.state.group_formation, 12)
    took = time.process_time() - began
    assert job.form.mode == "recover" and len(job.form.members) == count - 1
    return took


def peer(count: int) -> tuple[float, float] | None:
    """Has as many nodes meet in torch's rendezvous; returns CPU seconds and seconds; None if they are too many."""
    if count > LARGEST_PEER:
        return None
    command = [sys.executable, __file__, "--peer", str(count // NPROC)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used, took = json.loads(told.splitlines()[-1])
    return used, took


def meet(nodes: int) -> None:
    """Prints what one rendezvous of so many nodes costs."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    port, ranks = free_port(), list[int]()

    def handler(first: bool) -> Any:
        parameters = RendezvousParameters(
            "c10d", f"127.0.0.1:{port}", "bench", nodes, nodes, is_host=first, join_timeout=PATIENCE, read_timeout=60
        )
        backend, store = create_backend(parameters)
        return create_handler(store, backend, parameters)

    handlers = [handler(number == 0) for number in range(nodes)]
    threads = [threading.Thread(target=lambda one=one: ranks.append(one.next_rendezvous().rank)) for one in handlers]
    began, used = time.monotonic(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ranks) == list(range(nodes))
    print(json.dumps([time.process_time() - used, time.monotonic() - began]), flush=True)


def main() -> None:
    """Plays all sizes, ours and the peer in turn, and prints how each cost grows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help=f"members, in {NPROC}s")
    parser.add_argument("--peer", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.peer:
        meet(options.peer)
        return
    print(f"members in nodes of {NPROC}; CPU seconds of the coordinator (seconds until the last member knew)")
    rows = []
    for count in options.sizes:
        found = [(ours(count), peer(count)) for _ in range(options.runs)]
        decided = [decisions(count) for _ in range(options.runs)]
        rows.append(row("scale", decided, decided, "CPU seconds", members=count, of="decisions about a loss"))
        rows[-1]["peer"] = rows[-1]["ratio"] = None
        said = [f"decisions about a loss {rows[-1]['ours']:.3f}"]
        for name in ("start", "loss", "quiet"):
            costs = [mine[name] for mine, _ in found]
            theirs = [other for _, other in found if other is not None] if name == "start" else []
            cpu = [used / took if name == "quiet" else used for used, took in costs]
            one = row("scale", cpu, [used for used, _ in theirs] or cpu, _UNITS[name], members=count, of=name)
            if not theirs:
                one["peer"] = one["ratio"] = None
            rows.append(one)
            said.append(
                f"{name} {one['ours']:.1%} of a core"
                if name == "quiet"
                else f"{name} {one['ours']:.2f} ({max(took for _, took in costs):.2f} s)"
            )
            if theirs:
                said.append(f"torch's rendezvous {one['peer']:.2f} ({max(took for _, took in theirs):.2f} s)")
        print(f"{count:5} members: {', '.join(said)}", flush=True)
    finish(rows)


_UNITS = {
    "start": "CPU seconds (peer: c10d rendezvous)",
    "loss": "CPU seconds",
    "quiet": "cores",
}


if __name__ == "__main__":
    main()
