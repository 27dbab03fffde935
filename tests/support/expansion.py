"""What Kubernetes makes of a container's command, arguments and variables: its rule, written down once more.

From its source: ``$$`` is one ``$``, ``$(NAME)`` is the variable of that name, or stays as it is where
there is none, and any other ``$`` stays.
"""

from __future__ import annotations

from collections.abc import Mapping


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Returns what a container gets of a text."""
    made, at = "", 0
    while at < len(text):
        following = text[at + 1 : at + 2]
        end = text.find(")", at)
        if text[at] != "$" or not following:
            made, at = made + text[at], at + 1
        elif following == "$":
            made, at = f"{made}$", at + 2
        elif following == "(" and end >= 0:
            name = text[at + 2 : end]
            made, at = made + variables.get(name, f"$({name})"), end + 1
        else:
            made, at = made + text[at : at + 2], at + 2
    return made
