"""A request that is made again where the API server was away, busy, or new."""

from __future__ import annotations

import asyncio

import pytest

from elastic_launcher.kube.api import ApiError, insist

AWAY = ApiError(0, "Unreachable", "connection refused")
NO_PAUSES = (0.0,) * 4


class Server:
    """Gives these answers, one after another."""

    def __init__(self, *answers: ApiError | str) -> None:
        self.answers = list(answers)

    async def ask(self) -> str:
        answer = self.answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return answer


def test_it_waits_for_one_that_comes_back_and_knows_its_roles_again() -> None:
    new = [ApiError(503, "", "starting"), ApiError(401, "", "no account known"), ApiError(403, "", "no role known")]
    server = Server(AWAY, *new, "a seat")
    assert asyncio.run(insist(server.ask, NO_PAUSES)) == "a seat"


def test_one_that_stays_away_is_given_up() -> None:
    server = Server(*[AWAY] * 9)
    with pytest.raises(ApiError, match="connection refused"):
        asyncio.run(insist(server.ask, NO_PAUSES))
    assert len(server.answers) == 9 - 1 - len(NO_PAUSES)


@pytest.mark.parametrize("status", [400, 404, 409, 422])
def test_a_refusal_is_told_at_once(status: int) -> None:
    server = Server(ApiError(status, "", "services is invalid"), "unasked")
    with pytest.raises(ApiError, match="services is invalid"):
        asyncio.run(insist(server.ask, NO_PAUSES))
    assert server.answers == ["unasked"]


def test_the_server_says_how_long_to_wait() -> None:
    async def steps() -> float:
        server = Server(ApiError(429, "TooManyRequests", "busy", retry_after=0.05), "a seat")
        began = asyncio.get_running_loop().time()
        await insist(server.ask, NO_PAUSES)
        return asyncio.get_running_loop().time() - began

    assert asyncio.run(steps()) >= 0.05


@pytest.mark.parametrize(("asked", "heeded"), [(3.0, 3.0), (3600.0, 30.0)])
def test_what_a_server_asks_to_wait_is_heeded_within_bounds(asked: float, heeded: float) -> None:
    assert ApiError(503, "", "maintenance", asked).retry_after == heeded
