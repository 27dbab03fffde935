"""How a job that ended goes on from what it has saved, in the words of whoever runs it."""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLE = "ELASTIC_GOES_ON"
"""What a pipeline's front says instead: whoever reads its log has typed no command."""
GOES_ON = ", the same command goes on from there"


def goes_on(environment: Mapping[str, str] = os.environ) -> str:
    """Returns what follows where it is told which step is saved, and where."""
    return environment.get(VARIABLE) or GOES_ON


def tried_again(environment: Mapping[str, str] = os.environ) -> str:
    """Returns what goes on with the job once what kept it from that is over."""
    return "Retry of the run goes on" if environment.get(VARIABLE) else "the same command goes on"
