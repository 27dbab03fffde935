"""The orders that the coordinator gives to members, and the reports that they send back, as plain JSON objects.

Each is a frozen dataclass whose ``KIND`` is the object's ``kind``. Fields that are not known are left out when read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Message:
    """What all orders and reports share: their form on the wire."""

    KIND: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns the message as a JSON object."""
        content = {one.name: _to_json(getattr(self, one.name)) for one in fields(self)}
        return {"kind": self.KIND, **content}


@dataclass(frozen=True, slots=True)
class Form(Message):
    """Order: build the group of a formation in the background and swap to it at the next boundary.

    Attributes:
        formation: Number of this attempt; names the store prefix ``formation/F``.
        generation: What the formation becomes when it is complete.
        mode: ``start``, ``grow``, ``shrink`` or ``recover``.
        members: All members of the new group, in rank order.
        joiners: Those of them that get their state from another.
        leavers: Members that leave at the boundary; the order is sent to them too.
        sources: Receiver -> the member that sends it its state.
        store: ``host:port`` of the TCPStore in which the group meets.
        timeout: Seconds within which the group must stand.
        cause: ``start``, ``hint``, ``notice`` or ``failure``.
    """

    KIND: ClassVar[str] = "form"
    formation: int
    generation: int
    mode: str
    members: tuple[int, ...]
    joiners: tuple[int, ...]
    leavers: tuple[int, ...]
    sources: Mapping[int, int]
    store: str
    timeout: float
    cause: str


@dataclass(frozen=True, slots=True)
class Abandon(Message):
    """Order: drop the pending group of a formation; if it is the current group already, cut it and go to recovery.

    Attributes:
        formation: Its number.
        left: The members that are left of it after a loss, in rank order, as far as is known; else empty.
    """

    KIND: ClassVar[str] = "abandon"
    formation: int
    left: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class End(Message):
    """Order: leave with ``SystemExit(0)``; the job is over, or this member is not wanted any more.

    With ``at_once``, the process ends without another statement of the script: the others go on without it already.
    """

    KIND: ClassVar[str] = "end"
    reason: str
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Fail(Message):
    """Order: leave at once; ``failed`` is false where the job was stopped, and nothing is wrong."""

    KIND: ClassVar[str] = "fail"
    message: str
    failed: bool = True


@dataclass(frozen=True, slots=True)
class Save(Message):
    """Order: save a checkpoint at the next boundary; with ``halt``, train no further, and wait for the end there.

    With ``at_once``, the step that runs is dropped, and what was reached before it is saved. ``saver`` names the member
    that saves where the one that was to do so is gone.
    """

    KIND: ClassVar[str] = "save"
    halt: bool = False
    at_once: bool = False
    saver: int = 0


@dataclass(frozen=True, slots=True)
class GoOn(Message):
    """Order: train on after all; what the training was to stand still for is put off."""

    KIND: ClassVar[str] = "go_on"


@dataclass(frozen=True, slots=True)
class Warm(Message):
    """Report: rehearsed, and waiting for admission. The fingerprint must be equal among all members.

    ``wait`` counts how often it has begun to wait in another loop of its script, from 1.
    """

    KIND: ClassVar[str] = "warm"
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    wait: int = 0


@dataclass(frozen=True, slots=True)
class Formed(Message):
    """Report: the formation's group stands at this member."""

    KIND: ClassVar[str] = "formed"
    formation: int


@dataclass(frozen=True, slots=True)
class FormFailed(Message):
    """Report: the formation's group could not be built at this member.

    ``moved``: since the training is in another loop of the script than the one in which those that join wait. A joiner
    that goes there says by ``wait`` which of its waits it has given up.
    """

    KIND: ClassVar[str] = "form_failed"
    formation: int
    error: str = ""
    moved: bool = False
    wait: int = 0


@dataclass(frozen=True, slots=True)
class Active(Message):
    """Report: the first step on the formation's group was completed.

    Attributes:
        formation: Its number.
        first_step: First step whose samples are divided among all its members.
        step: Optimizer steps done over the whole training.
        epoch: The epoch of the next step.
        pause_seconds: How long training stood still at this member.
        phase: Which `job.epochs` of the script the epoch is of, from 0.
    """

    KIND: ClassVar[str] = "active"
    formation: int
    first_step: int
    step: int = 0
    epoch: int = 0
    pause_seconds: float = 0.0
    phase: int = 0


@dataclass(frozen=True, slots=True)
class Left(Message):
    """Report: a leaver leaves now, after this many steps."""

    KIND: ClassVar[str] = "left"
    step: int


@dataclass(frozen=True, slots=True)
class Progress(Message):
    """Report: where training stands, from rank 0, at most once a second and at each epoch's end."""

    KIND: ClassVar[str] = "progress"
    step: int
    epoch: int
    loss: float | str | None = None
    samples_per_second: float | None = None
    steps_per_epoch: int | None = None
    epochs: int | None = None
    total_steps: int | None = None
    samples: int | None = None
    phase: int = 0


@dataclass(frozen=True, slots=True)
class Log(Message):
    """Report: the values that the script of rank ``rank`` gave to ``job.log``; several ranks may log the same ones."""

    KIND: ClassVar[str] = "log"
    step: int
    rank: int
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StepFailed(Message):
    """Report: a step broke off on this formation's group; the member has done ``step`` steps and waits to recover."""

    KIND: ClassVar[str] = "step_failed"
    formation: int
    step: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class StepRedone(Message):
    """Report: a step that broke off has been done again."""

    KIND: ClassVar[str] = "step_redone"
    step: int


@dataclass(frozen=True, slots=True)
class Saved(Message):
    """Report: a checkpoint is there.

    Attributes:
        step: Optimizer steps that it holds.
        path: Its folder.
        bytes: Of all its files.
        held_seconds: How long the training waited for it.
        seconds: How long it took.
    """

    KIND: ClassVar[str] = "saved"
    step: int
    path: str
    bytes: int
    held_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class SaveFailed(Message):
    """Report: a checkpoint could not be written; the training goes on."""

    KIND: ClassVar[str] = "save_failed"
    step: int
    message: str


@dataclass(frozen=True, slots=True)
class Halted(Message):
    """Report: the training stands still after this many steps; ``saved``: what can be saved of it is saved.

    Who is to save and could not tells so without ``saved``, and tries again.
    """

    KIND: ClassVar[str] = "halted"
    step: int
    saved: bool = True


@dataclass(frozen=True, slots=True)
class Failed(Message):
    """Report: an exception ended the script, or the library found an error that the user must see.

    Attributes:
        message: What is wrong.
        traceback: Where.
        step: Optimizer steps that this rank had done.
    """

    KIND: ClassVar[str] = "failed"
    message: str
    traceback: str = ""
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Done(Message):
    """Report: the training loop is over on this member; the script may go on (to save the model, say).

    ``phase`` is which `job.epochs` of the script has ended, from 0.
    """

    KIND: ClassVar[str] = "done"
    step: int
    samples: int | None = None
    reason: str | None = None
    phase: int = 0


@dataclass(frozen=True, slots=True)
class Again(Message):
    """Report: the script trains again, in another `job.epochs`.

    Attributes:
        phase: Which one, from 1.
        step: Optimizer steps done.
        sums: What sums over ranks came to before it, for those that begin with the script's first line.
    """

    KIND: ClassVar[str] = "again"
    phase: int
    step: int
    sums: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Summed(Message):
    """Report: what sums over ranks came to between training loops, which joiners skip."""

    KIND: ClassVar[str] = "summed"
    sums: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ended(Message):
    """Report: the script ends. ``done`` is false where that is before the last step."""

    KIND: ClassVar[str] = "ended"
    step: int
    done: bool
    samples: int | None = None


MARKER = re.compile(r"::elastic generation=(?P<generation>\d+) rank=(?P<rank>\d+) world_size=\d+::")
"""What a rank writes into its log where it becomes a rank of another generation."""
FAREWELLS = ("elastic-launcher: the job failed: ", "elastic-launcher: the job ends: ")
"""How the line begins in which a rank's log says why the job ended; on the screen the launcher's last line says it."""

ORDERS: Mapping[str, type[Message]] = {one.KIND: one for one in (Form, Abandon, Save, GoOn, End, Fail)}
REPORTS: Mapping[str, type[Message]] = {
    one.KIND: one
    for one in (
        *(Warm, Formed, FormFailed, Active, Left, Progress, Log),
        *(StepFailed, StepRedone, Saved, SaveFailed, Halted, Failed, Done, Again, Summed, Ended),
    )
}

_INT, _FLOAT = (int,), (int, float)
_TYPES: Mapping[str, tuple[type, ...]] = {  # by the annotation, as it is written above
    "int": _INT,
    "float": _FLOAT,
    "str": (str,),
    "bool": (bool,),
    "int | None": (*_INT, type(None)),
    "float | None": (*_FLOAT, type(None)),
    "float | str | None": (*_FLOAT, str, type(None)),
    "str | None": (str, type(None)),
    "tuple[int, ...]": (list, tuple),
    "Mapping[str, Any]": (dict,),
    "Mapping[int, int]": (dict,),
}


def order_from_dict(content: Mapping[str, Any]) -> Message:
    """Returns the order that a JSON object stands for.

    Raises:
        ValueError: If it is none; the message names the field.
    """
    return _from_dict(ORDERS, "order", content)


def report_from_dict(content: Mapping[str, Any]) -> Message:
    """Returns the report that a JSON object stands for.

    Raises:
        ValueError: If it is none; the message names the field.
    """
    return _from_dict(REPORTS, "report", content)


def _from_dict(known: Mapping[str, type[Message]], what: str, content: Mapping[str, Any]) -> Message:
    kind = content.get("kind")
    if not isinstance(kind, str) or kind not in known:
        raise ValueError(f"{what} of unknown kind {kind!r}; known are {', '.join(known)}")
    values: dict[str, Any] = {}
    for one in fields(known[kind]):
        if one.name in content:
            values[one.name] = _from_json(f"{what} {kind}: {one.name}", str(one.type), content[one.name])
        elif one.default is MISSING and one.default_factory is MISSING:
            raise ValueError(f"{what} {kind}: {one.name} is missing")
    return known[kind](**values)


def _from_json(name: str, annotation: str, value: Any) -> Any:
    allowed = _TYPES[annotation]
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        raise ValueError(f"{name} must be {annotation}, not {value!r}")
    try:
        if isinstance(value, (list, tuple)):
            return tuple(int(one) for one in value)
        if annotation == "Mapping[int, int]" and isinstance(value, dict):
            return {int(one): int(other) for one, other in value.items()}
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be {annotation}, not {value!r}") from error
    return value


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return {str(key): one for key, one in value.items()}
    return value
