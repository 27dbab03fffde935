"""Runs kubectl against the cluster that KUBECONFIG names."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


def kubectl(*arguments: str, stdin: str | None = None) -> str:
    """Returns what kubectl printed; what it refuses fails the test."""
    done = subprocess.run(("kubectl", *arguments), input=stdin, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def answers(*arguments: str) -> bool:
    """Whether the API server does what kubectl asks it for."""
    return subprocess.run(("kubectl", *arguments), capture_output=True).returncode == 0


def refusal(*arguments: str, stdin: str) -> str:
    """Returns why the API server, or kubectl before it, refuses a dry run of what is to be made; empty if neither does.

    Args:
        arguments: Further ones.
        stdin: What is to be made.
    """
    command = ("kubectl", "create", "--dry-run=server", "--filename=-", *arguments)
    done = subprocess.run(command, input=stdin, capture_output=True, text=True)
    return done.stderr or f"exit code {done.returncode}" if done.returncode else ""


@contextmanager
def made(kind: str, *names: str) -> Iterator[None]:
    """Makes what is not there of some objects that need a name only; removes that at the end."""
    there = kubectl("get", kind, "--output=name").split()
    missing = [name for name in names if f"{kind}/{name}" not in there]
    try:
        for name in missing:
            kubectl("create", kind, name)
        yield
    finally:
        for name in missing:
            kubectl("delete", kind, name)
