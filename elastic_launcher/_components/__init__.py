"""Where the reusable KFP components are found: inside the installed package, or beside it in a source tree."""

from pathlib import Path

_HERE = Path(__file__).resolve().parent
if not (_HERE / "training").is_dir():
    __path__.append(str(_HERE.parent.parent / "components"))
