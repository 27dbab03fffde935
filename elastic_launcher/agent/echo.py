"""Copies the ranks' output to the node's own output, for collectors of pods' logs."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence

from elastic_launcher.control.messages import MARKER

_MARK = re.compile(MARKER.pattern.encode())
AGAIN_BYTES = 1 << 20
"""After so much the last mark is repeated: what collects a pod's log keeps its end only, often 10 MiB."""


class Echo:
    """Repeats whole lines of one rank, each after its place on the node."""

    def __init__(self, local_rank: int) -> None:
        self._prefix = f"[local rank {local_rank}] ".encode()
        self._part = b""
        self._mark = b""
        self._unmarked = 0

    def take(self, data: bytes) -> None:
        """Takes the next bytes that the rank wrote."""
        *lines, self._part = (self._part + data).split(b"\n")
        self._write(lines)

    def end(self) -> None:
        """Repeats a last line that has no end."""
        part, self._part = self._part, b""
        self._write([part] if part else [])

    def _write(self, lines: Sequence[bytes]) -> None:
        text = b"".join(self._prefix + line + b"\n" for line in self._marked(lines))
        with contextlib.suppress(OSError):  # no reader: the coordinator gets it all the same
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()

    def _marked(self, lines: Sequence[bytes]) -> Iterator[bytes]:
        for line in lines:
            if match := _MARK.search(line):
                self._mark, self._unmarked = match[0], 0
            elif self._mark and self._unmarked >= AGAIN_BYTES:
                yield self._mark
                self._unmarked = 0
            yield line
            self._unmarked += len(line)
