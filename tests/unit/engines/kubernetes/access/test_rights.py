"""What a launcher asks for at its start, and what it says of what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from elastic_launcher.engines.kubernetes.access.reviews import REVIEWS, lacks
from elastic_launcher.engines.kubernetes.access.rights import (
    BASE,
    HINTS,
    MACHINES_OF_ALL,
    WORKFLOW,
    Asked,
    Lack,
    Told,
    needs_of,
    overlay_of,
    told,
)
from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.kube.login import Login
from tests.support.launcher_pods import pod


@pytest.mark.parametrize(
    ("account", "owner", "overlay"),
    [
        ("elastic-launcher", "Job", "plain"),
        ("elastic-launcher", "Workflow", "argo"),
        ("pipeline-runner", "Workflow", "kubeflow-standalone"),
        ("default-editor", "Workflow", "kubeflow-multiuser"),
    ],
)
def test_the_overlay_that_is_named_is_that_of_what_runs_the_launcher(account: str, owner: str, overlay: str) -> None:
    assert overlay_of(pod(account, owner)) == overlay


def test_only_what_a_launcher_uses_is_asked_for() -> None:
    plain = needs_of(pod("elastic-launcher"))
    assert [one.need for one in plain] == list(BASE)
    assert {one.namespace for one in plain} == {"training"}
    all_of_it = needs_of(pod("pipeline-runner", "Workflow"), hints=("quota", "gpu-hints"))
    assert [one.need for one in all_of_it] == [*BASE, WORKFLOW, HINTS]


def test_a_review_names_one_verb_and_the_one_object_that_is_meant() -> None:
    reviews = Asked(HINTS, "quota", "hints", "gpu-hints").reviews()
    asked = {"resource": "configmaps", "namespace": "quota", "name": "gpu-hints"}
    assert reviews == {
        verb: {"spec": {"resourceAttributes": asked | {"verb": verb}}} for verb in ("get", "list", "watch")
    }
    assert MACHINES_OF_ALL.reviews()["list"] == {"spec": {"resourceAttributes": {"resource": "nodes", "verb": "list"}}}


def test_what_is_missing_is_said_with_what_it_is_for_and_what_grants_it() -> None:
    jobs = Lack(Asked(BASE[0], "training", "plain"), ("create", "delete"))
    hints = Lack(Asked(HINTS, "quota", "hints", "gpu-hints"), ("watch",))
    assert (jobs.fatal, hints.fatal) == (True, False)
    assert told("elastic-launcher", [jobs, hints]) == (
        "service account elastic-launcher: it may not create, delete jobs.batch in namespace training, needed to "
        "start, follow and end nodes: manifests/overlays/plain grants that; "
        "service account elastic-launcher: it may not watch configmaps gpu-hints in namespace quota, needed to follow "
        "the quota hints; without, the hints are polled, or count as absent where they may not be read at all: "
        "manifests/overlays/hints grants that"
    )
    assert told("elastic-launcher", []) == ""


def test_a_right_that_is_taken_away_is_said_once_and_so_is_its_return() -> None:
    events = Lack(Asked(BASE[4], "training", "plain"), ("list",))
    watch = Lack(Asked(BASE[1], "training", "plain"), ("watch",))
    told_at_start = [events]
    said = []
    known = Told(told_at_start)
    for found in ([events, watch], [events], [events, watch], [events, watch], [events, watch], [events], [events]):
        known, lines = known.look("x", found)
        said.append(lines)
    lost = (
        "service account x: it may not watch pods in namespace training, needed to follow nodes, end them, and label "
        "its own pod: manifests/overlays/plain grants that; it was granted before, and is tried again"
    )
    back = "service account x: it may watch pods in namespace training again"
    assert said == [[], [], [], [lost], [], [back], []]  # what lasts for one look was a server's start
    assert known.lacking == told_at_start


def test_a_right_that_was_missing_at_the_start_is_said_when_it_comes() -> None:
    events = Lack(Asked(BASE[4], "training", "plain"), ("list",))
    known, said = Told([events]).look("x", [])
    assert said == ["service account x: it may list events in namespace training again"]
    assert known.look("x", [])[1] == []


async def ask(answer: Callable[[web.Request], Awaitable[web.Response]]) -> list[Lack]:
    """Returns what a launcher lacks where an API server answers so."""
    application = web.Application()
    application.router.add_post(REVIEWS, answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        async with Api(Login(f"http://127.0.0.1:{port}", "training")) as api:
            return await lacks(api, needs_of(pod("elastic-launcher")))
    finally:
        await runner.cleanup()


def test_an_answer_that_is_no_review_says_nothing_of_rights() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"login": "please"})

    with pytest.raises(ApiError, match="no review came, but .*please") as refused:
        asyncio.run(ask(answer))
    assert refused.value.away


def test_every_verb_is_asked_for_and_those_that_are_refused_are_found() -> None:
    refused = {("jobs", "delete"), ("pods", "patch"), ("pods", "watch")}
    asked: list[tuple[str, str]] = []
    open_now, most = 0, 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        about = (await request.json())["spec"]["resourceAttributes"]
        asked.append((about["resource"], about["verb"]))
        await asyncio.sleep(0)  # whoever else asks at the same time is let in
        open_now -= 1
        return web.json_response({"status": {"allowed": (about["resource"], about["verb"]) not in refused}})

    found = asyncio.run(ask(answer))
    assert sorted(asked) == sorted((need.resource, verb) for need in BASE for verb in need.verbs)
    assert {(one.asked.need.resource, verb) for one in found for verb in one.verbs} == refused
    assert most == 1
