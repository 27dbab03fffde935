"""``elastic-launcher lint``: finds errors in workflows and compiled pipelines that an API server would accept."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from elastic_launcher.cli.job_argument import refuse, tell
from elastic_launcher.lint import Finding, MissingLibrary
from elastic_launcher.lint import lint as find
from elastic_launcher.report.words import plural, size

MAX_BYTES = 20 * 2**20
"""More is no pipeline: Kubernetes takes objects of a few megabytes."""


def lint(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Workflows of Argo, or compiled pipelines, as YAML.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Finds what goes wrong with workflows and compiled pipelines although the API server takes them.

    Ends with 0 when there is nothing but warnings, with 1 when there are errors, with 2 when a file can't be read.
    docs/lint.md lists the rules.
    """
    texts = _texts(files)
    try:
        findings = find(texts)
    except MissingLibrary as error:
        refuse(f"lint: {error}")
    counts = Counter(one.severity for one in findings)
    if as_json:
        typer.echo(json.dumps(_document(list(texts), findings, counts)))
    else:
        for one in findings:
            typer.echo(f"{one.file}:{one.line}: {one.severity}: {_place(one)}{one.reason}. Fix: {one.fix} [{one.rule}]")
        numbers = f"{plural(counts['error'], 'error')}, {plural(counts['warning'], 'warning')}"
        typer.echo(f"{plural(len(texts), 'file')}: {numbers}")
    if counts["error"]:
        raise typer.Exit(1)


def _texts(files: Sequence[Path]) -> dict[str, str]:
    """Returns the files' contents by their names; ends with 2 where one can't be read."""
    texts: dict[str, str] = {}
    bad: list[str] = []
    for file in files:
        try:
            with file.open("rb") as opened:
                content = opened.read(MAX_BYTES + 1)  # all of it may be more than there is memory for
            if len(content) > MAX_BYTES:
                bad.append(f"{file} has more than {size(MAX_BYTES)}: it is no workflow and no pipeline")
            else:
                texts[str(file)] = content.decode("utf-8-sig")
        except IsADirectoryError:
            bad.append(f"{file} is a directory: give its files")
        except OSError as error:
            bad.append(f"{file}: {error.strerror or error}")
        except UnicodeDecodeError as error:
            bad.append(f"{file}: byte {error.start} is not UTF-8; it must be YAML in UTF-8")
    for line in bad:
        tell(f"lint: {line}")
    if bad:
        raise typer.Exit(2)
    return texts


def _place(one: Finding) -> str:
    return f"{one.where}: " if one.where else ""


def _document(files: list[str], findings: Sequence[Finding], counts: Counter[Any]) -> dict[str, Any]:
    """Returns what was found as JSON has it."""
    return {
        "version": 1,
        "files": files,
        "errors": counts["error"],
        "warnings": counts["warning"],
        "findings": [asdict(one) | {"severity": one.severity} for one in findings],
    }
