"""Members and nodes that only play training: threads with real control clients, in place of processes with torch."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

from elastic_launcher.control import ControlClient, ControlRefused, ControlUnreachable
from elastic_launcher.engines import NodeExit, NodeSpec

PATIENCE = 20.0


class Play:
    """What the played members do, by the test's word.

    Attributes:
        finish: Set when the training loop is to end on all members.
        asked: Set when one of them was asked for a checkpoint.
        behaviour: What a member does instead of joining: ``fail`` or ``exit``.
        fingerprints: Fingerprints by member, where it is not the usual one.
    """

    def __init__(self) -> None:
        self.finish = threading.Event()
        self.asked = threading.Event()
        self.behaviour: dict[int, str] = {}
        self.fingerprints: dict[int, dict[str, Any]] = {}
        self.step = 0

    def exit_code(self, engine: PlayedEngine, spec: NodeSpec, local_rank: int, killed: threading.Event) -> int | None:
        """Plays a member; returns its exit code, None if it was killed."""
        member = spec.first_member + local_rank
        log = engine.work_dir / "logs" / f"{spec.node}-{local_rank}.log"
        log.write_text("".join(f"line {number}\n" for number in range(30)))
        if self.behaviour.get(member) == "exit":
            return 3
        with ControlClient(str(engine.work_dir / "control.json"), f"m{member}") as client:
            try:
                return self._train(client, member, spec, killed)
            except (ControlUnreachable, ControlRefused):
                return 75

    def _train(self, client: ControlClient, member: int, spec: NodeSpec, killed: threading.Event) -> int | None:
        base = f"/v1/members/{member}"

        numbers = itertools.count(1)

        def report(kind: str, **fields: Any) -> None:
            client.post(f"{base}/reports", {"reports": [{"kind": kind, "n": next(numbers), **fields}]})

        client.post(f"{base}/join", {"pid": 1000 + member, "node": spec.node, "local_rank": 0, "version": ""})
        if self.behaviour.get(member) == "fail":
            report(
                "failed", message="ValueError: boom", traceback="Traceback (most recent call last):\nValueError: boom"
            )
            return 1
        report("warm", fingerprint=self.fingerprints.get(member, {"dataset": "9 samples"}))
        seq, active = 0, False
        while not killed.is_set():
            if active and self.finish.is_set():
                report("done", step=self.step, samples=64 * self.step)
                report("ended", step=self.step, done=True)
                return 0
            for order in client.get(f"{base}/orders?after={seq}&wait=0.05")["orders"]:
                seq = order["seq"]
                if order["kind"] in ("end", "fail"):
                    return 0 if order["kind"] == "end" else 1
                if order["kind"] == "save":
                    self.asked.set()
                if order["kind"] == "save" and order["halt"]:
                    report("halted", step=self.step)
                if order["kind"] == "form" and member in order["leavers"]:
                    report("left", step=self.step)
                    return 0
                if order["kind"] == "form":
                    self.step += 1
                    report("formed", formation=order["formation"])
                    step = {"step": self.step, "first_step": self.step, "epoch": 0}
                    report("active", formation=order["formation"], pause_seconds=0.01, **step)
                    active = True
                    if member == order["members"][0]:
                        report("progress", step=self.step, epoch=0, loss=0.5, samples_per_second=100.0)
        return None


class PlayedEngine:
    """An engine whose nodes are threads."""

    def __init__(self, work_dir: Path, play: Play) -> None:
        self.work_dir = work_dir
        self.play = play
        self.started: list[NodeSpec] = []
        self.closed = False
        self._killed: dict[int, threading.Event] = {}
        self._threads: list[threading.Thread] = []
        self._gone: list[NodeExit] = []

    def start(self, spec: NodeSpec) -> None:
        self.started.append(spec)
        self._killed[spec.node] = threading.Event()
        thread = threading.Thread(target=self._run, args=(spec,))
        self._threads.append(thread)
        thread.start()

    def _run(self, spec: NodeSpec) -> None:
        killed, codes = self._killed[spec.node], dict[int, int | None]()

        def play(rank: int) -> None:
            codes[rank] = code = self.play.exit_code(self, spec, rank, killed)
            record = self.work_dir / "nodes" / f"{spec.node}-{rank}.exit"  # as a rank's parent writes it
            if code is not None and not record.exists():
                record.write_text(json.dumps({"exit_code": code, "signal": None}))

        ranks = [threading.Thread(target=play, args=(rank,)) for rank in range(spec.nproc_per_node)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        found = list(codes.values())
        self._gone.append(NodeExit(spec.node, -9 if None in found else max(code or 0 for code in found)))

    def agent(self, node: int) -> None:
        pass

    def notice(self, node: int) -> None:
        with ControlClient(str(self.work_dir / "control.json"), f"n{node}") as client:
            client.post(f"/v1/nodes/{node}/notice", {"source": "signal"})

    def kill(self, node: int) -> None:
        self._killed[node].set()

    def poll(self) -> list[NodeExit]:
        gone, self._gone = self._gone, []
        return gone

    def close(self) -> None:
        self.closed = True
        for killed in self._killed.values():
            killed.set()
        for thread in self._threads:
            thread.join(PATIENCE)
