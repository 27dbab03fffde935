"""Ends the nodes that a run has left behind."""

from .component import elastic_cleanup

__all__ = ["elastic_cleanup"]
