"""Reads from Kueue's objects which queues there are, and what they leave to the jobs."""
