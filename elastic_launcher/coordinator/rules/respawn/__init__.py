"""The restart-based resize: workers are ended and started at another size, and resume from a checkpoint."""
