"""Writes the YAML of each example beside it."""

import importlib
from pathlib import Path

HERE = Path(__file__).parent
EXAMPLES = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))


def made(name: str) -> str:
    """Returns the YAML that an example makes."""
    text: str = importlib.import_module(f"{__package__}.{name}").w.to_yaml()
    return text


if __name__ == "__main__":
    for example in EXAMPLES:
        (HERE / f"{example}.yaml").write_text(made(example), encoding="utf-8")
