"""Elastic training on as many GPUs as the quota allows."""

from .component import elastic_train

__all__ = ["elastic_train"]
