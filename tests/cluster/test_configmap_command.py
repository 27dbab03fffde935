"""``elastic-launcher hints`` on a ConfigMap: made, edited by many at once, shown, refused."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

from typer.testing import CliRunner, Result

from elastic_launcher.cli.hints import hints_app
from elastic_launcher.kube.api import Api
from tests.support.cluster.namespaces import space

WRITERS = 3


async def hints(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, hints_app, list(arguments))


async def data(api: Api, name: str) -> dict[str, Any]:
    found = await api.request("GET", f"/api/v1/namespaces/{name}/configmaps/hints")
    return dict(found["data"])


def test_a_configmap_is_made_edited_checked_and_shown() -> None:
    async def steps() -> None:
        async with space("command") as (api, name):
            place = f"configmap/{name}/hints"
            said = f"ConfigMap {name}/hints"
            missing = await hints("check", place)
            assert (missing.exit_code, missing.stderr) == (
                2,
                f"elastic-launcher: hints: {said} is not there; `elastic-launcher hints set` makes one\n",
            )
            made = await hints("set", place, "--match", "job=bert", "--allowed", "4")
            assert (made.exit_code, made.stdout) == (0, f"{place}: job=bert: allowed 4 (generation 1)\n")
            await hints("set", place, "--match", "job=bert", "--allowed", "6", "--limit", "8")
            document = json.loads((await data(api, name))["hints.json"])
            assert document["hints"] == [{"match": {"job": "bert"}, "gpus": {"allowed": 6, "limit": 8}}]
            assert (await hints("check", place)).stdout == f"{place}: good (1 hint, generation 2)\n"
            shown = await hints("show", place, "--match", "job=bert", "--nodes", "1:8", "--json")
            assert json.loads(shown.stdout)["nodes"] == 6
            wrong = await hints("set", place, "--match", "job=bert", "--allowed", "9")
            assert wrong.exit_code == 2
            assert f"hints: {said}: " in wrong.stderr
            nowhere = await hints("set", f"configmap/{name}-not/hints", "--allowed", "1")
            assert nowhere.stderr == (
                f'elastic-launcher: hints: ConfigMap {name}-not/hints: namespaces "{name}-not" not found\n'
            )

    asyncio.run(steps())


def test_the_flat_form_stays_flat() -> None:
    async def steps() -> None:
        async with space("command") as (api, name):
            body = {"metadata": {"name": "hints"}, "data": {"default": "1", "job.bert": "2:6"}}
            await api.request("POST", f"/api/v1/namespaces/{name}/configmaps", body)
            await hints("set", f"configmap/{name}/hints", "--match", "job=bert", "--allowed", "8")
            assert await data(api, name) == {"default": "1", "job.bert": "2:8"}

    asyncio.run(steps())


def test_what_else_is_in_a_configmap_stays_and_the_document_is_added() -> None:
    async def steps() -> None:
        async with space("command") as (api, name):
            place = f"configmap/{name}/hints"
            body = {"metadata": {"name": "hints"}, "data": {"hint.json": "{}"}}
            await api.request("POST", f"/api/v1/namespaces/{name}/configmaps", body)
            assert "it has no key hints.json, but hint.json" in (await hints("check", place)).stderr
            await hints("set", place, "--allowed", "3")
            assert (await data(api, name))["hint.json"] == "{}"
            assert json.loads((await data(api, name))["hints.json"])["defaults"]["gpus"] == {"allowed": 3}

    asyncio.run(steps())


def test_no_edit_of_those_who_edit_at_once_is_lost() -> None:
    async def steps() -> None:
        async with space("command") as (api, name):
            place = f"configmap/{name}/hints"
            await hints("set", place, "--allowed", "1")
            command = [sys.executable, "-m", "elastic_launcher", "hints", "set", place, "--allowed", "2", "--match"]
            writers = [subprocess.Popen([*command, f"job=j{number}"]) for number in range(WRITERS)]
            assert [await asyncio.to_thread(writer.wait) for writer in writers] == [0] * WRITERS
            document = json.loads((await data(api, name))["hints.json"])
            assert {row["match"]["job"] for row in document["hints"]} == {f"j{number}" for number in range(WRITERS)}
            assert document["generation"] == WRITERS + 1

    asyncio.run(steps())
