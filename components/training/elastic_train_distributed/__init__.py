"""Elastic training on as many pods as the quota allows."""

from .component import elastic_train_distributed

__all__ = ["elastic_train_distributed"]
