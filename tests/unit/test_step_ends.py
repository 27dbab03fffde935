"""How a step that fails says why: once, with what its launcher said last."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from elastic_launcher import step


def test_the_lines_of_a_run_that_were_just_shown_are_not_shown_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "print('a line'); print('elastic-launcher: stopped after step 9; step 9 is saved'); raise SystemExit(75)"
    (tmp_path / "python").write_text(f"#!{sys.executable}\n{lines}\n")
    monkeypatch.setattr(step, "run_arguments", lambda *_: [])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(step.StepFailed) as failed:
        step.train(script="train.py", module="", arguments=(), options={}, work_dir=str(tmp_path / "job"), artifacts="")
    assert capsys.readouterr().out.count("a line") == 1
    why = "the training was preempted or stopped (exit code 75): stopped after step 9; step 9 is saved"
    assert str(failed.value) == why
    assert "a line\nelastic-launcher: stopped after step 9; step 9 is saved\n" in failed.value.account
