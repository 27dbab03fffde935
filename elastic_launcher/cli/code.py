"""What nodes are handed that see none of the launcher's files: the script, and what it imports from beside it."""

from __future__ import annotations

from pathlib import Path

from elastic_launcher.options import ConfigError

MOST_BYTES = 1 << 20


def code_of(script: str | None, directory: Path) -> dict[str, str]:
    """Returns names and texts, the script first; nothing for a module, which is in the nodes' image.

    Args:
        script: Its path, or None.
        directory: Where relative paths start.

    Raises:
        ConfigError: If that is more than nodes are handed.
    """
    if script is None:
        return {}
    path = directory / script
    advice = "put the code into the nodes' image, and give -m MODULE"
    if path.is_dir():
        raise ConfigError(f"the script {script} is a folder, and nodes of a cluster are handed single files: {advice}")
    paths = [path, *sorted(one for one in path.parent.glob("*.py") if one.is_file() and not one.samefile(path))]
    size = sum(one.stat().st_size for one in paths)
    if size > MOST_BYTES:
        raise ConfigError(
            f"the script {script} and the {len(paths) - 1} .py files beside it have {size} bytes, and nodes of a "
            f"cluster are handed {MOST_BYTES} at most: {advice}"
        )
    try:
        return {one.name: one.read_text(encoding="utf-8") for one in paths}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the script {script}, or a .py file beside it, can't be read: {error}") from error
