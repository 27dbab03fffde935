"""A tracker of Accelerate that writes a line for each call, with the process that made it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from accelerate.tracking import GeneralTracker


class Lines(GeneralTracker):  # type: ignore[misc] # accelerate is not followed
    """Appends to a file."""

    name = "lines"
    requires_logging_directory = False

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def _write(self, what: str, **values: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"process": os.getpid(), "what": what, **values}) + "\n")

    @property
    def tracker(self) -> Path:
        return self.path

    def start(self) -> None:
        self._write("start")

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self._write("configuration", **values)

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        self._write("log", step=step, **values)

    def finish(self) -> None:
        self._write("finish")


def read_lines(path: Path, what: str = "") -> list[dict[str, Any]]:
    """Returns the lines, those of one kind alone where that is named."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if what in ("", line["what"])]
