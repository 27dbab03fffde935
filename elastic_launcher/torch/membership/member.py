"""This process as a member of an elastic job.

Three threads work beside the training one: *orders* keeps a request waiting at the coordinator (which is also the
heartbeat), *reports* sends what happened, and for each formation one builds the new group while the old one trains.
None of them is ever waited for during a step.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from elastic_launcher.control.introduction import Introduction
from elastic_launcher.control.requests import Standing
from elastic_launcher.control.vitals import Vitals
from elastic_launcher.torch.membership.connection import Connection
from elastic_launcher.torch.membership.environment import Launch
from elastic_launcher.torch.membership.formations import Formations
from elastic_launcher.torch.membership.membership import Formation
from elastic_launcher.torch.membership.orders import Orders
from elastic_launcher.torch.membership.reports import Reports


@dataclass(frozen=True)
class Hooks:
    """What a member asks of its training, from threads beside it.

    Attributes:
        vitals: Returns what this rank does, told with each request.
        introduction: Returns where the training stands here, and nothing else of an introduction.
        before_growing: Does, for a formation that grows, what need not wait until the training has changed to it.
        before_recovering: Takes the members that are left after a loss, as soon as that is known.
    """

    vitals: Callable[[], Vitals] = Vitals
    introduction: Callable[[], Introduction] = lambda: Introduction(os.getpid())
    before_growing: Callable[[Formation], None] = lambda formation: None
    before_recovering: Callable[[Sequence[int]], None] = lambda left: None


class Member:
    """What one member has to do with its coordinator.

    Args:
        launch: How this process was started.
        device: Where its tensors lie.
        orphan_timeout: Seconds without a coordinator after which the process leaves.

    Attributes:
        orders: What else it is to do than be in formations.
        standing: Where the job stood when it joined.
    """

    def __init__(self, launch: Launch, device: torch.device, orphan_timeout: float) -> None:
        self.connection = Connection(launch, orphan_timeout)
        self.number = self.connection.number
        self.reports = Reports(self.connection)
        self.formations = Formations(self.connection, self.reports, device)
        self.orders = Orders(self.connection, self.formations)
        self.standing = Standing()

    def join(self, hooks: Hooks) -> Standing:
        """Joins the job, and starts to follow orders with these hooks; returns the job's progress.

        Raises:
            ControlRefused: If the coordinator does not want this member.
        """
        self.connection.rejoin_state.where = hooks.introduction
        self.formations.before_growing = hooks.before_growing
        self.orders.vitals, self.orders.before_recovering = hooks.vitals, hooks.before_recovering
        self.standing = self.connection.join()
        for target, name in ((self.orders.follow, "orders"), (self.reports.send, "reports")):
            threading.Thread(target=target, name=f"elastic-{name}", daemon=True).start()
        return self.standing
