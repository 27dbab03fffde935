"""Adaptive training: which global batch and learning rate fit the moment, and what another GPU is worth to a job."""
