"""The orders of the coordinator to members, and the members' reports.

Each is a JSON object whose ``kind`` is the class's name in small letters, or its ``tag``. Fields that are not known are
left out when read. Every other request and answer of the control API is in `control.requests`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar, overload

from msgspec import Struct, ValidationError, convert, to_builtins

T = TypeVar("T")


def _plain(value: object) -> object:
    """Returns a number, text or mapping of another class, such as NumPy's float64, as a plain one."""
    for kind in (float, int, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} can't be sent")


def name_on_wire(name: str) -> str:
    """Returns what a class of messages is called on the wire."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


class Message(Struct, frozen=True, tag_field="kind", tag=name_on_wire):
    """What all orders and reports share."""


class Form(Message, frozen=True):
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
        timeout: Seconds within which the group must form.
        cause: ``start``, ``hint``, ``notice`` or ``failure``.
    """

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


class Abandon(Message, frozen=True):
    """Order: drop the pending group of a formation; if it is the current group already, cut it and go to recovery.

    Attributes:
        formation: Its number.
        left: The members that are left of it after a loss, in rank order, if known; else empty.
    """

    formation: int
    left: tuple[int, ...] = ()


class End(Message, frozen=True):
    """Order: leave with ``SystemExit(0)``; the job is over, or this member is not wanted any more.

    With ``at_once``, the process ends without another statement of the script: the others go on without it already.
    """

    reason: str
    at_once: bool = False


class Fail(Message, frozen=True):
    """Order: leave at once; ``failed`` is false where the job was stopped, and nothing is wrong."""

    message: str
    failed: bool = True


class Save(Message, frozen=True):
    """Order: save a checkpoint at the next boundary; with ``halt``, train no further, and wait for the end there.

    With ``at_once``, the step that runs is dropped, and what was reached before it is saved. ``saver`` names the member
    that saves where the one that was to do so is gone.
    """

    halt: bool = False
    at_once: bool = False
    saver: int = 0


class GoOn(Message, frozen=True):
    """Order: train on after all; the reason to halt is put off."""


class Warm(Message, frozen=True):
    """Report: rehearsed, and waiting for admission. The fingerprint must be equal among all members.

    ``wait`` counts how often it has begun to wait in another loop of its script, from 1.
    """

    fingerprint: Mapping[str, Any] = {}
    wait: int = 0


class Formed(Message, frozen=True):
    """Report: the formation's group is complete at this member."""

    formation: int


class FormFailed(Message, frozen=True):
    """Report: the formation's group could not be built at this member.

    ``moved``: since the training is in another loop of the script than the one in which those that join wait. A joiner
    that goes there says by ``wait`` which of its waits it has given up.
    """

    formation: int
    error: str = ""
    moved: bool = False
    wait: int = 0


class Active(Message, frozen=True):
    """Report: the first step on the formation's group was completed.

    Attributes:
        formation: Its number.
        first_step: First step whose samples are divided among all its members.
        step: Optimizer steps done over the whole training.
        epoch: The epoch of the next step.
        pause_seconds: How long training stood still at this member.
        phase: Which `job.epochs` of the script the epoch is of, from 0.
    """

    formation: int
    first_step: int
    step: int = 0
    epoch: int = 0
    pause_seconds: float = 0.0
    phase: int = 0


class Left(Message, frozen=True):
    """Report: a leaver leaves now, after this many steps."""

    step: int


class Progress(Message, frozen=True):
    """Report: the progress of the training, from rank 0, at most once a second and at each epoch's end.

    Where the batch adapts, ``epochs`` are statistical epochs, of which so many are done (``statistical_epoch``).
    ``adaptive`` has the values of an adaptive batch, by name (`torch.step.adaptive_values`).
    """

    step: int
    epoch: int
    loss: float | str | None = None
    samples_per_second: float | None = None
    steps_per_epoch: int | None = None
    epochs: int | None = None
    total_steps: int | None = None
    samples: int | None = None
    phase: int = 0
    adaptive: Mapping[str, float] | None = None
    statistical_epoch: float | None = None


class Log(Message, frozen=True):
    """Report: the values that the script of rank ``rank`` gave to ``job.log``; several ranks may log the same ones."""

    step: int
    rank: int
    values: Mapping[str, Any]


class StepFailed(Message, frozen=True):
    """Report: a step broke off on this formation's group; the member has done ``step`` steps and waits to recover."""

    formation: int
    step: int
    error: str = ""


class StepRedone(Message, frozen=True):
    """Report: a step that broke off has been done again."""

    step: int


class BatchChanged(Message, frozen=True):
    """Report: the global batch has changed, and a step with the new one is complete; from rank 0.

    Attributes:
        entries: The batch schedule up to that step: first step and global batch of each entry.
        gains: How many steps of the first batch a step of an entry is worth, by its first step: over all parameters,
            then for each parameter group. The learning rates follow these.
        noise_scale: The gradient noise scale at the decision, in samples; None where not known.
        reason: Why, in words; "" where not known.
        learning_rate_rule: The name of the rule by which learning rates follow the batch.
    """

    entries: tuple[tuple[int, int], ...]
    gains: Mapping[int, tuple[float, ...]] = {}
    noise_scale: float | None = None
    reason: str = ""
    learning_rate_rule: str = ""


class MicroBatchLowered(Message, frozen=True):
    """Report: a micro-batch did not fit into memory, and this member's are smaller from now on.

    Attributes:
        step: The step in which that was; of a rehearsal, the one that was rehearsed.
        device: The kind of the member's device. Members with the same kind that join later begin with ``new``.
        old: Samples of the micro-batch that did not fit.
        new: Most samples from now on.
        leaves: Whether the member's process ends for it, to be replaced.
    """

    step: int
    device: str
    old: int
    new: int
    leaves: bool = False


class StepTimes(Message, frozen=True):
    """Report: the steps' times by configuration, as far as they are new; from rank 0, for goodput by size.

    Attributes:
        step: Optimizer steps done.
        batch: The global batch now.
        times: Machines, ranks, samples of the largest micro-batch, micro-batches, seconds of a step, seconds of a
            micro-batch (None where not known), and how many steps were timed; the times are medians.
        bounds: The fields of `adaptive.bounds.Bounds`.
        noise: Variance and square of `adaptive.goodput.GradientNoise`; None where not known.
    """

    step: int
    batch: int
    times: tuple[tuple[int, int, int, int, float, float | None, int], ...]
    bounds: Mapping[str, int | bool]
    noise: tuple[float, float] | None = None


class Saved(Message, frozen=True):
    """Report: a checkpoint is there, of so many bytes; the training waited ``held_seconds`` for it."""

    step: int
    path: str
    bytes: int
    held_seconds: float
    seconds: float


class SaveFailed(Message, frozen=True):
    """Report: a checkpoint could not be written; the training goes on."""

    step: int
    message: str


class Halted(Message, frozen=True):
    """Report: the training has halted after this many steps; ``saved``: what can be saved of it is saved.

    A saver that could not save reports without ``saved``, and tries again.
    """

    step: int
    saved: bool = True


class Failed(Message, frozen=True):
    """Report: an exception ended the script, or the library found an error that the user must see, at a step."""

    message: str
    traceback: str = ""
    step: int | None = None


class Done(Message, frozen=True):
    """Report: the training loop is over on this member; the script may go on (to save the model, say).

    ``phase`` is which `job.epochs` of the script has ended, from 0.
    """

    step: int
    samples: int | None = None
    reason: str | None = None
    phase: int = 0


class PhaseStarted(Message, frozen=True, tag="again"):
    """Report: the script trains again, in another `job.epochs`.

    Attributes:
        phase: Which one, from 1.
        step: Optimizer steps done.
        sums: What sums over ranks came to before it, for those that begin with the script's first line.
    """

    phase: int
    step: int
    sums: Mapping[str, Any] = {}


class Summed(Message, frozen=True):
    """Report: what sums over ranks came to between training loops, which joiners skip."""

    sums: Mapping[str, Any]


class Ended(Message, frozen=True):
    """Report: the script ends. ``done`` is false where that is before the last step."""

    step: int
    done: bool
    samples: int | None = None


Order = Form | Abandon | Save | GoOn | End | Fail
"""What the coordinator asks of a member."""
Report = (
    Warm
    | Formed
    | FormFailed
    | Active
    | Left
    | Progress
    | Log
    | StepFailed
    | StepRedone
    | BatchChanged
    | MicroBatchLowered
    | StepTimes
    | Saved
    | SaveFailed
    | Halted
    | Failed
    | Done
    | PhaseStarted
    | Summed
    | Ended
)
"""The reports of a member to the coordinator."""

MARKER = re.compile(r"::elastic generation=(?P<generation>\d+) rank=(?P<rank>\d+) world_size=\d+::")
"""What a rank writes into its log where it becomes a rank of another generation."""
FAREWELLS = ("elastic-launcher: the job failed: ", "elastic-launcher: the job ends: ")
"""How the line begins in which a rank's log says why the job ended; on the screen the launcher's last line says it."""


def encode(message: object) -> Any:
    """Returns a message as values for JSON."""
    return to_builtins(message, str_keys=True, enc_hook=_plain)


@overload
def decode(content: object, kind: type[T], what: str, *, texts: bool = False) -> T: ...
@overload
def decode(content: object, kind: object, what: str, *, texts: bool = False) -> Any: ...
def decode(content: object, kind: Any, what: str, *, texts: bool = False) -> Any:
    """Returns the message in values from JSON.

    Args:
        content: The values.
        kind: The message's type; for a union, the object's ``kind`` selects one.
        what: Its name in the error.
        texts: Whether numbers may be given as text, as in a query.

    Raises:
        ValueError: If it is none; the error names the field, and what was expected there.
    """
    try:
        return convert(content, kind, str_keys=True, strict=not texts)
    except ValidationError as error:
        raise ValueError(f"{what}: {error}") from error
