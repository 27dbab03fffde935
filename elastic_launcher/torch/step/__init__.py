"""The optimizer step: the training loop, what the script calls within it, and what is checked around it."""
