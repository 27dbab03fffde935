"""The size of the next step, from quota hints."""

from .component import elastic_plan

__all__ = ["elastic_plan"]
