"""The advice in messages on how to resume an ended job, in the words of whoever runs it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from elastic_launcher import variables

GOES_ON = ", the same command goes on from there"


def goes_on(environment: Mapping[str, str] = os.environ) -> str:
    """Returns what follows where it is told which step is saved, and where."""
    return environment.get(variables.GOES_ON) or GOES_ON


def tried_again(environment: Mapping[str, str] = os.environ) -> str:
    """Returns what goes on with the job once what kept it from that is over."""
    return "Retry of the run goes on" if environment.get(variables.GOES_ON) else "the same command goes on"
