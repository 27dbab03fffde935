"""Hints in a ConfigMap of a test's namespace: made and edited as an administrator does."""

from __future__ import annotations

from typing import Any

from elastic_launcher.kube.api import MERGE, Api
from tests.support.hint_documents import hint, text


def data(allowed: int) -> dict[str, Any]:
    return {"data": {"hints.json": text(hint(allowed))}}


async def create(api: Api, name: str, allowed: int) -> None:
    body = {"metadata": {"name": "hints"}, **data(allowed)}
    await api.request("POST", f"/api/v1/namespaces/{name}/configmaps", body)


async def edit(api: Api, name: str, allowed: int) -> None:
    await api.request("PATCH", f"/api/v1/namespaces/{name}/configmaps/hints", data(allowed), content_type=MERGE)
