"""The protocol between members and the coordinator: messages, authentication, and a light client."""

from __future__ import annotations

from elastic_launcher.control.auth import PROTOCOL_VERSION
from elastic_launcher.control.client import ControlClient, ControlRefused, ControlUnreachable

__all__ = ["PROTOCOL_VERSION", "ControlClient", "ControlRefused", "ControlUnreachable"]
