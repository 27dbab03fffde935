"""The search for a group's connections takes no other descriptor of the process, and leaves none behind."""

from __future__ import annotations

import os

import pytest

from elastic_launcher.torch.collectives.sockets import find_connections

FOLDER = "/proc/self/fd"


def test_a_number_that_became_another_file_meanwhile_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    read_link = os.readlink
    with open(os.devnull) as file:
        seen = f"{FOLDER}/{file.fileno()}"
        monkeypatch.setattr(os, "readlink", lambda path: "socket:[1]" if path == seen else read_link(path))
        before = len(os.listdir(FOLDER))
        assert find_connections({("127.0.0.1", 1)}) == frozenset()
        assert len(os.listdir(FOLDER)) == before
