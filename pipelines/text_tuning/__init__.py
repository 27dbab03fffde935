"""Fine-tunes a small text model with a token-weighted loss."""

from .pipeline import text_tuning

__all__ = ["text_tuning"]
