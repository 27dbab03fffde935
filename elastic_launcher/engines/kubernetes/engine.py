"""The engine for a cluster: each node is a Job of one pod, made and ended by this process alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from elastic_launcher.engines import EngineAway, NodeExit, NodeSpec
from elastic_launcher.engines.kubernetes.nodes.fleet import Fleet
from elastic_launcher.engines.kubernetes.nodes.pod_status import Standing
from elastic_launcher.engines.kubernetes.objects.job import JobPlan
from elastic_launcher.kube.api import Api, ApiError
from elastic_launcher.kube.login import Login
from elastic_launcher.options import ConfigError

CLOSE_SECONDS = 8.0
"""For ending all nodes at the end: a launcher that is stopped is killed 10 s after its job is saved, and ends too."""

Answer = TypeVar("Answer")


class KubernetesEngine:
    """Starts nodes in a namespace.

    It has an event loop in a thread of its own, since it follows the cluster all the time. ``close`` ends both.
    """

    def __init__(self, login: Login, namespace: str, plan: JobPlan) -> None:
        self._opened: Future[tuple[asyncio.AbstractEventLoop, Fleet]] = Future()
        self._ended: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(login, namespace, plan), name="cluster", daemon=True)
        self._thread.start()
        self._loop, self._fleet = self._opened.result()

    def find(self) -> list[NodeSpec]:
        """Returns the nodes of this job that an earlier launcher has left.

        Raises:
            OSError: If the cluster can't be asked.
        """
        return self._call(self._fleet.find())

    def used(self) -> list[NodeSpec]:
        """Returns all nodes of this job whose numbers the cluster still knows.

        Raises:
            OSError: If the cluster can't be asked.
        """
        return self._call(self._fleet.used())

    def adopt(self, found: Sequence[NodeSpec]) -> list[str]:
        """Takes nodes for its own that an earlier launcher has started, and ends what is left of others.

        Returns remarks on these, a line each.

        Raises:
            OSError: If the cluster can't be asked.
        """
        return self._call(self._fleet.adopt(found))

    def start(self, spec: NodeSpec) -> None:
        """Makes a node's Job; ``standings`` returns whether and where its pod starts.

        Raises:
            EngineAway: If the cluster can't be asked.
            OSError: If the cluster refuses it.
        """
        try:
            self._call(self._fleet.start(spec))
        except ApiError as error:
            if error.away:
                raise EngineAway(str(error)) from error
            raise
        except ConfigError as error:
            raise OSError(str(error)) from error

    def agent(self, node: int) -> None:
        """Returns None: an agent is a process of another machine."""

    def notice(self, node: int) -> None:
        """Has the node's pod deleted, with all its grace."""
        self._call(_answered(lambda: self._fleet.notice(node)))

    def kill(self, node: int) -> None:
        """Has the node ended by its machine, or, where that does not answer, forgotten; ``poll`` returns its end."""
        self._call(_answered(lambda: self._fleet.kill(node)))

    def poll(self) -> list[NodeExit]:
        """Returns the nodes that are gone since the last call."""
        if self._ended.done():
            self._ended.result()  # raises what went wrong there
        return self._call(_answered(self._fleet.take_exits))

    def standings(self) -> dict[int, Standing]:
        """Returns the state of each node that is not gone: it waits for something, runs, or has a notice."""
        return self._call(_answered(self._fleet.standings))

    def end_all(self) -> None:
        """Ends all nodes, and waits until they are gone, without reporting them."""
        self._call(self._fleet.end_all())
        self.poll()

    def close(self) -> None:
        """Ends all nodes, waits until they are gone, and leaves the cluster."""
        if not self._thread.is_alive():
            return
        try:
            self._call(self._fleet.end_all(CLOSE_SECONDS))
        finally:
            self.leave()

    def leave(self) -> None:
        """Leaves the cluster with all nodes running, for the next launcher."""
        self._loop.call_soon_threadsafe(self._following.cancel)
        self._thread.join()

    def _call(self, call: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def _run(self, login: Login, namespace: str, plan: JobPlan) -> None:
        try:
            asyncio.run(self._follow(login, namespace, plan))
        except asyncio.CancelledError:
            self._ended.set_result(None)
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever opens this, or polls
            if not self._opened.done():
                self._opened.set_exception(error)
            self._ended.set_exception(error)

    async def _follow(self, login: Login, namespace: str, plan: JobPlan) -> None:
        async with Api(login) as api:
            fleet = Fleet(api, namespace, plan)
            self._following = asyncio.ensure_future(fleet.run())
            self._opened.set_result((asyncio.get_running_loop(), fleet))
            await self._following


async def _answered(call: Callable[[], Answer]) -> Answer:
    return call()
