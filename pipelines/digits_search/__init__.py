"""A search for a learning rate, whose trials share the quota and shrink instead of queueing."""

from .pipeline import digits_search

__all__ = ["digits_search"]
