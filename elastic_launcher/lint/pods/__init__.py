"""Checks of the pods of steps: containers, patches, GPUs, labels."""
