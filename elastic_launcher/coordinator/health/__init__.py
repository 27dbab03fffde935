"""Detects ranks that are silent, hang, wait for each other in vain, or are slow."""
