"""Leader election by a Lease: of several processes one leads, and each knows whether it still does.

Invariant: while one leads by its own clock, no other one does, as long as clocks run at about the same pace: a leader
stops after `LEAD_SECONDS` without a renewal, and another one takes the Lease after `LEASE_SECONDS` at the earliest.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from elastic_launcher.kube.api import CONFLICT, Api, ApiError, find

LEASE_SECONDS = 15
"""After so long without a change of the Lease its holder is gone."""
LEAD_SECONDS = 10.0
"""For so long a renewal holds, from the moment at which it was asked for."""
RENEW_SECONDS = 2.0
"""Between renewals, and between the looks of those that wait."""
TRY_SECONDS = 5.0
"""For one try."""
RELEASE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Held:
    """A Lease as it was seen.

    Attributes:
        version: Its resource version.
        holder: Who has it; "" for nobody.
        seconds: For how long it holds after a change.
        transitions: How often it went from one holder to another.
    """

    version: str
    holder: str
    seconds: float
    transitions: int

    def is_free(self, own: str, unchanged: float) -> bool:
        """Returns whether a process, by its identity, may take what it has seen unchanged for so many seconds."""
        return self.holder in ("", own) or unchanged > self.seconds


def held_of(lease: Mapping[str, Any]) -> Held:
    """Returns what a Lease says; what is missing in it counts as a Lease that is free."""
    spec = lease.get("spec") or {}
    return Held(
        lease["metadata"]["resourceVersion"],
        spec.get("holderIdentity") or "",
        float(spec.get("leaseDurationSeconds") or 0),
        int(spec.get("leaseTransitions") or 0),
    )


class Lease:
    """A Lease that this process takes when it can.

    Args:
        api: The cluster, open for as long as this is used.
        name: Its name; it is made if it is not there.
        identity: What distinguishes this process from all others.

    Attributes:
        holder: Who had it at the last look; "" for nobody.
    """

    def __init__(
        self, api: Api, namespace: str, name: str, identity: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.holder = ""
        self._api = api
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._identity = identity
        self._clock = clock
        self._seen: Held | None = None
        self._seen_at = 0.0
        self._leads_until = 0.0

    @property
    def leads(self) -> bool:
        """Whether this process leads now."""
        return self._clock() < self._leads_until

    async def keep(self, changed: Callable[[], None]) -> None:
        """Takes the Lease when it is free, and renews it, until it is cancelled.

        ``changed`` is called when another one leads than before, as far as this process knows.
        """
        told = None
        while True:
            with contextlib.suppress(ApiError, TimeoutError):  # a leader that can't renew stops by itself
                async with asyncio.timeout(TRY_SECONDS):
                    await self.try_once()
            if told != (self.leads, self.holder):
                told = (self.leads, self.holder)
                changed()
            await asyncio.sleep(RENEW_SECONDS * random.uniform(0.75, 1.0))

    async def try_once(self) -> None:
        """Takes or renews the Lease if this process may.

        Raises:
            ApiError: If the cluster refuses it, or can't be reached.
        """
        began = self._clock()
        lease = await find(self._api, f"{self._path}/{self._name}")
        if lease is not None:
            held = held_of(lease)
            if held != self._seen:
                self._seen, self._seen_at = held, self._clock()
            self.holder = held.holder
            if not held.is_free(self._identity, self._clock() - self._seen_at):
                self._leads_until = 0.0
                return
        if await self._write(lease, self._identity):
            self.holder = self._identity
            self._leads_until = began + LEAD_SECONDS

    async def release(self) -> None:
        """Gives the Lease back, if this process has it, so that another one takes it at once."""
        if not self.leads:
            return
        self._leads_until = 0.0
        with contextlib.suppress(ApiError, TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                lease = await find(self._api, f"{self._path}/{self._name}")
                if lease is not None and held_of(lease).holder == self._identity:
                    await self._write(lease, "")

    async def _write(self, lease: Mapping[str, Any] | None, holder: str) -> bool:
        """Writes the holder; returns False if another process has written meanwhile."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": holder, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
        try:
            if lease is None:
                made = {"metadata": {"name": self._name}, "spec": {**spec, "acquireTime": now, "leaseTransitions": 0}}
                await self._api.request("POST", self._path, made)
            else:
                held = held_of(lease)
                if holder and held.holder != holder:
                    spec |= {"acquireTime": now, "leaseTransitions": held.transitions + 1}
                changed = {**lease, "spec": {**(lease.get("spec") or {}), **spec}}
                await self._api.request("PUT", f"{self._path}/{self._name}", changed)
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            return False
        return True
