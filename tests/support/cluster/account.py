"""A launcher's account, with the rights of ``manifests/`` or fewer."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from elastic_launcher.kube.api import Api
from tests.support.cluster.namespaces import space
from tests.support.manifests import MANIFESTS, objects

ACCOUNT = "elastic-launcher"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces"


@asynccontextmanager
async def as_launcher(without: tuple[str, str] | None = None) -> AsyncIterator[tuple[Api, Api, str]]:
    """Gives the cluster to its admin and to a launcher's account, and a namespace with the overlay `plain`.

    Args:
        without: A resource, and a verb on it that the Role lacks.
    """
    async with space("rights") as (admin, name):
        plain = MANIFESTS / "overlays" / "plain"
        (role,), (binding,), (account,) = (objects(plain, kind) for kind in ("Role", "RoleBinding", "ServiceAccount"))
        rules = [_less(rule, without) for rule in role["rules"]]
        subjects = [subject | {"namespace": name} for subject in binding["subjects"]]
        await admin.request("POST", f"/api/v1/namespaces/{name}/serviceaccounts", account)
        await admin.request("POST", f"{RBAC}/{name}/roles", role | {"rules": rules})
        await admin.request("POST", f"{RBAC}/{name}/rolebindings", binding | {"subjects": subjects})
        path = f"/api/v1/namespaces/{name}/serviceaccounts/{ACCOUNT}/token"
        wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
        token = (await admin.request("POST", path, wanted))["status"]["token"]
        login = replace(admin.login, tls=_uncertified(admin.login.tls), authorization=lambda: f"Bearer {token}")
        async with Api(login) as api:
            yield admin, api, name


def _less(rule: dict[str, Any], without: tuple[str, str] | None) -> dict[str, Any]:
    if without is None or rule["resources"] != [without[0]]:
        return rule
    return rule | {"verbs": [verb for verb in rule["verbs"] if verb != without[1]]}


def _uncertified(tls: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """Returns a context that trusts the same server, and shows no certificate: that would count before a token."""
    if tls is None:
        return None
    found = ssl.create_default_context(cadata=b"".join(tls.get_ca_certs(binary_form=True)))
    found.check_hostname, found.verify_mode = tls.check_hostname, tls.verify_mode
    return found
