"""Components that train models."""
