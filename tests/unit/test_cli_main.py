"""The command line: light until a command is called, and one flag for each option of the table."""

from __future__ import annotations

import subprocess
import sys

import pytest

from elastic_launcher import __version__
from elastic_launcher.config import OPTIONS


def elastic_launcher(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "elastic_launcher", *arguments], capture_output=True, text=True)


def test_the_overview_names_all_commands_and_loads_none_of_them() -> None:
    code = """
import sys
from elastic_launcher.cli.main import main
try:
    main()
finally:
    print(*(name for name in sys.modules if name.startswith("elastic_launcher")))
    print(*(name for name in ("torch", "aiohttp", "kfp", "kubernetes", "psutil") if name in sys.modules))
"""
    result = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True)
    assert result.returncode == 0
    assert all(f"\n  {name} " in result.stdout for name in ("run", "plan", "hints", "status", "report"))
    loaded, heavy = result.stdout.splitlines()[-2:]
    assert set(loaded.split()) == {"elastic_launcher", "elastic_launcher.cli", "elastic_launcher.cli.main"}
    assert heavy == ""


def test_run_has_a_flag_for_each_option_with_its_default() -> None:
    shown = elastic_launcher("run", "--help").stdout
    for option in OPTIONS:
        assert f"\n  {option.flag} {option.unit}".rstrip() in shown
    assert "[default: 1:1]" in shown


def test_the_version() -> None:
    assert elastic_launcher("--version").stdout == f"elastic-launcher {__version__}\n"


@pytest.mark.parametrize("arguments", [("fly",), ("run", "--fly")])
def test_what_does_not_exist_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    result = elastic_launcher(*arguments)
    assert result.returncode == 2
    assert "No such" in result.stderr
