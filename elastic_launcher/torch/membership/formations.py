"""Forms the groups that the coordinator orders beside the training, which then changes over."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import torch

from elastic_launcher.control.messages import Form, Formed, FormFailed
from elastic_launcher.torch.collectives.c10d_clients import connect_store, hang_up
from elastic_launcher.torch.collectives.group import Group, build_group
from elastic_launcher.torch.collectives.threads import have_ended, start_thread
from elastic_launcher.torch.collectives.work import GroupError
from elastic_launcher.torch.fault_injection import point
from elastic_launcher.torch.membership.connection import Connection
from elastic_launcher.torch.membership.membership import Formation
from elastic_launcher.torch.membership.reports import Reports

GROUP_SECONDS = (
    7 * 86400.0
)  # a peer may evaluate for hours between two steps; the coordinator judges who is dead, not this
STORE_SECONDS = 10.0  # for a first connection to the c10d store
FORMED_SECONDS = 1.0  # for groups under way when a process ends
FORMATION = "elastic-formation"


class JobOver(Exception):
    """The coordinator has no more use for this member."""


class MovedOn(GroupError):
    """The job trains in another loop than the one in which a joiner waits.

    ``wait`` is which of its waits a joiner gives up for it; 0 on a rank that trains.
    """

    def __init__(self, message: str, wait: int = 0) -> None:
        super().__init__(message)
        self.wait = wait


class Formations:
    """The formations that this member is ordered to be in, from the order until the training changes to one.

    Attributes:
        changed: Held while something of it changes, and notified then.
        ready_since: When the formation of `ready` was there, in monotonic seconds.
        before_growing: Does, for a formation that grows, what need not wait until the training has changed to it.
        shards: Ranks of each node among which the model is divided; 1 where it is not sharded.
    """

    def __init__(self, connection: Connection, reports: Reports, device: torch.device) -> None:
        self.changed = threading.Condition()
        self.before_growing: Callable[[Formation], None] = lambda formation: None
        self.shards = 1
        self._connection = connection
        self._rejoin_state = connection.rejoin_state
        self._number = connection.number
        self._reports = reports
        self._device = device
        self._pending: Formation | None = None
        self.ready_since = 0.0
        self._coming: Formation | None = None
        self._building: dict[int, Group] = {}
        self._ordered: set[int] = set()
        self._abandoned: set[int] = set()
        self._current: Formation | None = None
        self._over: str | None = None
        self._interruption: Exception | None = None
        self._ends = False

    def warm_up(self) -> None:
        """Opens the connection to the c10d store, whose first look-up of names can take seconds, before peers wait."""
        if self._connection.store:
            with contextlib.suppress(GroupError, OSError, RuntimeError):  # a formation will report it
                connect_store(self._connection.store, STORE_SECONDS)

    def stop_forming(self) -> None:
        """Has nobody here wait for a group any more: this process ends."""
        with self.changed:
            self._ends = True
            self._abandoned |= self._ordered
            for group in self._building.values():
                group.cut()
        if not have_ended(FORMATION, FORMED_SECONDS) and self._connection.store:  # a peer that does not come
            hang_up(self._connection.store)

    def ready(self) -> Formation | None:
        """Returns the formation that this member could change to after the step that runs now."""
        return self._pending

    def take(self, number: int) -> Formation | None:
        """Takes the formation that all ranks agreed on; None if the coordinator has given it up in the meantime."""
        with self.changed:
            pending = self._pending
            return self._change_to(pending) if pending is not None and pending.number == number else None

    def wait_for(
        self,
        wanted: Callable[[Formation], bool],
        prepare: Callable[[Formation], None] = lambda formation: None,
        *,
        takes: bool = True,
    ) -> Formation:
        """Waits until a formation of a wanted kind is complete, and takes it unless ``takes`` is False.

        ``prepare`` is called in this thread with each that this member is to be in, while its group is formed.

        Raises:
            JobOver: If the coordinator has no more use for this member.
            Exception: What `interrupt` was given.
        """
        prepared: set[int] = set()
        while True:
            with self.changed:
                self.check_over()
                if self._interruption is not None:
                    error, self._interruption = self._interruption, None
                    raise error
                pending = self._pending
                if pending is not None and wanted(pending):
                    return self._change_to(pending) if takes else pending
                coming = self._coming
                if coming is None or coming.number not in self._ordered - prepared:
                    self.changed.wait(1.0)
                    continue
            prepared.add(coming.number)
            prepare(coming)

    def _change_to(self, pending: Formation) -> Formation:
        self._pending, self._current = None, pending
        self._rejoin_state.note_taken(pending.number)
        return pending

    def interrupt(self, error: Exception) -> None:
        """Has `wait_for` raise an error: there is no sense in waiting."""
        with self.changed:
            self._interruption = error
            self.changed.notify_all()

    def decline(self, formation: Formation, why: MovedOn) -> None:
        """Has the coordinator give up a complete formation that the ranks have not agreed on."""
        with self.changed:
            if self._pending is formation:
                self._fail_to_form(formation.number, why)

    def give_up(self, formation: Formation, error: object) -> None:
        """Tells that a formation failed before this member was admitted by it."""
        with self.changed:
            self._abandoned.add(formation.number)
            self._ordered.discard(formation.number)
            self._rejoin_state.note_given_up(formation.number, left=True)
        if formation.group is not None:
            formation.group.cut()
        self._reports.put(FormFailed(formation.number, str(error)))

    def check_over(self) -> None:
        """Raises `JobOver` if the coordinator has said so."""
        if self._over is not None:
            raise JobOver(self._over)

    def end(self, reason: str) -> None:
        """Records that the coordinator does not need this member any more."""
        with self.changed:
            self._over = reason
            for formation in (self._pending, self._current):
                if formation is not None and self._number in formation.joiners and formation.group is not None:
                    formation.group.cut()  # wakes a joiner that waits for its state
            self.changed.notify_all()

    def cut_current(self) -> bool:
        """Ends the operations in the group that trains; returns whether there is one."""
        if self._current is None or self._current.group is None:
            return False
        self._current.group.cut()
        return True

    def form(self, order: Form) -> None:
        """Begins to build the group of a formation."""
        with self.changed:
            if self._ends:
                return
            self._ordered.add(order.formation)
            self._rejoin_state.note_order(order)
            self._coming = Formation.from_order(order, None) if self._number in order.members else None
            self.changed.notify_all()
            try:
                start_thread(FORMATION, self._build, order)
            except RuntimeError as error:  # no thread can be started
                self._fail_to_form(order.formation, error)

    def abandon(self, number: int) -> None:
        """Gives a formation up; the group that trains is cut."""
        with self.changed:
            if number in self._ordered and not (self._current is not None and self._current.number == number):
                self._reports.put(FormFailed(number, "it was given up"))
            self._ordered.discard(number)
            self._abandoned.add(number)
            self._rejoin_state.note_given_up(number)
            if number in self._building:
                self._building[number].cut()
            for formation in (self._pending, self._current):
                if formation is not None and formation.number == number and formation.group is not None:
                    formation.group.cut()
            if self._pending is not None and self._pending.number == number:
                self._pending = None

    def _build(self, order: Form) -> None:
        """Builds the group of one formation, beside the training."""
        number = order.formation
        group: Group | None = None
        point("form", order.generation)
        if self._number in order.members:
            try:
                group = self._join(order)
                if order.mode == "grow":
                    self._make_ready(number, Formation.from_order(order, group))
            except Exception as error:  # noqa: BLE001 - the others need not wait for this rank
                self._fail_to_form(number, error)
                return
        with self.changed:
            if number in self._abandoned:
                if group is not None:
                    group.cut()
                return
            self._pending = Formation.from_order(order, group)
            self._rejoin_state.note_standing(number)
            self.ready_since = time.monotonic()
            self.changed.notify_all()
        self._reports.put(Formed(number))

    def _join(self, order: Form) -> Group:
        """Builds the group of all members, and that of those with the same part of the model.

        Raises:
            GroupError: If they are no whole nodes, or one of them did not come.
        """
        rank, world_size = order.members.index(self._number), len(order.members)
        node, part = divmod(rank, self.shards)
        if world_size % self.shards:
            raise GroupError(f"{world_size} ranks are no whole nodes of {self.shards}, which share one model")
        group = self._build_group(order, order.formation, rank, world_size)
        if self.shards > 1:
            try:
                replicas = self._build_group(order, f"{order.formation}/part{part}", node, world_size // self.shards)
            except Exception:
                group.cut()
                raise
            group.set_replicas(replicas)
        return group

    def _build_group(self, order: Form, name: int | str, rank: int, world_size: int) -> Group:
        return build_group(order.store, name, rank, world_size, order.timeout, self._device, long_timeout=GROUP_SECONDS)

    def _fail_to_form(self, number: int, error: Exception) -> None:
        with self.changed:
            known, moved = number in self._ordered, isinstance(error, MovedOn)
            if known:
                self._ordered.discard(number)
                self._rejoin_state.note_given_up(number)
            wait = error.wait if isinstance(error, MovedOn) else 0
            if known or wait:
                said = str(error) or type(error).__name__
                self._reports.put(FormFailed(number, said, moved, wait))

    def _make_ready(self, number: int, formation: Formation) -> None:
        """Does what costs the training nothing as long as the generation is not the one that trains."""
        assert formation.group is not None
        with self.changed:
            if number in self._abandoned:
                return
            self._building[number] = formation.group
        try:
            self.before_growing(formation)
        finally:
            with self.changed:
                del self._building[number]
