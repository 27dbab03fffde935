"""How a cluster is found: whatever is wrong with what names it is one line that says where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from elastic_launcher.kube.login import bearer_of, log_in
from elastic_launcher.options import ConfigError

CLUSTER = {"server": "https://127.0.0.1:9"}
USER = {"token": "x"}


def kubeconfig(cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None, **context: str) -> str:
    return yaml.safe_dump(
        {
            "clusters": [{"name": "c", "cluster": CLUSTER | (cluster or {})}],
            "users": [{"name": "u", "user": user or USER}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", **context}}],
            "current-context": "x",
        }
    )


def test_a_kubeconfig_says_the_server_the_namespace_and_the_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config"
    monkeypatch.setenv("KUBECONFIG", str(file))
    file.write_text(kubeconfig(namespace="team"))
    login = log_in()
    assert (login.server, login.namespace, login.authorization()) == ("https://127.0.0.1:9", "team", "Bearer x")
    file.write_text(kubeconfig())
    assert log_in().namespace == "default"


class Client:
    """The client library's configuration, as far as a token goes.

    Args:
        name: Under which it keeps the token: ``authorization`` until version 35, ``BearerToken`` from 36 on.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.api_key: dict[str, str] = {}

    def get_api_key_with_prefix(self, name: str) -> str | None:
        self.api_key = self.api_key and {self.name: "Bearer fresh"}  # what is asked for is refreshed
        return self.api_key.get(name)

    def auth_settings(self) -> dict[str, dict[str, str | None]]:
        known = {"type": "api_key", "in": "header", "key": "authorization"}
        value = self.get_api_key_with_prefix(self.name)
        return {"BearerToken": known | {"value": value}} if self.name in self.api_key else {}


@pytest.mark.parametrize("name", ["authorization", "BearerToken"])
def test_a_token_is_found_under_either_name_of_the_client_library_and_as_fresh_as_it_is(name: str) -> None:
    client = Client(name)
    assert bearer_of(client) == ""
    client.api_key = {name: "Bearer old"}
    assert bearer_of(client) == "Bearer fresh"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [", "expected the node content"),
        ("", "file is empty"),
        ("just words", ""),
        ("[1, 2]", ""),
        (kubeconfig().replace("current-context", "current"), "Expected key current-context"),
        (kubeconfig({"server": "127.0.0.1:6443"}), "its server is '127.0.0.1:6443'; it must begin with https://"),
        (kubeconfig({"certificate-authority": "/nope/ca.crt"}), "File does not exist: /nope/ca.crt"),
        (kubeconfig({"certificate-authority-data": "YWJj"}), "no certificate or crl found"),
        (kubeconfig(user={"client-certificate-data": "YWJj", "client-key-data": "YWJj"}), "PEM lib"),
        (kubeconfig(user={"tokenFile": "/nope/token"}), "No such file or directory: '/nope/token'"),
    ],
)
def test_one_that_can_not_be_used_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(ConfigError) as refused:
        log_in()
    said = str(refused.value)
    assert said.startswith(f"kubeconfig {file} can't be used (") and why in said and "\n" not in said


def test_none_at_all_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/gone")
    with pytest.raises(ConfigError, match=f"KUBECONFIG names {tmp_path}/gone, which is not there"):
        log_in()
    monkeypatch.delenv("KUBECONFIG")
    with pytest.raises(ConfigError, match=f"there is no {tmp_path}/.kube/config, KUBECONFIG is not set"):
        log_in()
