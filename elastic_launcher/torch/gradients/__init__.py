"""The gradient of an optimizer step: its memory, its reduction, and what the ranks agree on within that."""
