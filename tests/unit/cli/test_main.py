"""The command line: light until a command is called, and one flag for each option of the table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_launcher import __version__
from elastic_launcher.options import OPTIONS


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


def test_ctrl_c_while_the_command_line_is_loaded_ends_it_without_a_traceback() -> None:
    code = """
import signal, sys
class InterruptsTyper:
    def find_spec(self, name, *_):
        if name == "typer":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, InterruptsTyper())
signal.signal(signal.SIGINT, signal.default_int_handler)
from elastic_launcher.__main__ import main
main()
"""
    result = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


def test_run_has_a_flag_for_each_option_with_its_default() -> None:
    shown = elastic_launcher("run", "--help").stdout
    for option in OPTIONS:
        assert f"\n  {option.flag} {option.unit}".rstrip() in shown
    assert "[default: 1:1]" in " ".join(shown.split())


def test_the_usage_of_run_says_where_the_script_stands() -> None:
    shown = elastic_launcher("run", "--help").stdout
    assert shown.startswith("Usage: elastic-launcher run [OPTIONS] -- SCRIPT|-m MODULE [ARGS...]\n")
    assert "list[" not in shown


@pytest.mark.parametrize("words", [("-m", "pack.train", "--lr", "1"), ("-mpack.train",)])
def test_a_module_without_dashes_before_it_is_told_where_they_go(words: tuple[str, ...]) -> None:
    result = elastic_launcher("run", "--nodes", "1:2", *words)
    assert result.returncode == 2
    assert f"write `-- -m {'pack.train' if len(words) > 1 else 'MODULE'}`" in result.stderr


@pytest.mark.parametrize(
    ("words", "misplaced"),
    [
        (("nowhere.py", "--nodes", "1:2", "--lr", "1"), ["--nodes"]),
        (("nowhere.py", "--nodes=1:2", "--nodes", "1:3", "--hints", "x"), ["--nodes", "--hints"]),
        (("nowhere.py", "--data", "d", "--output=o", "--name", "x"), []),
        (("--", "nowhere.py", "--nodes", "1:2"), []),
        (("--nodes", "1:2", "nowhere.py", "--", "--lr"), []),
    ],
)
def test_our_options_after_the_script_are_warned_of(words: tuple[str, ...], misplaced: list[str]) -> None:
    lines = elastic_launcher("run", *words).stderr.splitlines()
    assert [line.split()[1] for line in lines if "comes after the script" in line] == misplaced
    assert "the script nowhere.py is not there" in lines[-1]


@pytest.mark.parametrize(("encoding", "shown"), [("latin-1", "\\u2603"), ("utf-8", "☃")])
def test_what_the_output_can_not_encode_is_escaped(encoding: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / "☃.yaml").write_text("a: [")
    command = [sys.executable, "-m", "elastic_launcher", "lint", str(tmp_path / "☃.yaml")]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    result = subprocess.run(command, capture_output=True, encoding=encoding, env=environment)
    assert (result.returncode, result.stderr) == (1, "")
    assert result.stdout.startswith(f"{tmp_path}/{shown}.yaml:")


def test_the_version() -> None:
    assert elastic_launcher("--version").stdout == f"elastic-launcher {__version__}\n"


@pytest.mark.parametrize("arguments", [("fly",), ("run", "--fly")])
def test_what_does_not_exist_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    result = elastic_launcher(*arguments)
    assert result.returncode == 2
    assert "No such" in result.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_an_output_that_takes_no_more_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "elastic_launcher", "status", str(tmp_path)]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    said = "elastic-launcher: the output can't be written: No space left on device\n"
    assert (result.returncode, result.stderr) == (1, said)
