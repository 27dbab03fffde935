"""Handwritten digits, recognised by a Keras model that is trained at a size that changes."""

from .pipeline import digits_keras

__all__ = ["digits_keras"]
