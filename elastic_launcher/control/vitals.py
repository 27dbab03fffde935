"""The state of a rank's work, which it sends with each request for orders."""

from __future__ import annotations

from urllib.parse import urlencode

from msgspec import Struct
from msgspec.structs import asdict


class Vitals(Struct, frozen=True):
    """The activity of one rank at a moment, as it reports it.

    Attributes:
        waits: For how many seconds it has waited for the others in an operation; 0 if it does not.
        outside: The same, in a collective operation of the script's own; it is part of `waits`.
        work: Which piece of work inside a step it is at, counted from 1; 0 where its progress is not to be judged.
        since: Seconds since its last step was completed.
        usual: Seconds that a step usually takes; 0 while that is not known.
        own: Seconds of a step that it usually works itself, its waiting left out; 0 while that is not known.
        per_sample: The same for each of its samples.
        steps: How many steps these were taken from.
        turn: The number of the wait that it is in, counted from 1; 0 if it does not wait, or for peers that may be in
            any operation.
        doing: What it waits in, or does otherwise, for messages; ranks that wait in the same operation say the same.
        meets: The kind of operation in which it meets those that it waits for, where they may say another one.
        busy: For how many seconds.
    """

    waits: float = 0.0
    outside: float = 0.0
    work: int = 0
    since: float = 0.0
    usual: float = 0.0
    own: float = 0.0
    per_sample: float = 0.0
    steps: int = 0
    turn: int = 0
    doing: str = ""
    meets: str = ""
    busy: float = 0.0

    def to_query(self) -> str:
        """Returns its encoding in a request's query."""
        return urlencode(asdict(self))


def name_apart(where: str) -> str:
    """Returns a message that says that ranks wait for each other in vain, and where each of them is."""
    return (
        f"ranks wait for each other in different operations: {where}; every rank has to make the same calls in the "
        "same order"
    )
