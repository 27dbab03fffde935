"""Authenticates control requests and their answers: by HMACs with the job's key.

A request's is over its content, sender and growing counter; an answer's over the request's and its own content. An
answer without it is not the coordinator's, but comes from another listener, or from something on the way.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict, deque
from collections.abc import Mapping

PROTOCOL_VERSION = 2
"""What both sides must speak; a request of another version is refused with both numbers named."""

LARGEST_BODY = 16 * 2**20
"""Bytes of a request, at and above which it is refused: a fingerprint names every parameter of a model."""

SENDER_HEADER = "X-Elastic-Sender"
COUNTER_HEADER = "X-Elastic-Counter"
SIGNATURE_HEADER = "X-Elastic-Signature"
VERSION_HEADER = "X-Elastic-Version"
ANSWER_HEADER = "X-Elastic-Answer"

_LONGEST_COUNTER = 20  # digits; nanoseconds since the epoch have 19
_REMEMBERED = 1000  # requests of a channel: one of them that comes again is no clock that was set back
_CHANNELS = 1024  # of which so many are remembered, those of the last requests: most members of a long job are gone


class Refusal(ValueError):
    """A request that is not let in.

    Attributes:
        status: The HTTP status that says why.
        used: The last counter, where only that is wrong: a sender that holds the key may sign again, above it.
        odd: Whether nobody of the job sends such a request, so that somebody should hear of it.
        proven: Whether the sender has proved that it holds the key: only then the answer does so too.
    """

    def __init__(
        self, status: int, message: str, *, used: int | None = None, odd: bool = True, proven: bool = True
    ) -> None:
        super().__init__(message)
        self.status = status
        self.used = used
        self.odd = odd
        self.proven = proven


def sign(key: bytes, method: str, path_with_query: str, body: bytes, sender: str, counter: int) -> str:
    """Returns the signature of one request, as hexadecimal digits of an HMAC-SHA256."""
    head = "\n".join((method, path_with_query, sender, str(counter))).encode()
    return hmac.new(key, head + b"\n" + body, hashlib.sha256).hexdigest()


def signed_headers(
    key: bytes, method: str, path_with_query: str, body: bytes, sender: str, counter: int
) -> dict[str, str]:
    """Returns the headers with which a request is let in."""
    return {
        VERSION_HEADER: str(PROTOCOL_VERSION),
        SENDER_HEADER: sender,
        COUNTER_HEADER: str(counter),
        SIGNATURE_HEADER: sign(key, method, path_with_query, body, sender, counter),
    }


def sign_answer(key: bytes, request: str, status: int, body: bytes) -> str:
    """Returns the signature of the answer to a request, which ``request`` is the signature of."""
    head = "\n".join(("answer", request, str(status))).encode()
    return hmac.new(key, head + b"\n" + body, hashlib.sha256).hexdigest()


def answers(key: bytes, request: str, status: int, body: bytes, signature: str) -> bool:
    """Whether an answer is the coordinator's, and to this very request."""
    return hmac.compare_digest(sign_answer(key, request, status, body).encode(), signature.encode())


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
        self._last: dict[tuple[str, str], int] = {}  # of each channel
        self._recent: OrderedDict[tuple[str, str], deque[int]] = OrderedDict()  # the last ones, growing

    def verify(self, method: str, path_with_query: str, headers: Mapping[str, str], body: bytes) -> str:
        """Returns the sender of a request.

        Raises:
            Refusal: If the version, the signature or the counter is not right.
        """
        sender, counter = headers.get(SENDER_HEADER, ""), headers.get(COUNTER_HEADER, "")
        counted = counter.isascii() and counter.isdigit() and len(counter) <= _LONGEST_COUNTER
        expected = sign(self._key, method, path_with_query, body, sender, int(counter) if counted else -1)
        proven = counted and hmac.compare_digest(expected.encode(), headers.get(SIGNATURE_HEADER, "").encode())
        version = headers.get(VERSION_HEADER, "none")
        if version != str(PROTOCOL_VERSION):
            raise Refusal(
                409,
                f"the request speaks control protocol {version}, the coordinator speaks {PROTOCOL_VERSION}: "
                "install the same version of elastic-launcher on both sides",
                proven=proven,
            )
        if not counted:
            raise Refusal(401, f"{COUNTER_HEADER} must be a whole number", proven=False)
        if not proven:
            raise Refusal(401, "the signature is not this job's", proven=False)
        self._use(sender, channel_of(path_with_query), int(counter))
        return sender

    def sign_answer(self, request: str, status: int, body: bytes) -> str:
        """Returns the signature of the answer to a request, which ``request`` is the signature of."""
        return sign_answer(self._key, request, status, body)

    def _use(self, sender: str, channel: str, counter: int) -> None:
        place = sender, channel
        recent = self._recent.setdefault(place, deque(maxlen=_REMEMBERED))
        self._recent.move_to_end(place)
        if len(self._recent) > _CHANNELS:
            self._recent.popitem(last=False)
        used = self._last.get(place, self._after)
        if counter <= used:
            raise Refusal(401, f"counter {counter} of {sender} was used before", used=used, odd=counter in recent)
        recent.append(counter)
        self._last[place] = counter
