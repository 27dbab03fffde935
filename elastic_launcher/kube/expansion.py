"""Escapes texts for a container: Kubernetes expands variables in commands, arguments and environments.

There ``$(NAME)`` is a variable of the container that is known so far, and ``$$`` is one ``$``.
"""

from __future__ import annotations


def literal(text: str) -> str:
    """Returns what Kubernetes expands to a text, with any variables of the container."""
    return text.replace("$", "$$")
