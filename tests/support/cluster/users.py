"""The users of a launcher and of its nodes, where these are different ones."""

from __future__ import annotations

NODE = 65532
ROOT = {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}}
OTHER = {"runAsNonRoot": True, "runAsUser": NODE, "runAsGroup": NODE, "seccompProfile": {"type": "RuntimeDefault"}}
