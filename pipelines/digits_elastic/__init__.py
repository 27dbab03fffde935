"""Handwritten digits, trained by a step that changes its size: prepare, elastic_train, evaluate."""

from .pipeline import digits_elastic

__all__ = ["digits_elastic"]
