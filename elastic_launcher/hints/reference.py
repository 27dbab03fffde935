"""Parses the ConfigMap that ``--hints`` names, if it names one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from elastic_launcher.options import ConfigError

SCHEME = "configmap/"
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Reference:
    """The reference to a ConfigMap.

    Attributes:
        namespace: Where it is; "" for the launcher's own.
        name: Its name.
    """

    namespace: str
    name: str

    def __str__(self) -> str:
        own = f"ConfigMap {self.name} in the launcher's own namespace"
        return f"ConfigMap {self.namespace}/{self.name}" if self.namespace else own


def parse_reference(text: str) -> Reference | None:
    """Returns which ConfigMap a text names; None where it names a file.

    Raises:
        ConfigError: If it names neither.
    """
    if not text.startswith(SCHEME):
        return None
    parts = text.removeprefix(SCHEME).split("/")
    if len(parts) > 2 or not all(_NAME.fullmatch(part) and len(part) <= 253 for part in parts):
        raise ConfigError(
            f"{text!r} is no place of hints: it must be a file, or configmap/NAME, or configmap/NAMESPACE/NAME"
        )
    return Reference(parts[0] if len(parts) == 2 else "", parts[-1])
