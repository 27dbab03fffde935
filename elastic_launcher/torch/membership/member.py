"""This process as a member of an elastic job: it follows the coordinator's orders and tells it what happened.

Three threads work beside the training one: *orders* keeps a request waiting at the coordinator (which is also the
heartbeat), *reports* sends what happened, and for each formation one builds the new group while the old one trains.
None of them is ever waited for during a step.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from elastic_launcher import variables
from elastic_launcher.checkpoint.store import open_store
from elastic_launcher.control.client import ControlClient, ControlRefused, ControlUnreachable
from elastic_launcher.control.contact import Contact
from elastic_launcher.control.vitals import Vitals
from elastic_launcher.host.output import say
from elastic_launcher.torch.collectives.c10d_clients import connect_store, hang_up
from elastic_launcher.torch.collectives.group import Group, build_group
from elastic_launcher.torch.collectives.threads import have_ended, start_thread
from elastic_launcher.torch.collectives.work import GroupError
from elastic_launcher.torch.fault_injection import point
from elastic_launcher.torch.membership.environment import Launch
from elastic_launcher.torch.membership.membership import Formation
from elastic_launcher.torch.membership.rejoin_state import Account
from elastic_launcher.workdir import Layout

POLL_SECONDS = 2.0  # how long a request for orders waits; also the heartbeat
ANSWER_SECONDS = POLL_SECONDS + 5.0  # for the answer to it, at most
RETRY_SECONDS = 0.2  # between attempts to reach a coordinator that is away
FLUSH_SECONDS = 3.0  # for the last reports of a process that ends
GROUP_SECONDS = (
    7 * 86400.0
)  # a peer may evaluate for hours between two steps; the coordinator judges who is dead, not this
STORE_SECONDS = 10.0  # for a first connection to the c10d store
FORMED_SECONDS = 1.0  # for groups under way when a process ends
FORMATION = "elastic-formation"
ORPHANED = 75


class JobOver(Exception):
    """The coordinator has no more use for this member."""


class MovedOn(GroupError):
    """The job trains in another loop than the one in which a joiner waits.

    Args:
        message: Why.
        wait: Which of its waits a joiner gives up for it; 0 on a rank that trains.
    """

    def __init__(self, message: str, wait: int = 0) -> None:
        super().__init__(message)
        self.wait = wait


class Member:
    """The connection of one member to its coordinator.

    Args:
        launch: How this process was started.
        device: Where its tensors lie.
        orphan_timeout: Seconds without a coordinator after which the process leaves.

    Attributes:
        number: Its own.
        checkpoint: The folder of the checkpoint that the job goes on from; "" for a job that begins.
        term: The coordinator's reign.
        orphan_timeout: Seconds without a coordinator after which the process leaves.
        account: What a coordinator that comes back is told.
        save_wanted: Whether a checkpoint is asked for; whoever sees to it sets it back.
        halt_wanted: Whether the job is to stop after a checkpoint.
        drops_step: Whether it is to stop within the step.
        appointed: Whether this member is to save in the place of one that is gone.
        goes_on: Whether it trains on although it was to stop; as long as it is not told to stop anew.
    """

    def __init__(self, launch: Launch, device: torch.device, orphan_timeout: float) -> None:
        assert launch.control is not None and launch.member is not None
        self.number = launch.member
        self._launch = launch
        self._device = device
        self.orphan_timeout = orphan_timeout
        self._client = ControlClient(launch.control, f"m{launch.member}")
        self._changed = threading.Condition()
        self._pending: Formation | None = None
        self._pending_since = 0.0
        self._coming: Formation | None = None
        self._building: dict[int, Group] = {}
        self._ordered: set[int] = set()
        self._abandoned: set[int] = set()
        self._current: Formation | None = None
        self._over: str | None = None
        self._interruption: Exception | None = None
        self._ends = False
        self._reports: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._alone = False
        self._contact = Contact(ANSWER_SECONDS + 2 * RETRY_SECONDS)
        self.before_growing: Callable[[Formation], None] = lambda formation: None
        self.before_recovering: Callable[[Sequence[int]], None] = lambda left: None
        self.expected_world_size = 1
        self.vitals: Callable[[], Vitals] = Vitals
        self.checkpoint = ""
        self.term = 1
        self.account = Account()
        self._after = 0
        self._introducing = threading.Lock()
        self.save_wanted = False
        self.halt_wanted = False
        self.drops_step = False
        self.appointed = self.goes_on = False
        self._store = ""

    def join(self) -> dict[str, Any]:
        """Tells the coordinator that this process is there, and starts to follow orders.

        Returns:
            Where the job stands: ``epoch``, ``step``, ``begun``.

        Raises:
            ControlRefused: If the coordinator does not want this member.
        """
        from elastic_launcher import __version__

        payload = {
            "pid": os.getpid(),
            "node": self._launch.node,
            "local_rank": self._launch.local_rank,
            "version": __version__,
        }
        while True:
            try:
                standing = self._client.post(f"/v1/members/{self.number}/join", payload)
                break
            except ControlUnreachable:
                self._consider_leaving()
        self.expected_world_size = int(standing.get("expected_world_size", 1))
        self._store = str(standing.get("store", ""))
        self.checkpoint = str(standing.get("checkpoint", ""))
        self.term = int(standing.get("term", 1))
        for target, name in ((self._follow_orders, "orders"), (self._send_reports, "reports")):
            threading.Thread(target=target, name=f"elastic-{name}", daemon=True).start()
        return standing

    def warm_up(self) -> None:
        """Opens the connection to the c10d store, whose first look-up of names can take seconds, before peers wait."""
        if self._store:
            with contextlib.suppress(GroupError, OSError, RuntimeError):  # a formation will tell
                connect_store(self._store, STORE_SECONDS)

    def report(self, kind: str, **fields: Any) -> None:
        """Has something told to the coordinator, soon and without waiting."""
        report = {"kind": kind, **fields}
        self.account.note_report(report)
        self._reports.put(report)

    def flush(self, longest: float = math.inf) -> None:
        """Waits until all reports are told: a bounded time, but for a coordinator that is away as long as all do.

        Args:
            longest: Seconds to wait at most, also for one that is away.
        """
        done, until = threading.Event(), time.monotonic() + longest
        self._reports.put({"kind": "", "event": done})
        while not done.wait(FLUSH_SECONDS) and self._contact.silence() > FLUSH_SECONDS and time.monotonic() < until:
            pass

    def stop_forming(self) -> None:
        """Has nobody here wait for a group any more: this process ends."""
        with self._changed:
            self._ends = True
            self._abandoned |= self._ordered
            for group in self._building.values():
                group.cut()
        if not have_ended(FORMATION, FORMED_SECONDS) and self._store:  # a peer that does not come
            hang_up(self._store)

    def ready(self) -> Formation | None:
        """Returns the formation that this member could change to after the step that runs now."""
        pending = self._pending
        return pending

    def ready_since(self) -> float:
        """Returns when the formation of `ready` was there, in monotonic seconds."""
        return self._pending_since

    def take(self, number: int) -> Formation | None:
        """Takes the formation that all ranks agreed on; None if the coordinator has given it up in the meantime."""
        with self._changed:
            pending = self._pending
            if pending is None or pending.number != number:
                return None
            self._pending = None
            self._current = pending
            self.account.note_taken(number)
            return pending

    def wait_for(
        self, wanted: Callable[[Formation], bool], prepare: Callable[[Formation], None] = lambda formation: None
    ) -> Formation:
        """Waits until a formation of a wanted kind stands, and takes it.

        Args:
            wanted: Says whether it is one of them.
            prepare: Called in this thread with each that this member is to be in, while its group is formed.

        Raises:
            JobOver: If the coordinator has no more use for this member.
            Exception: What `interrupt` was given.
        """
        prepared: set[int] = set()
        while True:
            with self._changed:
                if self._over is not None:
                    raise JobOver(self._over)
                if self._interruption is not None:
                    error, self._interruption = self._interruption, None
                    raise error
                pending = self._pending
                if pending is not None and wanted(pending):
                    self._pending = None
                    self._current = pending
                    self.account.note_taken(pending.number)
                    return pending
                coming = self._coming
                if coming is None or coming.number not in self._ordered - prepared:
                    self._changed.wait(1.0)
                    continue
            prepared.add(coming.number)
            prepare(coming)

    def interrupt(self, error: Exception) -> None:
        """Has `wait_for` raise an error: there is no sense in waiting."""
        with self._changed:
            self._interruption = error
            self._changed.notify_all()

    def decline(self, formation: Formation, why: MovedOn) -> None:
        """Has the coordinator give up a formation that stands, and that the ranks have not agreed on."""
        with self._changed:
            if self._pending is formation:
                self._fail_to_form(formation.number, why)

    def stand_still(self, seconds: float = math.inf) -> bool:
        """Waits until this member is appointed to save, at most for so long; returns whether it trains on instead.

        Raises:
            JobOver: If the coordinator has no more use for it.
        """
        until = time.monotonic() + seconds
        with self._changed:
            while not self.appointed and not self.goes_on and (left := until - time.monotonic()) > 0:
                self.check_over()
                self._changed.wait(min(left, 1.0))
            self.appointed = False
            return self.goes_on

    def give_up(self, formation: Formation, error: object) -> None:
        """Tells that a formation failed before this member was admitted by it."""
        with self._changed:
            self._abandoned.add(formation.number)
            self._ordered.discard(formation.number)
            self.account.note_given_up(formation.number, left=True)
        if formation.group is not None:
            formation.group.cut()
        self.report("form_failed", formation=formation.number, error=str(error))

    def check_over(self) -> None:
        """Raises `JobOver` if the coordinator has said so."""
        if self._over is not None:
            raise JobOver(self._over)

    def _follow_orders(self) -> None:
        """Asks for orders for as long as the process lives, whatever goes wrong over one: that is the heartbeat too."""
        while True:
            try:
                self._ask_for_orders()
            except Exception as error:  # noqa: BLE001 - no thread can be started, say
                _say(f"an order could not be followed ({type(error).__name__}: {error})")
                time.sleep(RETRY_SECONDS)

    def _ask_for_orders(self) -> None:
        with self._introducing:
            term, after = self.term, self._after
        try:
            query = f"after={after}&wait={POLL_SECONDS:g}&term={term}&{self.vitals().to_query()}"
            answer = self._client.get(f"/v1/members/{self.number}/orders?{query}", timeout=ANSWER_SECONDS)
        except ControlUnreachable:
            self._consider_leaving()
            return
        except ControlRefused as refusal:
            self._introduce(refusal)
            return
        self._heard()
        for order in answer["orders"]:
            with self._introducing:
                if self.term != term:
                    break  # what a coordinator wants that was replaced meanwhile counts no more
                self._after = order["seq"]
            self._obey(order)

    def _heard(self) -> None:
        self._contact.hear()
        self._alone = False

    def _introduce(self, refusal: ControlRefused) -> None:
        """Tells a coordinator that has come back, and knows nothing, where this member stands."""
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
                known = self.account.introduction(self.halt_wanted).to_dict()
                answer = self._client.post(f"/v1/members/{self.number}/introduce", known)
            except ControlUnreachable:
                self._consider_leaving()
                return
            except ControlRefused as unwanted:
                leave(f"the coordinator that came back has no use for this member: {unwanted}")
            self.term, self._store, self._after = int(answer["term"]), str(answer["store"]), 0
        self._heard()

    def _consider_leaving(self) -> None:
        silence = self._contact.silence()
        if silence > self.orphan_timeout:
            default = Layout(Path(os.environ[variables.WORK_DIR])).checkpoints
            saved = open_store(os.environ.get(variables.CHECKPOINT_DIR), default).kept()
            leave(f"the launcher has not been heard of for {self.orphan_timeout:g} s; {saved}")
        if silence > self.orphan_timeout / 2 and not self._alone:
            self._alone = self.save_wanted = True  # before this rank, or its agent, leaves
        time.sleep(RETRY_SECONDS * (0.5 + random.random()))

    def _obey(self, order: dict[str, Any]) -> None:
        kind = order["kind"]
        if kind == "form":
            self._form(order)
        elif kind == "abandon":
            self._abandon(order["formation"])
            if left := order.get("left"):
                self.before_recovering(left)
        elif kind == "save":
            self._save(order)
        elif kind == "go_on":
            with self._changed:
                self.save_wanted, self.halt_wanted, self.goes_on = False, False, True
                self._changed.notify_all()
        elif kind == "end" and order.get("at_once"):
            leave(f"this node was given up: {order.get('reason')}")
        elif kind == "end":
            with self._changed:
                self._over = order.get("reason") or "the job is over"
                for formation in (self._pending, self._current):
                    if formation is not None and self.number in formation.joiners and formation.group is not None:
                        formation.group.cut()  # wakes a joiner that waits for its state
                self._changed.notify_all()
        elif kind == "fail":
            end = "failed" if order.get("failed", True) else "ends"
            leave(f"the job {end}: {order.get('message', '')}", code=1)

    def _form(self, order: dict[str, Any]) -> None:
        with self._changed:
            if self._ends:
                return
            self._ordered.add(order["formation"])
            self.account.note_order(order)
            self._coming = Formation.from_order(order, None) if self.number in order["members"] else None
            self._changed.notify_all()
            try:
                start_thread(FORMATION, self._build, order)
            except RuntimeError as error:  # no thread can be started
                self._fail_to_form(order["formation"], error)

    def _save(self, order: dict[str, Any]) -> None:
        with self._changed:
            self.appointed = self.appointed or order.get("saver") == self.number
            self.save_wanted, self.halt_wanted = True, self.halt_wanted or bool(order.get("halt"))
            self.goes_on = self.goes_on and not order.get("halt")
            if order.get("at_once") and self._current is not None and self._current.group is not None:
                self.drops_step = True
                self._current.group.cut()
            self._changed.notify_all()

    def _abandon(self, number: int) -> None:
        with self._changed:
            if number in self._ordered and not (self._current is not None and self._current.number == number):
                self.report("form_failed", formation=number, error="it was given up")
            self._ordered.discard(number)
            self._abandoned.add(number)
            self.account.note_given_up(number)
            if number in self._building:
                self._building[number].cut()
            for formation in (self._pending, self._current):
                if formation is not None and formation.number == number and formation.group is not None:
                    formation.group.cut()
            if self._pending is not None and self._pending.number == number:
                self._pending = None

    def _build(self, order: dict[str, Any]) -> None:
        """Builds the group of one formation, beside the training."""
        number = order["formation"]
        group: Group | None = None
        point("form", order["generation"])
        if self.number in order["members"]:
            try:
                group = build_group(
                    order["store"],
                    number,
                    order["members"].index(self.number),
                    len(order["members"]),
                    order["timeout"],
                    self._device,
                    long_timeout=GROUP_SECONDS,
                )
                if order["mode"] == "grow":
                    self._make_ready(number, Formation.from_order(order, group))
            except Exception as error:  # noqa: BLE001 - whatever it is, the others need not wait for this rank
                self._fail_to_form(number, error)
                return
        with self._changed:
            if number in self._abandoned:
                if group is not None:
                    group.cut()
                return
            self._pending = Formation.from_order(order, group)
            self.account.note_standing(number)
            self._pending_since = time.monotonic()
            self._changed.notify_all()
        self.report("formed", formation=number)

    def _fail_to_form(self, number: int, error: Exception) -> None:
        with self._changed:
            known, moved = number in self._ordered, isinstance(error, MovedOn)
            if known:
                self._ordered.discard(number)
                self.account.note_given_up(number)
            wait = error.wait if isinstance(error, MovedOn) else 0
            if known or wait:
                said = str(error) or type(error).__name__
                self.report("form_failed", formation=number, error=said, moved=moved, wait=wait)

    def _make_ready(self, number: int, formation: Formation) -> None:
        """Does what costs the training nothing as long as the generation is not the one that trains."""
        assert formation.group is not None
        with self._changed:
            if number in self._abandoned:
                return
            self._building[number] = formation.group
        try:
            self.before_growing(formation)
        finally:
            with self._changed:
                del self._building[number]

    def _send_reports(self) -> None:
        """Tells the coordinator what happened, in order."""
        while True:
            batch = [self._reports.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    batch.append(self._reports.get_nowait())
            told = [r for r in batch if r is not None and r["kind"]]
            while told:
                try:
                    if self._tell(told):
                        break
                except Exception as error:  # noqa: BLE001 - no thread can be started, say
                    _say(f"a report could not be told ({type(error).__name__}: {error}); that is tried again")
                    time.sleep(RETRY_SECONDS)
            for item in batch:
                if item is not None and not item["kind"]:
                    item["event"].set()

    def _tell(self, told: list[dict[str, Any]]) -> bool:
        """Tells the coordinator once; returns whether it has taken or refused it."""
        try:
            self._client.post(f"/v1/members/{self.number}/reports", {"reports": told, "term": self.term})
            return True
        except ControlUnreachable:
            self._consider_leaving()
        except ControlRefused as refusal:
            if refusal.status == 413 and len(told) > 1:  # all but the one that is too large are taken
                return all(self._tell([one]) for one in told)
            if refusal.term is None:
                _say(f"the coordinator refused a report: {refusal}")
                return True
            self._introduce(refusal)
        return False


def leave(reason: str, code: int = ORPHANED) -> NoReturn:
    """Ends this process at once: other threads may be waiting for peers that will never answer."""
    _say(f"{reason}; this rank leaves")
    with contextlib.suppress(Exception):  # it may be the script's own
        sys.stdout.flush()
    os._exit(code)


def _say(line: str) -> None:
    say(f"elastic-launcher: {line}")
