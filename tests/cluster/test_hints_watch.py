"""Hints in a ConfigMap of a real API server: edits are seen at once, and by polling where a Role grants no more."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from elastic_launcher.hints import HintRead
from elastic_launcher.hints.configmap import ConfigMapSource
from elastic_launcher.hints.reference import Reference
from elastic_launcher.kube import api as kube_api
from elastic_launcher.kube.api import MERGE, Api
from elastic_launcher.kube.login import Login
from tests.support.cluster.hints import create, edit
from tests.support.cluster.namespaces import PATIENCE, space
from tests.support.hint_documents import hint, text

ACTED_ON_WITHIN = 2.0
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces"


async def following(found: AsyncIterator[HintRead]) -> HintRead:
    return await asyncio.wait_for(anext(found), PATIENCE)


def test_an_edit_is_seen_within_two_seconds_and_a_new_object_is_told_apart() -> None:
    async def steps() -> None:
        async with space("hints") as (api, name):
            source = ConfigMapSource(Reference(name, "hints"), lambda: api.login)
            async with aclosing(source.changes()) as found:
                assert await following(found) == HintRead(None)
                await create(api, name, 1)
                first = await following(found)
                assert first.text == text(hint(1))
                for allowed in range(2, 7):
                    began = time.monotonic()
                    await edit(api, name, allowed)
                    assert await following(found) == HintRead(text(hint(allowed)), first.identity)
                    assert time.monotonic() - began < ACTED_ON_WITHIN
                await api.request("DELETE", f"/api/v1/namespaces/{name}/configmaps/hints")
                assert await following(found) == HintRead(None)
                await create(api, name, 1)
                assert (await following(found)).identity != first.identity

    asyncio.run(steps())


def test_five_hundred_edits_in_a_row_end_with_the_last() -> None:
    async def steps() -> None:
        async with space("hints") as (api, name):
            await create(api, name, 0)
            source = ConfigMapSource(Reference(name, "hints"), lambda: api.login)
            async with aclosing(source.changes()) as found:
                seen = [await following(found)]
                for allowed in range(1, 501):
                    await edit(api, name, allowed)
                while seen[-1].text != text(hint(500)):
                    seen.append(await following(found))
                assert len(seen) == len(set(seen))  # each is told once at most

    asyncio.run(steps())


def test_watches_that_end_at_once_miss_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_api, "WATCH_SECONDS", 1)

    async def steps() -> None:
        async with space("hints") as (api, name):
            await create(api, name, 0)
            source = ConfigMapSource(Reference(name, "hints"), lambda: api.login)
            async with aclosing(source.changes()) as found:
                await following(found)
                for allowed in range(1, 40):
                    await edit(api, name, allowed)
                    assert (await following(found)).text == text(hint(allowed))
                    await asyncio.sleep(0.1)  # so that several watches come and go

    asyncio.run(steps())


@pytest.mark.parametrize("verbs", [["get", "list", "watch"], ["get"], []])
def test_a_role_for_this_one_object_is_enough(verbs: list[str]) -> None:
    async def steps() -> None:
        async with space("hints") as (api, name):
            await create(api, name, 1)
            login = await account(api, name, verbs)
            source = ConfigMapSource(Reference(name, "hints"), lambda: login)
            async with aclosing(source.changes()) as found:
                first = await following(found)
                if not verbs:
                    assert "grant get, list and watch on ConfigMap hints" in first.error
                    await grant(api, name, ["get"])
                    first = await following(found)
                assert first.text == text(hint(1))
                await edit(api, name, 2)
                assert (await following(found)).text == text(hint(2))

    asyncio.run(steps())


async def account(api: Api, name: str, verbs: list[str]) -> Login:
    """Returns the login of an account that may do no more with the hints."""
    accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
    await api.request("POST", accounts, {"metadata": {"name": "job"}})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "hints"}
    subject = {"kind": "ServiceAccount", "name": "job", "namespace": name}
    await api.request("POST", f"{RBAC}/{name}/roles", {"metadata": {"name": "hints"}, "rules": rules(verbs)})
    binding = {"metadata": {"name": "hints"}, "roleRef": role, "subjects": [subject]}
    await api.request("POST", f"{RBAC}/{name}/rolebindings", binding)
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = (await api.request("POST", f"{accounts}/job/token", asked))["status"]["token"]
    return replace(api.login, tls=without_certificate(api.login), authorization=lambda: f"Bearer {token}")


def without_certificate(admin: Login) -> ssl.SSLContext:
    """Returns what trusts the same server, and proves nothing by itself."""
    assert admin.tls is not None
    return ssl.create_default_context(cadata=b"".join(admin.tls.get_ca_certs(binary_form=True)))


async def grant(api: Api, name: str, verbs: list[str]) -> None:
    await api.request("PATCH", f"{RBAC}/{name}/roles/hints", {"rules": rules(verbs)}, content_type=MERGE)


def rules(verbs: list[str]) -> list[dict[str, Any]]:
    return (
        [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["hints"], "verbs": verbs}] if verbs else []
    )
