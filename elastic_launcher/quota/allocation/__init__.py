"""How GPUs are divided among jobs: what they are worth to each, the best division, and its places."""
