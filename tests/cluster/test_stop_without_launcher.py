"""``stop`` of a job whose launcher is away, on a real API server: the next one finds the word, whoever that is."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE

from elastic_launcher.engines.kubernetes.leadership.leadership import Leadership
from tests.support.cluster.launchers import NAMES, PORTS, make_pod
from tests.support.cluster.namespaces import PATIENCE, make_owner, space


def test_a_launcher_that_comes_back_finds_that_its_job_is_to_stop() -> None:
    async def steps() -> None:
        async with space("unheard") as (api, name):
            owner = await make_owner(api, name)
            await make_pod(api, name, "step-0")
            await Leadership(api, name, NAMES).take(owner, PORTS, "step-0")
            await api.request("DELETE", f"/api/v1/namespaces/{name}/pods/step-0", {"gracePeriodSeconds": 0})
            command = (sys.executable, "-m", "elastic_launcher", "stop", f"job/{name}/{NAMES.service}")
            stop = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
            assert stop.stderr is not None
            async with asyncio.timeout(PATIENCE):
                said = (await stop.stderr.readline()).decode()
            assert f"job {name}/{NAMES.service} is told to stop; no pod of its launcher runs now" in said
            await make_pod(api, name, "step-1")
            successor = Leadership(api, name, NAMES)
            record = await successor.take(owner, PORTS, "step-1")
            assert record.stop.startswith("elastic-launcher stop, by ")
            await successor.publish({"state": "stopped", "message": "stopped: step 40 is saved", "exit_code": 75})
            async with asyncio.timeout(PATIENCE):
                printed, _ = await stop.communicate()
            assert (stop.returncode, printed.decode()) == (0, "stopped: step 40 is saved\n")

    asyncio.run(steps())
