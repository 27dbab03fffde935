"""The body of ``elastic_verdict``: fails the run if the training step succeeded but reported a failure."""

from __future__ import annotations

from elastic_launcher.config import ExitCode
from elastic_launcher.kfp_steps.arrival import revealed
from elastic_launcher.pipeline_step import StepFailed, say


def verdict_step(exit_code: int, reason: str) -> None:
    """Raises unless the training was done.

    Raises:
        StepFailed: If it was not, with the reason.
    """
    if exit_code != ExitCode.DONE:
        raise StepFailed(revealed(reason) or f"the training ended with exit code {exit_code}", exit_code)
    say("the training is done")
