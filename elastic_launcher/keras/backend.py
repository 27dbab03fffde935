"""Keras with its torch backend."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras  # noqa: E402 - it chooses its backend when it is imported

__all__ = ["keras"]

if keras.config.backend() != "torch":
    raise ImportError(
        f"elastic_launcher.keras needs Keras' torch backend, and Keras has the backend {keras.config.backend()!r}: set "
        "the environment variable KERAS_BACKEND=torch before Keras is imported"
    )
