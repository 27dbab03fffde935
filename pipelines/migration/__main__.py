"""Rewrites the diffs of ``docs/migrate.md`` and ``docs/walk-script.md``, each in the block that names its script."""

import difflib
import re
from pathlib import Path

HERE = Path(__file__).parent
PAGES = [HERE.parents[1] / "docs" / name for name in ("migrate.md", "walk-script.md")]
ELASTIC, ADAPTIVE, KERAS = (HERE / f"to_{name}.py" for name in ("elastic", "adaptive", "keras"))
BECOMES = {"from_adaptdl.py": ADAPTIVE, "from_runai_keras.py": KERAS}  # the others: ELASTIC
BLOCK = re.compile(r"(?<=^```diff\n)--- (\w+\.py)\n.*?(?=^```$)", re.MULTILINE | re.DOTALL)


def diff(script: str) -> str:
    """Returns what makes a script the elastic one, as a unified diff."""
    path = BECOMES.get(script, ELASTIC)
    before, after = (one.read_text().splitlines(keepends=True) for one in (HERE / script, path))
    return "".join(difflib.unified_diff(before, after, script, path.name, n=2))


def page(text: str) -> str:
    """Returns a page with the diffs of today's scripts."""
    return BLOCK.sub(lambda block: diff(block[1]), text)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(page(path.read_text()), encoding="utf-8")
