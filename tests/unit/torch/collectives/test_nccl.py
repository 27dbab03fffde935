"""NCCL's communicator can be aborted on each torch, whose name for it changes; here without a GPU, on its interface."""

from __future__ import annotations

import pytest

from elastic_launcher.torch.collectives.nccl import abort


class Recent:
    """As torch 2.13 and 2.15 have it."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def abort(self) -> None:
        self.called.append("abort")


class Old:
    """torch 2.5."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def _shutdown(self) -> None:
        self.called.append("_shutdown")


@pytest.mark.parametrize(("nccl", "name"), [(Recent(), "abort"), (Old(), "_shutdown")])
def test_the_communicator_is_aborted_under_the_name_that_there_is(nccl: Recent | Old, name: str) -> None:
    abort(nccl)
    assert nccl.called == [name]
