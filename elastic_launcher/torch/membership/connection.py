"""The connection of this member to its coordinator: joins it, and introduces itself in a takeover."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from elastic_launcher import variables
from elastic_launcher.checkpoint.store import open_store
from elastic_launcher.control.client import ControlClient, ControlRefused, ControlUnreachable
from elastic_launcher.control.contact import Contact
from elastic_launcher.control.messages import Order, decode
from elastic_launcher.control.requests import Join, Orders, Reports, Standing, Welcome
from elastic_launcher.control.vitals import Vitals
from elastic_launcher.host.output import say
from elastic_launcher.torch.membership.environment import Launch
from elastic_launcher.torch.membership.rejoin_state import RejoinState
from elastic_launcher.workdir import Layout

POLL_SECONDS = 2.0  # how long a request for orders waits; also the heartbeat
ANSWER_SECONDS = POLL_SECONDS + 5.0  # for the answer to it, at most
RETRY_SECONDS = 0.2  # between attempts to reach a coordinator that is away
ORPHANED = 75


class Connection:
    """Asks the coordinator for one member; safe to use from several threads.

    Attributes:
        orphan_timeout: Seconds without a coordinator after which the process leaves.
        rejoin_state: What a coordinator that takes over is told.
        contact: When the coordinator was heard last.
        term: The coordinator's term.
        store: ``host:port`` of the c10d store; "" before the member has joined.
        on_silence: Called once when half of that time has passed: there is time for a checkpoint.
    """

    def __init__(self, launch: Launch, orphan_timeout: float) -> None:
        assert launch.control is not None and launch.member is not None
        self.number = launch.member
        self.orphan_timeout = orphan_timeout
        self.rejoin_state = RejoinState()
        self.contact = Contact(ANSWER_SECONDS + 2 * RETRY_SECONDS)
        self.term = 1
        self.store = ""
        self.on_silence: Callable[[], None] = lambda: None
        self._launch = launch
        self._client = ControlClient(launch.control, f"m{launch.member}")
        self._path = f"/v1/members/{launch.member}"
        self._after = 0
        self._alone = False
        self._introducing = threading.Lock()

    def join(self) -> Standing:
        """Joins the job; returns its progress.

        Raises:
            ControlRefused: If the coordinator does not want this member.
        """
        from elastic_launcher import __version__

        asked = Join(os.getpid(), self._launch.node, self._launch.local_rank, __version__)
        while True:
            try:
                standing = decode(self._client.post(f"{self._path}/join", asked), Standing, "join")
                break
            except ControlUnreachable:
                self._consider_leaving()
        self.store, self.term = standing.store, standing.term
        return standing

    def orders(self, vitals: Vitals) -> Iterator[Order]:
        """Asks for orders once, which is the heartbeat too; yields those that came.

        Each counts as known when it is yielded, and is not asked for again.

        Raises:
            ValueError: If one of them is no order; it is not asked for again either.
        """
        with self._introducing:
            term, after = self.term, self._after
        try:
            query = f"after={after}&wait={POLL_SECONDS:g}&term={term}&{vitals.to_query()}"
            content = self._client.get(f"{self._path}/orders?{query}", timeout=ANSWER_SECONDS)
        except ControlUnreachable:
            self._consider_leaving()
            return
        except ControlRefused as refusal:
            self._introduce(refusal)
            return
        self._heard()
        for one in decode(content, Orders, "orders").orders:
            with self._introducing:
                if self.term != term:
                    return  # what a coordinator wants that was replaced meanwhile counts no more
                self._after = int(one["seq"])
            yield decode(one, Order, f"order {one.get('kind', '')}")

    def send(self, reports: list[dict[str, Any]]) -> bool:
        """Tells the coordinator once; returns whether it has taken or refused it."""
        try:
            self._client.post(f"{self._path}/reports", Reports(reports, self.term))
            return True
        except ControlUnreachable:
            self._consider_leaving()
        except ControlRefused as refusal:
            if refusal.status == 413 and len(reports) > 1:  # all but the one that is too large are taken
                return all(self.send([one]) for one in reports)
            if refusal.term is None:
                complain(f"the coordinator refused a report: {refusal}")
                return True
            self._introduce(refusal)
        return False

    def _heard(self) -> None:
        self.contact.hear()
        self._alone = False

    def _introduce(self, refusal: ControlRefused) -> None:
        """Introduces this member to a coordinator that takes over."""
        if refusal.term is None:
            leave(f"the coordinator no longer knows this member: {refusal}")
        with self._introducing:
            if refusal.term == self.term:
                return  # the other thread has done it
            if refusal.term < self.term:  # one that was replaced and does not know it
                self._client.hang_up()
                time.sleep(RETRY_SECONDS)
                return
            try:
                content = self._client.post(f"{self._path}/introduce", self.rejoin_state.introduction())
            except ControlUnreachable:
                self._consider_leaving()
                return
            except ControlRefused as unwanted:
                leave(f"the coordinator that came back has no use for this member: {unwanted}")
            welcome = decode(content, Welcome, "introduce")
            self.term, self.store, self._after = welcome.term, welcome.store, 0
        self._heard()

    def _consider_leaving(self) -> None:
        silence = self.contact.silence()
        if silence > self.orphan_timeout:
            default = Layout(Path(os.environ[variables.WORK_DIR])).checkpoints
            saved = open_store(os.environ.get(variables.CHECKPOINT_DIR), default).kept()
            leave(f"the launcher has not been heard of for {self.orphan_timeout:g} s; {saved}")
        if silence > self.orphan_timeout / 2 and not self._alone:
            self._alone = True
            self.on_silence()  # before this rank, or its agent, leaves
        time.sleep(RETRY_SECONDS * (0.5 + random.random()))


def leave(reason: str, code: int = ORPHANED) -> NoReturn:
    """Ends this process at once: other threads may be waiting for peers that will never answer."""
    complain(f"{reason}; this rank leaves")
    with contextlib.suppress(Exception):  # it may be the script's own
        sys.stdout.flush()
    os._exit(code)


def complain(line: str) -> None:
    """Writes a line into this rank's log."""
    say(f"elastic-launcher: {line}")
