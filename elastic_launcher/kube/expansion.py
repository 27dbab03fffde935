"""Escapes texts for a container: Kubernetes expands variables in commands, arguments and environments.

There ``$(NAME)`` stands for a variable of the container that is known so far, and ``$$`` for one ``$``.
"""

from __future__ import annotations


def literal(text: str) -> str:
    """Returns what Kubernetes makes a text of, whatever variables the container has."""
    return text.replace("$", "$$")
