"""The introduction of a member to a new coordinator in a takeover: all that the one before knew of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elastic_launcher.control.messages import Form, Message, order_from_dict, report_from_dict


@dataclass(frozen=True, slots=True)
class Introduction:
    """The state of a member.

    Attributes:
        pid: Its process.
        step: Optimizer steps that it has done.
        epoch: Where they are, within their phase.
        samples: Samples that they used.
        current: The formation that it changed to last; None before its first, and where that one was given up.
        pending: Later ones that were ordered, and not given up.
        standing: Numbers of those of them whose group is complete.
        highest: The highest number of a formation that it has ever seen.
        reports: What it has reported of itself that still holds, in order.
        halting: Whether it was ordered to stop after a checkpoint.
        phase: Which `job.epochs` of the script they are in, from 0.
        sums: What sums over ranks came to, for those that begin with the script's first line.
    """

    pid: int
    step: int = 0
    epoch: int = 0
    samples: int = 0
    current: Form | None = None
    pending: tuple[Form, ...] = ()
    standing: tuple[int, ...] = ()
    highest: int = 0
    reports: tuple[Message, ...] = ()
    halting: bool = False
    phase: int = 0
    sums: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Returns the introduction as a JSON object."""
        return {
            "pid": self.pid,
            "step": self.step,
            "epoch": self.epoch,
            "samples": self.samples,
            "current": None if self.current is None else self.current.to_dict(),
            "pending": [order.to_dict() for order in self.pending],
            "standing": list(self.standing),
            "highest": self.highest,
            "reports": [report.to_dict() for report in self.reports],
            "halting": self.halting,
            "phase": self.phase,
            "sums": dict(self.sums),
        }

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> Introduction:
        """Returns the introduction in a JSON object.

        Raises:
            ValueError: If it is none; the message names what is wrong.
        """
        numbers = {name: content.get(name) for name in ("pid", "step", "phase", "epoch", "samples", "highest")}
        for name, value in numbers.items():
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"introduction: {name} must be a whole number, not {value!r}")
        current = content.get("current")
        return Introduction(
            **numbers,  # type: ignore[arg-type]  # checked above
            current=None if current is None else _order(current),
            pending=tuple(_order(one) for one in _list(content, "pending")),
            standing=tuple(int(one) for one in _list(content, "standing")),
            reports=tuple(report_from_dict(one) for one in _list(content, "reports")),
            halting=bool(content.get("halting")),
            sums=_dict(content, "sums"),
        )


def _order(content: Any) -> Form:
    order = order_from_dict(content) if isinstance(content, dict) else None
    if not isinstance(order, Form):
        raise ValueError(f"introduction: {content!r} is no order to form a group")
    return order


def _list(content: Mapping[str, Any], name: str) -> Sequence[Any]:
    found = content.get(name, [])
    if not isinstance(found, list):
        raise ValueError(f"introduction: {name} must be a list, not {found!r}")
    return found


def _dict(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = content.get(name, {})
    if not isinstance(found, dict):
        raise ValueError(f"introduction: {name} must be an object, not {found!r}")
    return found
