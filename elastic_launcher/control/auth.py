"""How a control request proves that it comes from the job: an HMAC over its content, sender and growing counter."""

from __future__ import annotations

import hashlib
import hmac
from collections import deque
from collections.abc import Mapping

PROTOCOL_VERSION = 1
"""What both sides must speak; a request of another version is refused with both numbers named."""

SENDER_HEADER = "X-Elastic-Sender"
COUNTER_HEADER = "X-Elastic-Counter"
SIGNATURE_HEADER = "X-Elastic-Signature"
VERSION_HEADER = "X-Elastic-Version"

_LONGEST_COUNTER = 20  # digits; nanoseconds since the epoch have 19
_REMEMBERED = 1000  # requests of a channel: one of them that comes again is no clock that was set back


class Refusal(ValueError):
    """A request that is not let in.

    Attributes:
        status: The HTTP status that says why.
        used: The last counter, where only that is wrong: a sender that holds the key may sign again, above it.
        odd: Whether nobody of the job sends such a request, so that somebody should hear of it.
    """

    def __init__(self, status: int, message: str, *, used: int | None = None, odd: bool = True) -> None:
        super().__init__(message)
        self.status = status
        self.used = used
        self.odd = odd


def sign(key: bytes, method: str, path_with_query: str, body: bytes, sender: str, counter: int) -> str:
    """Returns the signature of one request, as hexadecimal digits of an HMAC-SHA256."""
    head = "\n".join((method, path_with_query, sender, str(counter))).encode()
    return hmac.new(key, head + b"\n" + body, hashlib.sha256).hexdigest()


def channel_of(path_with_query: str) -> str:
    """Returns the path without its query: what counters are kept apart by."""
    return path_with_query.partition("?")[0]


class Verifier:
    """Lets signed requests in, each once.

    Args:
        key: The job's key.
        after: Counters up to this one count as used: requests to an earlier coordinator of the same key had them.
    """

    def __init__(self, key: bytes, after: int = -1) -> None:
        self._key = key
        self._after = after
        self._counters: dict[tuple[str, str], deque[int]] = {}  # the last ones of each channel, growing

    def verify(self, method: str, path_with_query: str, headers: Mapping[str, str], body: bytes) -> str:
        """Returns the sender of a request.

        Raises:
            Refusal: If the version, the signature or the counter is not right.
        """
        version = headers.get(VERSION_HEADER, "none")
        if version != str(PROTOCOL_VERSION):
            raise Refusal(
                409,
                f"the request speaks control protocol {version}, the coordinator speaks {PROTOCOL_VERSION}: "
                "install the same version of elastic-launcher on both sides",
            )
        sender = headers.get(SENDER_HEADER, "")
        counter = headers.get(COUNTER_HEADER, "")
        if not (counter.isascii() and counter.isdigit() and len(counter) <= _LONGEST_COUNTER):
            raise Refusal(401, f"{COUNTER_HEADER} must be a whole number")
        expected = sign(self._key, method, path_with_query, body, sender, int(counter))
        if not hmac.compare_digest(expected.encode(), headers.get(SIGNATURE_HEADER, "").encode()):
            raise Refusal(401, "the signature is not this job's")
        self._use(sender, channel_of(path_with_query), int(counter))
        return sender

    def _use(self, sender: str, channel: str, counter: int) -> None:
        counters = self._counters.setdefault((sender, channel), deque(maxlen=_REMEMBERED))
        used = counters[-1] if counters else self._after
        if counter <= used:
            raise Refusal(401, f"counter {counter} of {sender} was used before", used=used, odd=counter in counters)
        counters.append(counter)
