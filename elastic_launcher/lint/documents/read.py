"""Reads YAML files into trees, and reports what is wrong with them as YAML."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from elastic_launcher.lint.documents.finding import Finding
from elastic_launcher.lint.documents.scalars import Scalar, pipeline_scalar, scalar
from elastic_launcher.lint.documents.tree import Key, Node
from elastic_launcher.lint.libraries import needed

MAX_NODES = 300_000
"""Aliases of aliases multiply: no file of a pipeline comes near this."""
_MERGE = "<<"
_PLAIN = "plain"
"""The tag of a word without quotes and without a tag of its own."""
_TYPED = tuple(f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool", "null"))
_BLOCK = "|"
_OF_PIPELINES = ("deploymentSpec", "pipelineSpec")
"""What a compiled pipeline has, and a run's file around it, and no object of Kubernetes beside its kind."""


class _Unusable(Exception):
    """A document that can't be a tree; the message says why."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


@dataclass(slots=True)
class _Reader:
    """Makes trees of the documents of one file, and counts the nodes made so far."""

    file: str
    findings: list[Finding]
    first_line: int = 1
    count: int = 0
    above: set[int] = field(default_factory=set)
    scalar: Callable[[str], Scalar] = scalar

    def document(self, found: Any) -> Node:
        """Returns the tree of a composed document, its words read as the API server or Kubeflow's backend has them."""
        keys = [key.value for key, _ in found.value] if found.id == "mapping" else []
        self.scalar = pipeline_scalar if any(name in keys for name in _OF_PIPELINES) else scalar
        return self.node(found, ())

    def node(self, found: Any, path: tuple[Key, ...], line: int | None = None) -> Node:
        """Returns the tree of a composed YAML node."""
        self.count += 1
        own_line = found.start_mark.line + self.first_line
        if self.count > MAX_NODES:
            raise _Unusable(own_line, "its aliases make it larger than any pipeline")
        if id(found) in self.above:
            raise _Unusable(own_line, "an alias there holds itself")
        self.above.add(id(found))
        try:
            shown = own_line if line is None else line
            if found.id == "mapping":
                fields = self._fields(found, path)
                plain: Any = {key: child.value for key, child in fields.items()}
                return Node(self.file, shown, path, plain, MappingProxyType(fields))
            if found.id == "sequence":
                items = [self.node(one, (*path, index)) for index, one in enumerate(found.value)]
                return Node(self.file, shown, path, [item.value for item in items], items=items)
            return self._scalar(found, path, shown, own_line)
        finally:
            self.above.discard(id(found))

    def _scalar(self, found: Any, path: tuple[Key, ...], line: int, own_line: int) -> Node:
        plain = found.tag in (_PLAIN, *_TYPED)
        value = self.scalar(found.value) if plain else found.value
        return Node(self.file, line, path, value, text_line=own_line + 1 if found.style == _BLOCK else 0)

    def _fields(self, found: Any, path: tuple[Key, ...]) -> dict[str, Node]:
        fields: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key, value in found.value:
            line = key.start_mark.line + self.first_line
            if key.id != "scalar":
                raise _Unusable(line, "a key there is no text")
            if key.value == _MERGE and not key.style:
                merged = self._merged(value, path) | merged
                continue
            if key.value in fields:
                self.findings.append(
                    Finding(
                        self.file,
                        line,
                        "duplicate-key",
                        Node(self.file, line, (*path, key.value)).where,
                        f'"{key.value}" stands here and in line {fields[key.value].line}; only the last one counts',
                        "leave one of them out",
                    )
                )
            fields[key.value] = self.node(value, (*path, key.value), line)
        return merged | fields

    def _merged(self, value: Any, path: tuple[Key, ...]) -> dict[str, Node]:
        """Returns the fields that a merge key brings in; of several sources the first wins."""
        sources = value.value if value.id == "sequence" else [value]
        found: dict[str, Node] = {}
        for source in sources:
            if source.id == "mapping":
                found = {**self.node(source, path).fields, **found}
        return found


def read(text: str, file: str, first_line: int = 1) -> tuple[list[Node], list[Finding]]:
    """Reads the documents of a text, whose first line may be a later one of its file.

    Returns the documents that hold anything, and what is wrong with them as YAML.
    """
    yaml = needed("yaml", "YAML files are read with PyYAML", "hera")
    reader = _Reader(file, [], first_line)
    documents: list[Node] = []
    try:
        for found in _composed(yaml, text):
            document = reader.document(found)
            if document.there:
                documents.append(document)
    except yaml.reader.ReaderError as error:  # its position is in bytes or characters, as PyYAML was built
        character = chr(error.character)
        said = f"{error.reason} (U+{error.character:04X})"
        reader.findings.append(_syntax(file, first_line + text.count("\n", 0, text.find(character)), said))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        said = getattr(error, "problem", None) or "it can't be read"
        reader.findings.append(_syntax(file, first_line + (mark.line if mark is not None else 0), str(said)))
    except _Unusable as error:
        reader.findings.append(_syntax(file, error.line, str(error)))
    except RecursionError:
        reader.findings.append(_syntax(file, first_line, "it is nested too deeply"))
    return documents, reader.findings


def _composed(yaml: Any, text: str) -> Iterator[Any]:
    """Yields the documents' YAML nodes, all of whose words are still texts."""
    base: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)

    class Loader(base):  # type: ignore[misc]
        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            return _PLAIN if kind is yaml.ScalarNode and implicit[0] else super().resolve(kind, value, implicit)

    yield from (one for one in yaml.compose_all(text, Loader=Loader) if one is not None)


def _syntax(file: str, line: int, said: str) -> Finding:
    reason = f"not YAML from here on: {' '.join(said.split())}"
    return Finding(file, line, "yaml-syntax", "", reason, "mend the line or the one above it")
