"""The process group of one formation: built beside the training, and aborted at once when a peer is lost.

gloo can't abort an operation whose peer is frozen, so `Group.cut` shuts the group's own connections down: every
operation that waits for them, in any thread, here and at the peers, then ends with an error: within milliseconds,
or tenths of a second where a message was half written or half read (see `work`).
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import threading
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from elastic_launcher.torch.collectives import nccl
from elastic_launcher.torch.collectives.c10d_clients import leased_store
from elastic_launcher.torch.collectives.sockets import (
    Address,
    address_towards,
    any_open,
    find_connections,
    open_listening,
    shut_connections,
)
from elastic_launcher.torch.collectives.threads import start_or_run
from elastic_launcher.torch.collectives.work import Collective, GroupError, Message, Work

LONG_TIMEOUT = 1800.0
EXIT_SECONDS = 0.2  # that gloo has to end its operations when Python ends
GLOO: Any = dist.ProcessGroupGloo  # its stubs lack what is used here
OPS: dict[str, Any] = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}

_live: weakref.WeakSet[Group] = weakref.WeakSet()
_parked: list[Group] = []  # cut, and perhaps with an operation that has not ended


class Group:
    """Ranks that reduce tensors and send them to each other; made by `build_group`.

    All methods may be called from any thread; collective ones in the same order on every rank. Sends and receives may
    run beside collectives.

    Args:
        gloo: The process group; None in a world of one.
        fast: An NCCL group that reduces CUDA tensors, where each rank has a GPU of its own.
        listeners: Where each rank's gloo listens.
        timeout: Seconds after which an operation fails.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        world_size: int,
        gloo: Any = None,
        fast: Any = None,
        listeners: Sequence[Address] = (),
        timeout: float = LONG_TIMEOUT,
    ) -> None:
        self.name, self.rank, self.world_size = name, rank, world_size
        self._gloo, self._fast, self._listeners = gloo, fast, set(listeners)
        self.timeout = timeout
        self._works: set[Work] = set()
        self._state_lock = threading.Lock()
        self._end: str | None = None
        self._connections = find_connections(self._listeners) if listeners else frozenset()
        self._replicas: Group | None = None
        _live.add(self)

    @property
    def replicas(self) -> Group:
        """The ranks that hold the same part of the model as this one: all, where it is not sharded."""
        return self if self._replicas is None else self._replicas

    def set_replicas(self, replicas: Group) -> None:
        """Adds the group of those ranks, which lives as long as this one."""
        self._replicas = replicas

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Work:
        """Starts to reduce a contiguous tensor in place over all ranks, by ``sum`` or ``max``.

        Nobody may touch it until the work has ended.

        Raises:
            GroupError: If the group was cut or closed.
        """
        if self.world_size == 1:
            return Work(None, None, ())
        options = dist.AllreduceOptions()
        options.reduceOp = OPS[op]
        return self._launch("allreduce", [tensor], options, device=tensor.device)

    def all_to_all(self, received: torch.Tensor, sent: torch.Tensor) -> Work:
        """Starts to give each rank its row of ``sent``; ``received`` gets one of each rank, in rank order.

        Nobody may touch either until the work has ended.

        Raises:
            GroupError: If the group was cut or closed.
        """
        rows = _bytes(received).view(self.world_size, -1), _bytes(sent).view(self.world_size, -1)
        return self._launch("alltoall_base", rows[0], rows[1], [], [], device=sent.device)

    def all_gather(self, gathered: torch.Tensor, own: torch.Tensor) -> Work:
        """Starts to give every rank what each brings, of one size; ``gathered`` has a row for each, in rank order.

        Nobody may touch either until the work has ended.

        Raises:
            GroupError: If the group was cut or closed.
        """
        rows = list(_bytes(gathered).view(self.world_size, -1))
        return self._launch("allgather", [rows], [_bytes(own)], device=own.device)

    def send(self, tensor: torch.Tensor, dst: int, tag: int, timeout: float | None = None) -> None:
        """Sends a tensor's memory to a rank and waits until that has taken it.

        Args:
            tensor: Contiguous, of any type; one on a GPU goes through host memory.
            dst: The rank.
            tag: Pairs it with the receiver's call; tensors of one tag arrive in order.
            timeout: Seconds; None leaves it to the group's own.

        Raises:
            GroupError: If the peer was lost, the group was cut or closed, or the time is over.
        """
        self.start_send(tensor.detach().cpu(), dst, tag).wait(timeout)

    def recv(self, tensor: torch.Tensor, src: int, tag: int, timeout: float | None = None) -> None:
        """Receives into a tensor's memory what a rank sends, and waits for it; see `send`.

        Raises:
            GroupError: If the peer was lost, the group was cut or closed, or the time is over.
        """
        tensor = tensor.detach()
        host = tensor if tensor.device.type == "cpu" else torch.empty_like(tensor, device="cpu")
        self.start_recv(host, src, tag).wait(timeout)
        if host is not tensor:
            tensor.copy_(host)

    def start_send(self, tensor: torch.Tensor, dst: int, tag: int) -> Work:
        """Starts a `send` out of host memory.

        Raises:
            GroupError: If the group was cut or closed.
        """
        return self._launch("send", [_bytes(tensor)], dst, tag)

    def start_recv(self, tensor: torch.Tensor, src: int, tag: int) -> Work:
        """Starts a `recv` into host memory.

        Raises:
            GroupError: If the group was cut or closed.
        """
        return self._launch("recv", [_bytes(tensor)], src, tag)

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        """Gives every rank what each of them brought, in rank order.

        Raises:
            GroupError: If a peer was lost, or the group was cut or closed.
        """
        if self.world_size == 1:
            return [data]
        sizes = [int(size) for size in self._all_gather(torch.tensor([len(data)]))]
        padded = torch.zeros(max(1, *sizes), dtype=torch.uint8)
        if data:
            padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        gathered = self._all_gather(padded)
        return [row[:size].numpy().tobytes() for row, size in zip(gathered, sizes, strict=True)]

    def cut(self) -> None:
        """Ends the group at once, from any thread: all that waits for it, here and at its peers, raises.

        The group and the memory that its operations use are kept until nothing of them can go on.
        """
        if self._replicas is not None:
            self._replicas.cut()
        with self._state_lock:
            if self._end is not None:
                return
            self._end = "was cut"
            _parked.append(self)
        shut_connections(self._listeners)
        if self._fast is not None:
            nccl.abort(self._fast)

    def close(self) -> None:
        """Ends the group after its last operation. One that still has an operation under way is cut."""
        if self._replicas is not None:
            self._replicas.close()
        if not self.can_be_released():
            self.cut()
        with self._state_lock:
            if self._end is not None:
                return
            self._end = "was closed"
        self.release()

    def release(self) -> None:
        """Gives up sockets, threads and memory, in a thread of its own: their end takes 20-30 ms."""
        held = [self._gloo, self._fast]
        if self.is_cut:
            held += [work.let_go() for work in self._works]
        self._gloo = self._fast = None
        # not a daemon: one that wakes up while Python ends would be torn out of C++, which aborts the process
        start_or_run(threading.Thread(target=held.clear, name="elastic-close-group"))
        self._works.clear()

    def can_be_released(self) -> bool:
        """Whether no operation is under way."""
        return all(work.has_ended() for work in list(self._works))

    @property
    def is_cut(self) -> bool:
        """Whether it was cut."""
        return self._end == "was cut"

    def is_dead(self) -> bool:
        """Whether it was cut and gloo has closed all its connections: what has not ended by then never will."""
        return self.is_cut and not any_open(self._connections)

    def check(self) -> None:
        """Raises `GroupError` if the group was cut or closed."""
        if self._end is not None:
            raise GroupError(f"process group {self.name} {self._end}")

    def explain(self, error: RuntimeError) -> GroupError:
        """Returns what an error of torch means to this rank."""
        if isinstance(error, GroupError):
            return error
        if self._end is not None:
            return GroupError(f"process group {self.name} {self._end} on rank {self.rank}")
        return GroupError(
            f"process group {self.name}, rank {self.rank} of {self.world_size}: a peer was lost ({_first_line(error)})"
        )

    def forget(self, work: Work) -> None:
        """Drops the reference to a work that has ended well."""
        self._works.discard(work)

    def _launch(self, method: str, tensors: Any, *rest: Any, device: torch.device | None = None) -> Work:
        """Starts an operation of the backend on tensors of a device, and keeps hold of it and its memory."""
        fast = device is not None and device.type == "cuda" and self._fast is not None
        backend = self._fast if fast else self._gloo
        self.check()
        try:
            raw = getattr(backend, method)(tensors, *rest)
        except RuntimeError as error:
            raise self.explain(error) from error
        kind = Message if method in ("send", "recv") else Collective
        work = Work(self, nccl.HostWork(raw, self.check) if fast else kind(raw, self), tensors)
        self._works.add(work)
        return work

    def _all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        gathered = [torch.empty_like(tensor) for _ in range(self.world_size)]
        self._launch("allgather", [gathered], [tensor]).wait()
        return gathered


def build_group(
    store: str,
    formation: int | str,
    rank: int,
    world_size: int,
    timeout: float,
    device: torch.device,
    long_timeout: float = LONG_TIMEOUT,
) -> Group:
    """Forms a group; all its ranks call this at about the same time. The GIL is free while it waits.

    Args:
        store: ``host:port`` of the c10d store in which the ranks find each other; not used in a world of one.
        formation: Names the group; never used before in this store.
        rank: This process's rank.
        world_size: Number of ranks.
        timeout: Seconds for all ranks to come.
        device: Where this rank's tensors lie.
        long_timeout: Seconds after which an operation fails once the group is formed.

    Raises:
        GroupError: If a rank did not come in time, or died meanwhile.
    """
    if world_size == 1:
        return Group(str(formation), 0, 1)
    try:
        with leased_store(store, timeout) as client:
            return group_from_store(client, f"formation/{formation}", rank, world_size, timeout, device, long_timeout)
    except GroupError:
        raise
    except RuntimeError as error:
        raise GroupError(f"the c10d store at {store} can't be reached ({_first_line(error)})") from error


def group_from_store(
    store: Store,
    prefix: str,
    rank: int,
    world_size: int,
    timeout: float,
    device: torch.device,
    long_timeout: float = LONG_TIMEOUT,
) -> Group:
    """Forms a group in a store that is there already; see `build_group`.

    Nobody else uses the store's client meanwhile; ``prefix``, where in it the ranks meet, was never used before.

    Raises:
        GroupError: If a rank did not come in time, or died meanwhile.
    """
    if world_size == 1:
        return Group(prefix, 0, 1)
    meeting = PrefixStore(prefix, store)
    try:
        host = _host_towards(store)
        link, listener = open_listening(lambda: GLOO.create_device(hostname=host))
        meeting.set(_key(rank), json.dumps([*listener, nccl.gpu_of(device)]))
        options = GLOO._Options()
        options._devices, options._timeout, options._threads = [link], timedelta(seconds=timeout), 2
        gloo = GLOO(meeting, rank, world_size, options)
        peers = [json.loads(meeting.get(_key(peer))) for peer in range(world_size)]
        fast = nccl.build(meeting, rank, world_size, device, [gpu for _, _, gpu in peers], timeout, long_timeout)
    except (RuntimeError, OSError) as error:
        raise GroupError(_why_not_formed(meeting, prefix, world_size, timeout, error)) from error
    gloo._set_default_timeout(timedelta(seconds=long_timeout))
    return Group(prefix, rank, world_size, gloo, fast, [(host, port) for host, port, _ in peers], long_timeout)


def _key(rank: int) -> str:
    return f"listener/{rank}"


def _host_towards(store: Store) -> str:
    """Returns the address at which peers that use this store reach this process."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return address_towards(store.host, store.port) if isinstance(store, TCPStore) else "127.0.0.1"


def _why_not_formed(store: Store, name: str, world_size: int, timeout: float, error: Exception) -> str:
    try:
        missing = [str(rank) for rank in range(world_size) if not store.check([_key(rank)])]
    except RuntimeError:
        return f"process group {name} was not formed: the c10d store was lost ({_first_line(error)})"
    if not missing:
        return f"process group {name} was not formed: a rank was lost meanwhile ({_first_line(error)})"
    return f"process group {name} was not formed: rank {', '.join(missing)} did not come within {timeout:g} s"


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a contiguous tensor's memory."""
    if not tensor.is_contiguous():
        raise ValueError("only contiguous tensors can be sent and received")
    return tensor.reshape(-1).view(torch.uint8) if tensor.dtype != torch.uint8 else tensor


def release_cut() -> None:
    """Gives up the groups that were cut and in which nothing goes on any more: gloo's thread may turn in vain there.

    One whose collective operation gloo never ends is kept, with three threads at rest, as long as the process lives.
    """
    for group in list(_parked):
        if group.can_be_released():
            _parked.remove(group)
            group.release()


def _cut_unfinished() -> None:
    """Cuts what is still under way when Python ends: its destructor would wait for it as long as the group may."""
    busy = [group for group in list(_live) if not group.can_be_released()]
    for group in busy:
        group.cut()
    until = time.monotonic() + EXIT_SECONDS
    while any(not group.can_be_released() for group in busy) and time.monotonic() < until:
        time.sleep(0.01)
    for group in busy:
        if not group.can_be_released():
            _keep(group)


def _keep(group: Group) -> None:
    """Sees to it that there is no destructor, which would wait."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def _leave_to_parent() -> None:
    """Has a forked child touch no group: the connections are its parent's, and gloo's threads are not there."""
    for group in list(_live):
        _keep(group)
    _live.clear()


atexit.register(_cut_unfinished)
os.register_at_fork(after_in_child=_leave_to_parent)
