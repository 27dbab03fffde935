"""Fails the run if the training step succeeded but reported a failure."""

from .component import elastic_verdict

__all__ = ["elastic_verdict"]
