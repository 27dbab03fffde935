"""Elastic Launcher: a training step that changes its size while it runs and trains the same model whatever its size was."""

__version__ = "0.1.0"
