"""YAML documents as trees whose nodes know their line.

Invariant: every node has the line on which a reader finds it, and asking for what is not there gives an absent node
that has the line of what is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elastic_launcher.options import read_whole

Key = str | int


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A value of a document.

    Attributes:
        line: The line of its key, or of itself, from 1.
        path: The keys and numbers that lead to it.
        value: It as plain Python; None where it is absent or null, which Kubernetes takes for the same.
        text_line: The line on which a text of several lines begins, where its lines are the file's; else 0.
    """

    file: str
    line: int
    path: tuple[Key, ...] = ()
    value: Any = None
    fields: Mapping[str, Node] = field(default_factory=dict)
    items: Sequence[Node] = ()
    text_line: int = 0

    @property
    def there(self) -> bool:
        """Whether it says anything."""
        return self.value is not None

    @property
    def text(self) -> str:
        """The value as a text; "" where it is none."""
        return self.value if isinstance(self.value, str) else ""

    @property
    def number(self) -> int | None:
        """The value as a whole number, also if written as a text; else None."""
        if isinstance(self.value, float) and self.value.is_integer():
            return int(self.value)
        if isinstance(self.value, str):
            return read_whole(self.value)
        return self.value if isinstance(self.value, int) and not isinstance(self.value, bool) else None

    @property
    def where(self) -> str:
        """The path for people: ``spec.templates[0].container``."""
        words = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.path)
        return "".join(words).removeprefix(".")

    def at(self, *keys: Key) -> Node:
        """Returns what keys lead to from here; an absent node where there is nothing."""
        node = self
        for key in keys:
            if isinstance(key, int):
                found = node.items[key] if key < len(node.items) else None
            else:
                found = node.fields.get(key)
            node = found if found is not None else Node(node.file, node.line, (*node.path, key))
        return node

    def nearest(self, keys: Sequence[Key]) -> Node:
        """Returns the deepest node that is there on the way along keys."""
        node = self
        for key in keys:
            following = node.at(key)
            if not (isinstance(key, str) and key in node.fields) and not following.there:
                break
            node = following
        return node

    def walk(self) -> Iterator[Node]:
        """Yields it and all that it holds."""
        yield self
        for child in (*self.fields.values(), *self.items):
            yield from child.walk()
