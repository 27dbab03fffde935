"""Fine-tunes a small text model with a token-weighted loss."""
