"""Asks the API server which of the needed rights a launcher lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elastic_launcher.engines.kubernetes.access.rights import Asked, Lack
from elastic_launcher.kube.api import MOST_SHOWN, Api, ApiError

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
"""Every account that is known may ask this about itself."""


async def lacks(api: Api, needs: Sequence[Asked]) -> list[Lack]:
    """Returns what is missing of needs.

    Raises:
        ApiError: If the cluster can't be asked.
    """
    found = [await _lack(api, one) for one in needs]  # one after another: each launcher asks again and again
    return [one for one in found if one.verbs]


async def _lack(api: Api, asked: Asked) -> Lack:
    allowed = {verb: await _is_allowed(api, review) for verb, review in asked.reviews().items()}
    return Lack(asked, tuple(verb for verb, yes in allowed.items() if not yes))


async def _is_allowed(api: Api, review: Mapping[str, Any]) -> bool:
    match await api.request("POST", REVIEWS, review):
        case {"status": {"allowed": bool(allowed)}}:
            return allowed
        case other:  # of a proxy in between, for example
            raise ApiError(0, "NoReview", f"{REVIEWS}: no review came, but {str(other)[:MOST_SHOWN]!r}")
