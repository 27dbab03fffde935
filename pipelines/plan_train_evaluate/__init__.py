"""A training whose size is taken from the quota hints between the steps, and followed within it."""

from .pipeline import plan_train_evaluate

__all__ = ["plan_train_evaluate"]
