"""The advice in messages on how to resume an ended job, in the words of whoever runs it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from elastic_launcher import variables

SAME_COMMAND = ", the same command resumes from there"


def resume_advice(environment: Mapping[str, str] = os.environ) -> str:
    """Returns the end of a message about a saved step."""
    return environment.get(variables.GOES_ON) or SAME_COMMAND


def retry_advice(environment: Mapping[str, str] = os.environ) -> str:
    """Returns how the job is resumed once an obstacle is gone."""
    return (
        "Retry of the run resumes the job" if environment.get(variables.GOES_ON) else "the same command resumes the job"
    )
