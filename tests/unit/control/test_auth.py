from __future__ import annotations

import hashlib
import hmac

import pytest

from elastic_launcher.control.auth import (
    COUNTER_HEADER,
    PROTOCOL_VERSION,
    SENDER_HEADER,
    SIGNATURE_HEADER,
    VERSION_HEADER,
    Refusal,
    Verifier,
    answers,
    sign,
    sign_answer,
)

KEY = bytes(range(32))
PATH = "/v1/members/3/orders?after=0&wait=2"


def headers(
    counter: int | str = 1, *, key: bytes = KEY, path: str = PATH, body: bytes = b"", **changed: str
) -> dict[str, str]:
    signature = sign(key, "GET", path, body, "m3", int(counter) if str(counter).isdecimal() else 0)
    return {
        VERSION_HEADER: str(PROTOCOL_VERSION),
        SENDER_HEADER: "m3",
        COUNTER_HEADER: str(counter),
        SIGNATURE_HEADER: signature,
        **{name.replace("_", "-"): value for name, value in changed.items()},
    }


def test_the_signature_is_an_hmac_over_lines() -> None:
    expected = hmac.new(KEY, b"POST\n/v1/x?y=1\nm3\n7\n{}", hashlib.sha256).hexdigest()
    assert sign(KEY, "POST", "/v1/x?y=1", b"{}", "m3", 7) == expected


def test_a_signed_request_is_let_in_and_its_sender_known() -> None:
    assert Verifier(KEY).verify("GET", PATH, headers(), b"") == "m3"


@pytest.mark.parametrize(
    ("method", "path", "sent", "body"),
    [
        ("GET", PATH, headers(key=b"another"), b""),
        ("POST", PATH, headers(), b""),
        ("GET", "/v1/members/4/orders", headers(), b""),
        ("GET", PATH.replace("after=0", "after=1"), headers(), b""),
        ("GET", PATH, headers(), b"{}"),
        ("GET", PATH, headers(X_Elastic_Sender="m4"), b""),
        ("GET", PATH, headers(X_Elastic_Counter="2"), b""),
        ("GET", PATH, headers(X_Elastic_Signature=""), b""),
        ("GET", PATH, headers(X_Elastic_Signature="schlüssel"), b""),
    ],
)
def test_whatever_was_changed_after_signing_is_refused(
    method: str, path: str, sent: dict[str, str], body: bytes
) -> None:
    with pytest.raises(Refusal) as refusal:
        Verifier(KEY).verify(method, path, sent, body)
    assert refusal.value.status == 401
    assert refusal.value.used is None


@pytest.mark.parametrize("counter", ["", "-1", "1.5", "x", "9" * 21, "²"])
def test_a_counter_that_is_no_number_is_refused(counter: str) -> None:
    with pytest.raises(Refusal, match="whole number"):
        Verifier(KEY).verify("GET", PATH, headers(counter), b"")


@pytest.mark.parametrize("again", [5, 4, 1])
def test_a_counter_only_grows(again: int) -> None:
    verifier = Verifier(KEY)
    verifier.verify("GET", PATH, headers(5), b"")
    with pytest.raises(Refusal, match="used before") as refusal:
        verifier.verify("GET", PATH, headers(again), b"")
    assert refusal.value.used == 5
    assert verifier.verify("GET", PATH, headers(6), b"") == "m3"


@pytest.mark.parametrize(
    ("counter", "odd"),
    [
        (100, True),
        (99, True),
        (98, False),  # of another process of the same sender, or by a clock that was set back: it is signed again
        (1, False),
    ],
)
def test_a_request_that_comes_again_is_told_from_one_that_was_overtaken(counter: int, odd: bool) -> None:
    verifier = Verifier(KEY, after=70)
    for earlier in (99, 100):
        verifier.verify("GET", PATH, headers(earlier), b"")
    with pytest.raises(Refusal, match="used before") as refusal:
        verifier.verify("GET", PATH, headers(counter), b"")
    assert refusal.value.odd is odd


def test_members_that_are_gone_leave_no_more_than_their_last_counters() -> None:
    verifier = Verifier(KEY)
    paths = [f"/v1/channel{number}" for number in range(3_000)]
    for path in paths:
        for counter in (7, 8):
            verifier.verify("GET", path, headers(counter, path=path), b"")
    assert sum(map(len, verifier._recent.values())) == 2 * 1024
    for path, odd in ((paths[0], False), (paths[-1], True)):
        with pytest.raises(Refusal, match="used before") as refusal:
            verifier.verify("GET", path, headers(7, path=path), b"")
        assert (refusal.value.used, refusal.value.odd) == (8, odd)


def test_requests_to_an_earlier_coordinator_count_as_used_in_every_channel() -> None:
    verifier = Verifier(KEY, after=5)
    for path in (PATH, "/v1/status"):
        with pytest.raises(Refusal, match="used before") as refusal:
            verifier.verify("GET", path, headers(5, path=path), b"")
        assert refusal.value.used == 5
        assert verifier.verify("GET", path, headers(6, path=path), b"") == "m3"


def test_channels_count_apart_and_a_query_is_no_channel() -> None:
    verifier = Verifier(KEY)
    verifier.verify("GET", PATH, headers(5), b"")
    assert verifier.verify("GET", "/v1/status", headers(1, path="/v1/status"), b"") == "m3"
    other = PATH.replace("after=0", "after=9")
    with pytest.raises(Refusal, match="used before"):
        verifier.verify("GET", other, headers(5, path=other), b"")


def test_a_forged_request_does_not_use_up_a_counter() -> None:
    verifier = Verifier(KEY)
    with pytest.raises(Refusal):
        verifier.verify("GET", PATH, headers(9, key=b"another"), b"")
    assert verifier.verify("GET", PATH, headers(1), b"") == "m3"


@pytest.mark.parametrize("version", ["1", "", "one"])
def test_another_version_is_refused_with_both_named(version: str) -> None:
    with pytest.raises(Refusal, match=f"speaks control protocol {version}, the coordinator speaks 2") as refusal:
        Verifier(KEY).verify("GET", PATH, headers(X_Elastic_Version=version), b"")
    assert refusal.value.status == 409


@pytest.mark.parametrize(
    ("wrong", "proven"),
    [
        (headers(), True),  # sent twice
        (headers(7, X_Elastic_Version="3"), True),
        (headers(7, X_Elastic_Signature=""), False),
        (headers("x"), False),
        (headers(7, key=b"another"), False),
        (headers(7, key=b"another", X_Elastic_Version="3"), False),
        ({}, False),
    ],
)
def test_only_who_has_proved_the_key_is_owed_a_proof(wrong: dict[str, str], proven: bool) -> None:
    verifier = Verifier(KEY)
    verifier.verify("GET", PATH, headers(), b"")
    with pytest.raises(Refusal) as refusal:
        verifier.verify("GET", PATH, wrong, b"")
    assert refusal.value.proven is proven


@pytest.mark.parametrize(
    ("key", "request_", "status", "body"),
    [(b"another", "ab", 200, b"{}"), (KEY, "ac", 200, b"{}"), (KEY, "ab", 404, b"{}"), (KEY, "ab", 200, b"[]")],
)
def test_an_answer_counts_with_this_key_to_this_request_as_it_is(
    key: bytes, request_: str, status: int, body: bytes
) -> None:
    signature = sign_answer(KEY, "ab", 200, b"{}")
    assert answers(KEY, "ab", 200, b"{}", signature)
    assert not answers(key, request_, status, body, signature)
    assert not answers(KEY, "ab", 200, b"{}", "schlüssel")
