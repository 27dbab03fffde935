"""The gradient of an optimizer step: its memory, its reduction, and the agreement of ranks within that."""
