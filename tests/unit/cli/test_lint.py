"""``elastic-launcher lint``: lines for people, JSON for machines, exit codes for both, and never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from elastic_launcher.cli.lint import MAX_BYTES, lint
from tests.support.lint.pod_cases import patch
from tests.support.lint.retry_cases import retry
from tests.support.lint.workflow_cases import FINE, parameter
from tests.support.places import ROOT

WARNED = FINE.replace("{image: python, command: [python]}", "{image: python}")


def run(*arguments: object) -> Result:
    app = typer.Typer(add_completion=False)
    app.command()(lint)
    return CliRunner().invoke(app, [str(one) for one in arguments])


def written(folder: Path, text: str, name: str = "a.yaml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_a_clean_file_ends_with_0(tmp_path: Path) -> None:
    result = run(written(tmp_path, FINE))
    assert (result.exit_code, result.stdout, result.stderr) == (0, "1 file: 0 errors, 0 warnings\n", "")


def test_an_error_ends_with_1_and_a_line(tmp_path: Path) -> None:
    file = written(tmp_path, parameter("5"))
    result = run(file)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"{file}:12: error: spec.templates[0].inputs.parameters[0].value: 5 is no text, and parameters are texts: the "
        'API server refuses it, argo lint --offline does not. Fix: put it in quotes: "5" [parameter-not-string]',
        "1 file: 1 error, 0 warnings",
    ]


def test_warnings_alone_end_with_0(tmp_path: Path) -> None:
    result = run(written(tmp_path, WARNED))
    assert result.exit_code == 0
    assert ": warning: " in result.stdout
    assert result.stdout.endswith("1 file: 0 errors, 1 warning\n")


def test_json_has_the_same(tmp_path: Path) -> None:
    good, bad = written(tmp_path, WARNED, "b.yaml"), written(tmp_path, retry("limit: two"))
    result = run("--json", bad, good)
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert {key: found[key] for key in ("version", "files", "errors", "warnings")} == {
        "version": 1,
        "files": [str(bad), str(good)],
        "errors": 1,
        "warnings": 1,
    }
    assert [(one["file"], one["line"], one["rule"], one["severity"]) for one in found["findings"]] == [
        (str(bad), 11, "retry-limit", "error"),
        (str(good), 8, "missing-command", "warning"),
    ]
    assert set(found["findings"][0]) == {"file", "line", "rule", "severity", "where", "reason", "fix"}


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_what_cannot_be_read_ends_with_2(tmp_path: Path, as_json: tuple[str, ...]) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe4\n")
    result = run(*as_json, tmp_path / "none.yaml", tmp_path, tmp_path / "latin.yaml", written(tmp_path, FINE))
    assert (result.exit_code, result.stdout) == (2, "")
    assert [line.partition(str(tmp_path))[2] for line in result.stderr.splitlines()] == [
        "/none.yaml: No such file or directory",
        " is a directory: give its files",
        "/latin.yaml: byte 3 is not UTF-8; it must be YAML in UTF-8",
    ]


@pytest.mark.parametrize("endless", [False, True])
def test_what_is_no_pipeline_by_its_size_is_not_read_to_its_end(tmp_path: Path, endless: bool) -> None:
    file = Path("/dev/zero")
    if not endless:
        file = tmp_path / "huge.yaml"
        with file.open("wb") as huge:
            huge.truncate(2**40)  # more than any machine has memory for, and nothing on the disk
    result = run(file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"elastic-launcher: lint: {file} has more than 21 MB: it is no workflow and no pipeline\n"


def test_a_file_of_the_largest_size_is_read(tmp_path: Path) -> None:
    assert run(written(tmp_path, FINE + "#" * (MAX_BYTES - len(FINE)))).exit_code == 0


def test_what_another_command_writes_is_read_from_its_pipe() -> None:
    reading, writing = os.pipe()
    os.write(writing, FINE.encode())
    os.close(writing)
    try:
        assert run(f"/dev/fd/{reading}").exit_code == 0
    finally:
        os.close(reading)


def test_no_file_is_a_usage_error() -> None:
    assert run().exit_code == 2


@pytest.mark.parametrize(
    ("text", "module", "extra"),
    [
        (FINE, "yaml", "hera"),
        (FINE, "hera.workflows.models", "hera"),
        (patch("tolerations: []"), "kubernetes.client", "kubernetes"),
    ],
)
def test_a_missing_library_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    result = run(written(tmp_path, text))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith(f"{module} is not installed: pip install 'elastic-launcher[{extra}]'\n")


def test_a_pipeline_needs_neither_hera_nor_kubernetes_nor_kfp() -> None:
    code = """
import sys
from pathlib import Path
from elastic_launcher.lint import lint
found = lint({"a.yaml": Path(sys.argv[1]).read_text()})
print(*found, *(name for name in ("hera", "kubernetes", "kfp", "torch", "pydantic") if name in sys.modules))
"""
    golden = ROOT / "tests" / "golden" / "digits_elastic.yaml"
    result = subprocess.run([sys.executable, "-c", code, golden], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "\n", "")
