"""Writes what follows from the option table: fields of the configuration and of Hera's template, components' inputs.

``python -m components.from_options`` rewrites all of them. Each is a run of lines that begin with a name and a
colon. Lines of options are as the table has them, and a new option's comes after that of the option before it; all
other lines stay. So does what a component's docstring says of an option; of a new one, it says the option's help.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from elastic_launcher.options import OPTIONS, Option, read_option

ROOT = Path(__file__).parents[1]
_LINE = re.compile(r"( *)(\w+): \S")
_TYPES = {
    "whole": "int",
    "whole_or_auto": "int | str",
    "integer": "int",
    "seconds": "float",
    "time": "float",
    "share": "tuple[int, int]",
}
"""What a field of the configuration holds, by kind; all others hold a text."""
_FIELDS = {
    "switch": "bool = False",
    "pairs": "Mapping[str, str] = dataclasses.field(default_factory=dict)",
    "words": "tuple[str, ...] = ()",
}
"""Those that hold no single value."""
_OF_HERA = {
    "switch": "bool",
    "whole": "int | str",
    "whole_or_auto": "int | str",
    "integer": "int | str",
    "seconds": "float | str",
    "pairs": "Mapping[str, str] | str",
    "words": "Sequence[str] | str",
    "script": "str | os.PathLike[str]",
    "pod_template": "PodFields | Mapping[str, Any] | str",
}
"""What a field of the template takes, by kind or by name; all others take a text."""
_INPUTS = {
    "switch": "bool = False",
    "pairs": "Optional[Dict[str, str]] = None",
    "words": "Optional[List[str]] = None",
    "whole": "int = {}",
    "whole_or_auto": "int = {}",
    "integer": "int = {}",
    "seconds": "float = {}",
}
"""A component's inputs with their defaults, by kind; all others are texts."""
_OWN_DEFAULTS = {
    ("elastic_train_distributed", "engine"): "kubernetes",
    ("elastic_train_distributed", "nproc_per_node"): "0",
}
_AS_OTHERS = ("nodes", "data", "output")
"""Options that a component takes in another form: as two numbers, and as artifacts."""


@dataclass(frozen=True)
class Place:
    """A run of lines that follow from the table.

    Attributes:
        anchor: The line after which the run is the first one.
        indent: Of its lines.
        line: Makes an option's line; "" where it has none there.
        keeps: Whether a line that is there stays as it is.
    """

    file: str
    anchor: str
    indent: int
    line: Callable[[Option], str]
    keeps: bool = False

    def written(self, text: str, options: Sequence[Option] = OPTIONS) -> str:
        """Returns the file's text with the lines of these options."""
        lines = text.splitlines()
        begin = end = next(at for at in range(lines.index(self.anchor), len(lines)) if self._name(lines[at]))
        while self._name(lines[end]):
            end += 1
        run, before = lines[begin:end], ""
        for made in filter(None, map(self.line, options)):
            names = [self._name(line) for line in run]
            name = self._name(line := " " * self.indent + made)
            if name not in names:
                run.insert(names.index(before) + 1 if before else 0, line)
            elif not self.keeps:
                run[names.index(name)] = line
            before = name
        return "\n".join([*lines[:begin], *run, *lines[end:]]) + "\n"

    def _name(self, line: str) -> str:
        found = _LINE.match(line)
        return found[2] if found and len(found[1]) == self.indent else ""


def _of_config(option: Option) -> str:
    if option.key in ("nodes", "name"):
        return ""
    if option.kind in _FIELDS:
        return f"{option.key}: {_FIELDS[option.kind]}"
    kind = _TYPES.get(option.kind, "str")
    if option.default is None:
        return f"{option.key}: {kind} | None = None"
    return f"{option.key}: {kind} = {json.dumps(read_option(option, option.default)[option.key])}"


def _of_hera(option: Option) -> str:
    name = "job_name" if option.key == "name" else option.key
    return f"{name}: {_OF_HERA.get(option.key) or _OF_HERA.get(option.kind, 'str')} | None = None"


def _takes(component: str, option: Option) -> bool:
    return option.component in (None, component) and option.key not in _AS_OTHERS


def _input_of(component: str) -> Callable[[Option], str]:
    def line(option: Option) -> str:
        if not _takes(component, option):
            return ""
        default = _OWN_DEFAULTS.get((component, option.key), option.default) or ""
        if option.kind in _INPUTS:
            return f"{option.key}: {_INPUTS[option.kind].format(default or 0)},"
        return f"{option.key}: str = {json.dumps(default)},"

    return line


def _said_by(component: str) -> Callable[[Option], str]:
    return lambda option: f"{option.key}: {option.help}" if _takes(component, option) else ""


def _of_component(name: str) -> tuple[Place, Place]:
    file = f"components/training/{name}/component.py"
    return (
        Place(file, f"def {name}(", 4, _input_of(name)),
        Place(file, "    Args:", 8, _said_by(name), keeps=True),
    )


PLACES = (
    Place("elastic_launcher/config.py", "class JobConfig:", 4, _of_config),
    Place("elastic_launcher/hera.py", "class ElasticTrain(Container):", 4, _of_hera),
    *_of_component("elastic_train"),
    *_of_component("elastic_train_distributed"),
)

if __name__ == "__main__":
    for place in PLACES:
        path = ROOT / place.file
        path.write_text(place.written(path.read_text()))
