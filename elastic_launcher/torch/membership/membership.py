"""The membership of this process in the job: its generation, its rank, and the group in which they reduce."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from elastic_launcher.control.messages import Form
from elastic_launcher.host.output import say
from elastic_launcher.torch.collectives.group import Group


@dataclass(frozen=True)
class Formation:
    """One attempt to form a generation, as the coordinator ordered it.

    Attributes:
        number: Names the attempt; never used again.
        generation: The generation that it makes when it succeeds.
        mode: ``start``, ``grow``, ``shrink`` or ``recover``.
        joiners: Those of them that are new.
        leavers: Members of the generation before that are not in it.
        sources: Who takes its state from whom: receiver to sender.
        group: The process group, or None for one that leaves.
    """

    number: int
    generation: int
    mode: str
    members: tuple[int, ...]
    joiners: tuple[int, ...] = ()
    leavers: tuple[int, ...] = ()
    sources: dict[int, int] = field(default_factory=dict)
    group: Group | None = None

    @staticmethod
    def from_order(order: Form, group: Group | None) -> Formation:
        """Makes a formation of a coordinator's order."""
        told = (order.formation, order.generation, order.mode, order.members, order.joiners, order.leavers)
        return Formation(*told, dict(order.sources), group)

    def rank_of(self, member: int) -> int:
        """Returns a member's rank."""
        return self.members.index(member)

    def giver_of(self, member: int) -> int:
        """Returns from whom a member takes its state: a rank among those that hold the same part of the model."""
        return self.rank_of(self.sources[member]) // self._parts

    def takers_from(self, member: int) -> list[int]:
        """Returns who takes its state from a member: ranks among those that hold the same part of the model."""
        node, part = divmod(self.rank_of(member), self._parts)
        takers = [one for one in self.sources if self.giver_of(one) == node and self.rank_of(one) % self._parts == part]
        return [self.rank_of(one) // self._parts for one in takers]

    @property
    def _parts(self) -> int:
        """In how many parts, each on another rank of a node, the model is."""
        return 1 if self.group is None else self.group.world_size // self.group.replicas.world_size


@dataclass(frozen=True)
class Division:
    """Among how many ranks samples are divided, and which of them this one is: none of them while it joins."""

    rank: int
    ranks: int


@dataclass
class Membership:
    """This process's part in the generation that trains now.

    Attributes:
        formation: What made the generation.
        group: The group; its own memory and sockets are the formation's.
        dividing: Ranks among which a step's samples are divided: fewer than the world size in the step in which
            joiners take part without any.
    """

    member: int
    formation: Formation
    group: Group
    dividing: int

    @property
    def rank(self) -> int:
        """Rank of this process."""
        return self.group.rank

    @property
    def world_size(self) -> int:
        """Ranks in the generation."""
        return self.group.world_size

    @property
    def division(self) -> Division:
        """The division of the present step."""
        return Division(self.rank, self.dividing)

    def publish(self, local_rank: int) -> None:
        """Sets the variables by which other libraries know their rank, and marks the log for the launcher."""
        rank, world_size = str(self.rank), str(self.world_size)
        os.environ.update(RANK=rank, WORLD_SIZE=world_size, LOCAL_RANK=str(local_rank))
        os.environ.update(ROLE_RANK=rank, ROLE_WORLD_SIZE=world_size)


def mark_log(membership: Membership) -> None:
    """Writes the line by which the launcher knows whose lines follow in this process's log, if there is room for it."""
    generation = membership.formation.generation
    say(f"::elastic generation={generation} rank={membership.rank} world_size={membership.world_size}::", descriptor=1)
