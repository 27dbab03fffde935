"""Waits for operations of gloo: a wait ends soon after its group was aborted, even if gloo never returns.

When a connection ends, gloo reports no error for the message that is half written or half read at that moment (in its
``Pair::signalException``): whoever waits for one, a rank that gives a large state to one that dies, say, would wait
until the time is over. Once gloo has closed all connections of a group, what has not ended never will, and nothing
writes into its memory any more.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch

from elastic_launcher.torch.collectives.nccl import HostWork
from elastic_launcher.torch.collectives.threads import start_thread

LOOK_SECONDS = 0.1  # between two looks at a group; an operation that ends is seen at once
FEWEST_LOOKS = 2  # at a group that was cut, before its operations are given up: gloo's own word comes within one
MOST_LOOKS = 20  # the same where a connection stays open: not a time, in which this process may have been frozen


class GroupError(RuntimeError):
    """A process group could not be formed, or lost a peer, or was cut."""


class Cuttable(Protocol):
    """A process group, as its operations know it; see `collectives.group.Group`."""

    timeout: float

    @property
    def is_cut(self) -> bool:
        """Whether it was cut."""

    def is_dead(self) -> bool:
        """Whether gloo has closed all its connections."""

    def explain(self, error: RuntimeError) -> GroupError:
        """Returns what an operation's error means."""

    def forget(self, work: Work) -> None:
        """Lets go of an operation that has ended."""


class _Looks:
    """Decides when an operation of a group is given up; asked each `LOOK_SECONDS`."""

    def __init__(self, group: Cuttable) -> None:
        self._group, self._number = group, 0

    def are_enough(self) -> bool:
        """Whether the group was cut and gloo will not end the operation."""
        if not self._group.is_cut:
            return False
        self._number += 1
        return self._number >= MOST_LOOKS or (self._number >= FEWEST_LOOKS and self._group.is_dead())


class Collective:
    """An operation of all ranks of a gloo group; the backend's work ends by itself when the group's time is over."""

    def __init__(self, raw: Any, group: Cuttable) -> None:
        self._raw, self._group = raw, group

    def wait(self, timeout: timedelta) -> None:
        """Waits for the end.

        Args:
            timeout: Not used: the backend knows the group's.

        Raises:
            RuntimeError: If it failed.
        """
        looks = _Looks(self._group)
        while not self._raw.is_completed():
            with contextlib.suppress(RuntimeError):  # a time-out or a failure, which is raised below
                self._raw.wait(timedelta(seconds=LOOK_SECONDS))
            if not self._raw.is_completed() and looks.are_enough():
                raise RuntimeError("gloo has not ended it")
        self._raw.wait()

    def is_completed(self) -> bool:
        """Whether it has ended, well or badly."""
        return bool(self._raw.is_completed())


class Message:
    """A send or a receive of a gloo group: nothing of it goes on once its wait has ended by itself.

    The backend's work can't be waited for in parts: its group is lost when the time of a wait is over.
    """

    def __init__(self, raw: Any, group: Cuttable) -> None:
        self._raw, self._group = raw, group
        self._begun, self._ended = False, threading.Event()
        self._error: RuntimeError | None = None

    def wait(self, timeout: timedelta) -> None:
        """Waits for the end, so long at most.

        Raises:
            RuntimeError: If it failed.
        """
        thread = start_thread("elastic-message", self._wait, timeout)
        self._begun = True
        looks = _Looks(self._group)
        while not self._ended.wait(LOOK_SECONDS):
            if looks.are_enough():
                thread.is_given_up = True
                raise RuntimeError("gloo has not ended it")
        if self._error is not None:
            raise self._error

    def is_completed(self) -> bool:
        """Whether it has ended, well or badly; one that nobody waited for has where its group is dead."""
        return self._ended.is_set() or (not self._begun and self._group.is_dead())

    def _wait(self, timeout: timedelta) -> None:
        try:
            self._raw.wait(timeout)
        except RuntimeError as error:
            self._error = error
        finally:
            self._ended.set()


class Work:
    """An operation under way.

    Args:
        group: Its group; None if there is nothing to wait for.
        raw: The backend's work, wrapped: how it is waited for.
        tensors: The memory it reads and writes; kept until it has ended well, or its group is gone.
    """

    def __init__(
        self, group: Cuttable | None, raw: Collective | Message | HostWork | None, tensors: Sequence[torch.Tensor]
    ) -> None:
        self._group, self._raw = group, raw
        self._failed = ""
        self.tensors = tensors

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the end, as long as the group's own time by default; then returns (or raises) the same again.

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
            self._failed = str(self._group.explain(error))
            raise GroupError(self._failed) from error
        self._group.forget(self)
        self._group = self._raw = None
        self.tensors = ()

    def has_ended(self) -> bool:
        """Whether nothing of it goes on, well or badly."""
        raw = self._raw
        return raw is None or raw.is_completed()

    def let_go(self) -> Any:
        """Returns the backend's work of a group that is gone, and forgets it: it would hold the group's threads."""
        raw, self._raw = self._raw, None
        self._failed = self._failed or "its process group was cut"
        return raw
