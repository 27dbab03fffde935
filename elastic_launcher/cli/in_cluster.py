"""Runs a command's requests to a cluster in an event loop, and turns its errors into messages."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import typer

from elastic_launcher.cli.job_argument import refuse
from elastic_launcher.config import ExitCode
from elastic_launcher.kube.api import ApiError
from elastic_launcher.options import ConfigError

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Returns what comes of some work.

    Raises:
        typer.Exit: If the cluster refuses it, or is not there, or the user interrupts it.
    """
    try:
        return asyncio.run(work)
    except (ConfigError, ApiError) as error:
        refuse(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(int(ExitCode.INTERRUPTED)) from None
