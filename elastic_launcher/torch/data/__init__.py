"""The training script's data loader, and the worker processes that load ahead for it."""
