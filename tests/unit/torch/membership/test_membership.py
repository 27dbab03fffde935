"""Who takes its state from whom, where nodes share a model and where they don't."""

from __future__ import annotations

import pytest

from elastic_launcher.torch.collectives.group import Group
from elastic_launcher.torch.membership.membership import Formation


def grown(nproc: int, nodes: int) -> Formation:
    """A generation of one node that others join: all ranks take from its first, as far as the coordinator says."""
    members = tuple(range(1, nproc * nodes + 1))
    group = Group("all", 0, len(members))
    if nproc > 1:
        group.set_replicas(Group("replicas", 0, nodes))
    joiners = members[nproc:]
    return Formation(2, 2, "grow", members, joiners, (), dict.fromkeys(joiners, 1), group)


@pytest.mark.parametrize("nproc", [1, 2, 4])
def test_each_joiner_takes_its_part_from_the_rank_that_has_the_same(nproc: int) -> None:
    formation = grown(nproc, 3)
    for member in formation.joiners:
        assert formation.giver_of(member) == 0  # the first node
    for member in formation.members[:nproc]:
        assert formation.takers_from(member) == [1, 2]  # the two others, each on its own part
    for member in formation.joiners:
        assert formation.takers_from(member) == []


def test_without_a_sharded_model_ranks_give_to_ranks() -> None:
    group = Group("all", 0, 4)
    formation = Formation(2, 2, "grow", (1, 2, 5, 6), (5, 6), (), {5: 1, 6: 2}, group)
    assert group.replicas is group
    assert [formation.giver_of(member) for member in (5, 6)] == [0, 1]
    assert [formation.takers_from(member) for member in formation.members] == [[2], [3], [], []]
