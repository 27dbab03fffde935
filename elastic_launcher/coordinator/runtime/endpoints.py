"""The addresses at which a coordinator listens and is reached, and what it hands its nodes."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from elastic_launcher.checkpoint.landmark import Landmark

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address of this machine, and what it is called elsewhere; by default its nodes are on this machine too.

    Attributes:
        bind: What is listened at.
        advertised: The host name that nodes get.
        control_port: Of the control API; 0 for any that is free.
        store_port: Of the store in which groups meet; 0 for any that is free.
    """

    bind: str = LOOPBACK
    advertised: str = LOOPBACK
    control_port: int = 0
    store_port: int = 0


HERE = Endpoint()
"""For nodes of this machine."""


@dataclass(frozen=True, slots=True)
class CoordinatorHost:
    """The addresses and files that a site gives its coordinator.

    Attributes:
        where: Where it listens.
        key: The job's key; outlives the coordinator where its nodes can't read a new one.
        code: What nodes run that see none of this machine's files: names and texts, the script first.
        landmark: By which they know the folder of checkpoints; None where these are elsewhere, or nodes are here.
        tells_kinds: Whether nodes within the job's guarantee differ from those above it.
    """

    where: Endpoint = HERE
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    code: Mapping[str, str] = field(default_factory=dict)
    landmark: Landmark | None = None
    tells_kinds: bool = False
