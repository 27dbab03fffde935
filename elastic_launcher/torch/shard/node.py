"""The ranks of a node that share one model: they live and die together, and go from step to step together.

What a rank does with the other nodes can end well on one rank of a node and badly on another. Forward and backward
passes of a sharded model wait for all ranks of the node, so a node decides as one: what broke on one rank of it counts
as broken on all.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.distributed_c10d import _get_default_store

from elastic_launcher import variables
from elastic_launcher.torch.collectives.group import Group, group_from_store
from elastic_launcher.torch.collectives.work import GroupError

CPU = torch.device("cpu")
INSTEAD = "make it by elastic.init_node_group(backend) in the place of dist.init_process_group"
TAG = 7201
NODE_SECONDS = 300.0  # for all ranks of a node to come: each has built its part of the model before
IDLE_SECONDS = 7 * 86400.0  # one rank may evaluate for hours while the others wait; the coordinator judges who is dead
_OF_PEER = re.compile(
    r"connection (reset|closed)|broken pipe|pair closure|socket closed|remote process exit|communicator was aborted|"
    r"ncclRemoteError|timed out waiting",
    re.IGNORECASE,
)
_made: set[str] = set()  # names of nodes whose group `init_node_group` has made


def is_loss(error: BaseException) -> bool:
    """Whether an exception in a pass through a sharded model shows that another rank of the node was lost."""
    return isinstance(error, RuntimeError) and _OF_PEER.search(str(error)) is not None


class NodeShards:
    """The ranks of this node.

    Args:
        group: Their group, which is never made anew.
        on_loss: Ends this process with a reason: nobody has the part of the model that a lost rank had.
    """

    def __init__(self, group: Group, on_loss: Callable[[str], None]) -> None:
        self._group = group
        self._on_loss = on_loss

    @property
    def size(self) -> int:
        """Number of ranks on each node."""
        return self._group.world_size

    def any(self, mine: bool) -> bool:
        """Returns whether something holds for any rank of this node; they all call it.

        Raises:
            GroupError: If one of them was lost, and this process goes on all the same.
        """
        return bool(self._largest([int(mine)])[0])

    def latest(self, mine: int) -> tuple[int, bool]:
        """Returns the largest of the numbers that the ranks of this node bring, and whether all bring the same.

        Raises:
            GroupError: As `any`.
        """
        largest, smallest_negated = self._largest([mine, -mine])
        return largest, largest == -smallest_negated

    def _largest(self, mine: list[int]) -> list[int]:
        numbers = torch.tensor(mine)
        try:
            self._group.all_reduce(numbers, op="max").wait()
        except GroupError as error:
            self._on_loss(f"another rank of this node, with a part of the model, was lost ({error})")
            raise
        largest: list[int] = numbers.tolist()
        return largest

    @property
    def local_rank(self) -> int:
        """Rank of this process on its node: which part of the model it has."""
        return self._group.rank

    def send(self, data: bytes, rank: int) -> None:
        """Sends something to another rank of this node, which calls `receive`; from any thread.

        Raises:
            GroupError: If it was lost.
        """
        self._group.send(torch.tensor([len(data)]), rank, TAG)
        if data:
            self._group.send(torch.frombuffer(bytearray(data), dtype=torch.uint8), rank, TAG)

    def receive(self, rank: int) -> bytes:
        """Receives what another rank of this node sends.

        Raises:
            GroupError: If it was lost.
        """
        length = torch.zeros(1, dtype=torch.int64)
        self._group.recv(length, rank, TAG)
        data = torch.empty(int(length), dtype=torch.uint8)
        if data.numel():
            self._group.recv(data, rank, TAG)
        return data.numpy().tobytes()

    @contextlib.contextmanager
    def agreed(self, cut: Callable[[], None]) -> Iterator[None]:
        """Lets what is done with other nodes within end well on all ranks of this node or on none.

        ``cut`` ends what was broken for all that wait in it: also the other ranks of this node, for which this one is
        about to wait.

        Raises:
            GroupError: If a peer was lost for one of them.
        """
        error: GroupError | None = None
        try:
            yield
        except GroupError as lost:
            error = lost
            cut()
        if self.any(error is not None):
            raise error or GroupError("another rank of this node has lost a peer")


def init_node_group(backend: str) -> None:
    """Makes torch's default process group of the ranks of this node, over which `fully_shard` divides a model.

    All nodes of a job have one c10d store: `torch.distributed.init_process_group` would mix them up. Under plain
    torchrun, where there is one node, it is that.

    Args:
        backend: As torch has it: ``nccl`` or ``gloo``.
    """
    node = os.environ.get(variables.NODE)
    if node is None:
        dist.init_process_group(backend)
        return
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=NODE_SECONDS))
    rank, size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    dist.init_process_group(
        backend, store=PrefixStore(f"elastic-launcher/node/{node}", store), rank=rank, world_size=size
    )
    _made.add(node)


def find_node(on_loss: Callable[[str], None]) -> NodeShards:
    """Finds the other ranks of this node, in the store of its default process group; they all call it.

    Raises:
        GroupError: If they do not come.
        TypeError: If they are not those of this node alone.
    """
    node, rank, size = os.environ.get(variables.NODE), dist.get_rank(), dist.get_world_size()
    if node is not None and node not in _made:
        raise TypeError(f"torch's default process group was not made for this node alone; {INSTEAD}")
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if size != ranks:
        raise TypeError(
            f"torch's default process group has {size} ranks, and this node {ranks}; {INSTEAD}. Several nodes need the "
            "launcher: under plain torchrun a sharded model trains on one"
        )
    group = group_from_store(_get_default_store(), "elastic-launcher/node", rank, size, NODE_SECONDS, CPU, IDLE_SECONDS)
    if len(set(group.all_gather_bytes((node or "").encode()))) > 1:
        raise TypeError(f"torch's default process group has ranks of different nodes; {INSTEAD}")
    return NodeShards(group, on_loss)
