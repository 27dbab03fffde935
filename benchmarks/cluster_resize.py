"""Measures the time from the edit of a ConfigMap's hint to the first step at the new size, in ``make cluster``.

Of a grow it is shown where the time goes: until the new node's pod has a machine, until its container runs, until torch
is imported in it (by the agent, then by the rank), and the rest, which is ours. Pause: the survivor's, as in resize.py.
The peer is the same training as stock torchrun Jobs, a master and a worker, which save each 10 steps; they are deleted,
and recreated at the new size once their pods are gone: from that deletion to the first step at the new size, the pause
from the last step before. One image for all, present on the machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import SCRIPTS, finish, hint, in_turn, options_of, row, stamps, usual, wait_for
from benchmarks.resize import AROUND, SETTLED, Case, longest_gap
from elastic_launcher.engines.kubernetes.objects.names import NODE_LABEL
from elastic_launcher.kube.api import MERGE, Api
from elastic_launcher.kube.login import log_in
from tests.cluster.machine import cluster
from tests.support.cluster import pods
from tests.support.cluster.stage import HINTS, LONG, PLACES, Stage, staged

SCRIPT = SCRIPTS / "resize_train.py"
CASES = [Case("25 MB", 25, 400)]
CHANGES = ("grow 1 to 2", "shrink 2 to 1")
VARIABLES = {"OMP_NUM_THREADS": "1"}  # both nodes are on the same cores
PEER, PORT = "peer", 29500
DESCRIBED = f"peer: torchrun, static rendezvous, {VARIABLES}, a Job for each of its nodes, checkpoints each 10 steps"
PARTS = ("scheduling", "container", "imports", "ours")


@dataclass(frozen=True)
class Change:
    """What a change of the size took, in seconds.

    Attributes:
        latency: From the request to the first step at the new size.
        pause: Between the steps before and after it, less a usual step.
        step: Such a step, at the new size.
        parts: Where the latency went, in the order of `PARTS`; empty where nothing starts.
    """

    latency: float
    pause: float
    step: float
    parts: tuple[float, ...] = ()


@contextlib.contextmanager
def place(purpose: str) -> Iterator[tuple[Stage, Path]]:
    """Gives a namespace, and the folder that its pods write to; leaves when the namespace and its pods are gone."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        out = Path(name) / "out"
        out.mkdir()
        out.chmod(0o777)  # pods have users of their own
        with contextlib.redirect_stdout(sys.stderr), staged(Path(name), purpose) as stage:
            yield stage, out
        stage.kubectl("wait", "--for=delete", f"namespace/{stage.space}", f"--timeout={LONG:.0f}s")


def edit(stage: Stage, gpus: int) -> float:
    """Edits the hints; returns when that was asked for, on the monotonic clock."""

    async def patch() -> float:
        path = f"/api/v1/namespaces/{stage.space}/configmaps/{HINTS}"
        async with Api(log_in()) as api:
            await api.request("GET", path)  # connects
            began = time.monotonic()
            await api.request("PATCH", path, {"data": {"hints.json": hint(gpus)}}, content_type=MERGE)
            return began

    return asyncio.run(patch())


class NewPod:
    """Sees when the pod of a node that starts has a machine, and when it runs."""

    def __init__(self, stage: Stage, node: int) -> None:
        kubectl = cluster.running(PLACES).programs / "kubectl"
        selected = (f"--namespace={stage.space}", "-l", f"{NODE_LABEL}={node}")
        command = (kubectl, f"--kubeconfig={PLACES.kubeconfig}", "get", "pods", "--watch", *selected)
        line = '{.spec.nodeName}|{.status.containerStatuses[*].state.running}{"\\n"}'
        self._process = subprocess.Popen((*command, "-o", f"jsonpath={line}"), stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self.placed = self.runs = 0.0

    def __enter__(self) -> NewPod:
        self._reader.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                machine, _, running = line.strip().partition("|")
                now = time.monotonic()
                self.placed = self.placed or (now if machine else 0.0)
                self.runs = self.runs or (now if running else 0.0)


def ours(case: Case) -> tuple[Change, Change]:
    """Returns a grow and a shrink of a job under the launcher."""
    with place("bench") as (stage, out):
        stage.allow(1)
        arguments = ("ours", str(out), *case.arguments)
        options = ("--nodes=1:2", f"--hints=configmap/{HINTS}")
        stage.launch(*options, script=SCRIPT, argument=arguments, variables=VARIABLES)
        wait_for("steps", lambda: any(len(rows) > SETTLED for rows in stamps(out).values()), LONG)
        (first,) = stamps(out)
        wall = time.time() - time.monotonic()  # the events' clock, less the stamps': one machine has both
        with NewPod(stage, 2) as pod:
            raised = edit(stage, 2)
            wait_for("steps of two", lambda: sum(r["w"] == 2 for r in stamps(out)[first]) > SETTLED, LONG)
        lowered = edit(stage, 1)
        wait_for(
            "steps of one", lambda: sum(r["w"] == 1 and r["t"] > lowered for r in stamps(out)[first]) > AROUND, LONG
        )
        rows = stamps(out)[first]
        started = stage.events.of("node_started")[-1]["time"] - wall
        imported = max(float(path.read_text()) for path in out.glob("imported-*"))
    entered = next(r["t"] for r in rows if r["w"] == 2)
    left = [r["t"] for r in rows if r["w"] == 2][-1]
    alone = next(r["t"] for r in rows if r["t"] > left)
    waits = (pod.placed - started, pod.runs - pod.placed, imported - pod.runs)
    latency = entered - raised
    after = [r for r in rows if r["t"] >= left]
    return (
        Change(latency, longest_gap(rows, entered, 1), usual(rows, 2), (*waits, latency - sum(waits))),
        Change(alone - lowered, longest_gap(after, left, 1), usual(rows, 1)),
    )


def make_peer(stage: Stage, out: Path, case: Case, size: int) -> None:
    """Starts the peer's Jobs; the first is the master, which the other one finds by its Service."""
    (service,) = stage.get("services", "-l", f"role={PEER}")
    for node in range(size):
        host = "$(POD_IP)" if node == 0 else service["spec"]["clusterIP"]
        torchrun = ("-m", "torch.distributed.run", f"--nnodes={size}", "--nproc-per-node=1", f"--node-rank={node}")
        called = (*torchrun, f"--master-addr={host}", f"--master-port={PORT}", str(SCRIPT), "peer", str(out))
        name = f"{PEER}-{node}"
        spec = pods.python_pod(stage.space, name, *called, *case.arguments, gpus=1, writable=[stage.folder])["spec"]
        variables = {**VARIABLES, "GLOO_SOCKET_IFNAME": "eth0"}  # its own name is known to no DNS
        spec["containers"][0]["env"] += [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            *({"name": key, "value": value} for key, value in variables.items()),
        ]
        template = {"metadata": {"labels": {"app": name}}, "spec": spec}
        metadata = {"name": name, "labels": {"role": PEER}}
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}}
        stage.apply(job)


def peer(case: Case) -> tuple[Change, Change]:
    """Returns a grow and a shrink of stock Jobs."""
    with place("peer") as (stage, out):
        spec = {"selector": {"app": f"{PEER}-0"}, "ports": [{"port": PORT}]}
        about = {"name": PEER, "labels": {"role": PEER}}
        stage.apply({"apiVersion": "v1", "kind": "Service", "metadata": about, "spec": spec})

        def rows() -> list[dict[str, Any]]:
            return sorted((r for one in stamps(out).values() for r in one), key=lambda r: r["t"])

        def change(size: int) -> Change:
            began = time.monotonic()
            jobs = ("delete", "jobs", "-l", f"role={PEER}", f"--namespace={stage.space}")
            stage.kubectl(*jobs, "--cascade=foreground", f"--timeout={LONG:.0f}s")
            last = rows()[-1]["t"]
            make_peer(stage, out, case, size)
            wait_for("steps", lambda: sum(r["w"] == size and r["t"] > last for r in rows()) > SETTLED, LONG)
            first = next(r["t"] for r in rows() if r["t"] > last)
            one = max(stamps(out).values(), key=lambda found: sum(r["w"] == size for r in found))
            step = usual(one, size)
            return Change(first - began, first - last - step, step)

        make_peer(stage, out, case, 1)
        wait_for("steps", lambda: len(rows()) > SETTLED, LONG)
        return change(2), change(1)


def report(case: Case, number: int, found: list[Change], theirs: list[Change]) -> list[dict[str, Any]]:
    """Prints what one change came to; returns its rows."""
    name = f"{CHANGES[number]}, {case.name}"
    latency = row(
        "cluster_resize",
        [one.latency for one in found],
        [one.latency for one in theirs],
        "seconds",
        case=f"edit to first step, {name}",
        step=round(statistics.median(one.step for one in found), 3),
        parts={part: round(statistics.median(times), 3) for part, times in zip(PARTS, _parts(found), strict=False)},
        bar="1 s + a step" if number else None,
    )
    pause = row(
        "cluster_resize",
        [one.pause for one in found],
        [one.pause for one in theirs],
        "seconds of pause",
        case=f"pause, {name}",
        bar=0.05 if number else 0.1,
    )
    for one in (latency, pause):
        said = [f"ours {one['ours']:.3f} s, peer {one['peer']:.2f} s, {one['ratio']:.1f} times less"]
        if parts := one.get("parts"):
            said.append("of it " + ", ".join(f"{part} {seconds:.2f} s" for part, seconds in parts.items()))
        print(f"{one['case']}: {'; '.join(said)}; all: {one['ours_all']}, {one['peer_all']}", flush=True)
    return [latency, pause]


def _parts(found: list[Change]) -> list[tuple[float, ...]]:
    return list(zip(*(one.parts for one in found), strict=True))


def main() -> None:
    """Runs all cases, ours and the peer in turn."""
    options = options_of(__doc__)
    cluster.running(PLACES)
    os.environ["KUBECONFIG"] = str(PLACES.kubeconfig)
    print(DESCRIBED)
    rows = []
    for case, found, theirs in in_turn(CASES, options, ours, peer):
        for number in range(len(CHANGES)):
            rows += report(case, number, [one[number] for one in found], [one[number] for one in theirs])
    finish(rows)


if __name__ == "__main__":
    main()
