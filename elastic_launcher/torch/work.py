"""Operations of gloo under way, and how they are waited for: a wait ends soon after their group was cut, whatever gloo
does.

When a connection ends, gloo tells nobody of the message that is half written or half read at that moment (in its
``Pair::signalException``): whoever waits for one, a rank that gives a large state to one that dies, say, would wait
until the time is over.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from elastic_launcher.torch.nccl import HostWork

if TYPE_CHECKING:
    from elastic_launcher.torch.group import Group

LOOK_SECONDS = 0.5  # between two looks at whether a group was cut; an operation that ends is seen at once


class GroupError(RuntimeError):
    """A process group could not be formed, or lost a peer, or was cut."""


class Collective:
    """An operation of all ranks of a gloo group; it ends by itself when the group's time is over.

    Args:
        raw: The backend's work.
        forsaken: Says whether the group was cut so long ago that its operations ought to have ended.
    """

    def __init__(self, raw: Any, forsaken: Callable[[], bool]) -> None:
        self._raw, self._forsaken = raw, forsaken

    def wait(self, timeout: timedelta) -> None:
        """Waits for the end.

        Args:
            timeout: Not used: the backend knows the group's.

        Raises:
            RuntimeError: If it failed.
        """
        while not self._raw.is_completed():
            with contextlib.suppress(RuntimeError):  # the time is over, or it failed, which is said below
                self._raw.wait(timedelta(seconds=LOOK_SECONDS))
            if self._forsaken() and not self._raw.is_completed():
                raise RuntimeError("gloo has not ended it")
        self._raw.wait()

    def is_completed(self) -> bool:
        """Whether it has ended, well or badly."""
        return bool(self._raw.is_completed())


class Message:
    """A send or a receive of a gloo group: nothing of it goes on once its wait has ended by itself.

    Args:
        raw: The backend's work, which can't be waited for in parts: its group is lost when the time of a wait is over.
        forsaken: See `Collective`.
    """

    def __init__(self, raw: Any, forsaken: Callable[[], bool]) -> None:
        self._raw, self._forsaken = raw, forsaken
        self._begun, self._ended = False, threading.Event()
        self._error: RuntimeError | None = None

    def wait(self, timeout: timedelta) -> None:
        """Waits for the end.

        Args:
            timeout: After which it fails.

        Raises:
            RuntimeError: If it failed.
        """
        self._begun = True
        threading.Thread(target=self._wait, args=(timeout,), name="elastic-message", daemon=True).start()
        while not self._ended.wait(LOOK_SECONDS):
            if self._forsaken():
                raise RuntimeError("gloo has not ended it")
        if self._error is not None:
            raise self._error

    def is_completed(self) -> bool:
        """Whether it has ended, well or badly."""
        return self._ended.is_set() or (not self._begun and self._forsaken())

    def _wait(self, timeout: timedelta) -> None:
        try:
            self._raw.wait(timeout)
        except RuntimeError as error:
            self._error = error
        self._ended.set()


class Work:
    """An operation under way.

    Args:
        group: Its group; None if there is nothing to wait for.
        raw: The backend's work, wrapped: how it is waited for.
        tensors: The memory it reads and writes; kept until it has ended well, or its group is gone.
    """

    def __init__(
        self, group: Group | None, raw: Collective | Message | HostWork | None, tensors: Sequence[torch.Tensor]
    ) -> None:
        self._group, self._raw = group, raw
        self._failed = ""
        self.tensors = tensors

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the end; once it has ended, returns (or raises) the same again.

        Args:
            timeout: Seconds; None leaves it to the group's own.

        Raises:
            GroupError: If a peer was lost, the group was cut, or the time is over.
        """
        if self._failed:
            raise GroupError(self._failed)
        if self._group is None or self._raw is None:
            return
        try:
            self._raw.wait(timedelta(seconds=timeout or self._group.timeout))
        except RuntimeError as error:
            found = self._group.explain(error)
            self._failed = str(found)
            if self._raw.is_completed():
                self._raw = None  # it holds the group's threads, and this the traceback
            raise found from error
        self._group.forget(self)
        self._group = self._raw = None
        self.tensors = ()

    def has_ended(self) -> bool:
        """Whether nothing of it goes on, well or badly."""
        raw = self._raw
        return raw is None or raw.is_completed()
