"""Follows the coordinator's orders to this member, in a thread of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from elastic_launcher.control.messages import Abandon, End, Fail, Form, GoOn, Order, Save
from elastic_launcher.control.vitals import Vitals
from elastic_launcher.torch.membership.connection import RETRY_SECONDS, Connection, complain, leave
from elastic_launcher.torch.membership.formations import Formations


class Orders:
    """Follows the coordinator's orders.

    Attributes:
        vitals: Returns what this rank does, which is sent with each request.
        before_recovering: Takes the members that are left after a loss, as soon as that is known.
        save_wanted: Whether a checkpoint is asked for; whoever sees to it sets it back.
        drops_step: Whether the training is to stop within the step.
    """

    def __init__(self, connection: Connection, formations: Formations) -> None:
        self.vitals: Callable[[], Vitals] = Vitals
        self.before_recovering: Callable[[Sequence[int]], None] = lambda left: None
        self.save_wanted = self.drops_step = False
        self._connection = connection
        self._formations = formations
        self._appointed = False  # to save in the place of a member that is gone
        self._goes_on = False  # although it was to stop, until a new order to stop
        connection.on_silence = self._want_save

    def follow(self) -> None:
        """Asks for orders for as long as the process lives, also after errors: that is the heartbeat, too."""
        while True:
            try:
                for order in self._connection.orders(self.vitals()):
                    self.obey(order)
            except Exception as error:  # noqa: BLE001 - no thread can be started, say
                complain(f"an order could not be followed ({type(error).__name__}: {error})")
                time.sleep(RETRY_SECONDS)

    def obey(self, order: Order) -> None:
        """Does what an order asks for."""
        match order:
            case Form():
                self._formations.form(order)
            case Abandon():
                self._formations.abandon(order.formation)
                if order.left:
                    self.before_recovering(order.left)
            case Save():
                self._save(order)
            case GoOn():
                with self._formations.changed:
                    self.save_wanted = self._connection.rejoin_state.halting = False
                    self._goes_on = True
                    self._formations.changed.notify_all()
            case End(at_once=True):
                leave(f"this node was given up: {order.reason}")
            case End():
                self._formations.end(order.reason or "the job is over")
            case Fail():
                leave(f"the job {'failed' if order.failed else 'ends'}: {order.message}", code=1)

    def stand_still(self, seconds: float = math.inf) -> bool:
        """Waits until this member is appointed to save, at most for so long; returns whether it trains on instead.

        Raises:
            JobOver: If the coordinator has no more use for it.
        """
        until = time.monotonic() + seconds
        with self._formations.changed:
            while not self._appointed and not self._goes_on and (left := until - time.monotonic()) > 0:
                self._formations.check_over()
                self._formations.changed.wait(min(left, 1.0))
            self._appointed = False
            return self._goes_on

    def _want_save(self) -> None:
        self.save_wanted = True

    def _save(self, order: Save) -> None:
        with self._formations.changed:
            self._appointed = self._appointed or order.saver == self._connection.number
            self.save_wanted = True
            self._connection.rejoin_state.halting |= order.halt
            self._goes_on = self._goes_on and not order.halt
            if order.at_once:
                self.drops_step = self._formations.cut_current() or self.drops_step
            self._formations.changed.notify_all()
