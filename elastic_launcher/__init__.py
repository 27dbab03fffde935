"""Elastic Launcher: a training step that changes its size while it runs, and trains the same model."""

__version__ = "0.1.0"
