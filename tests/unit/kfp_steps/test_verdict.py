"""A training that ended green with its report is red one step later, for the same reason."""

from pathlib import Path

import pytest
import yaml
from kfp import compiler, dsl

from elastic_launcher.kfp import elastic_verdict
from elastic_launcher.kfp_steps.arrival import untouched
from elastic_launcher.kfp_steps.verdict import verdict_step
from elastic_launcher.pipeline_step import StepFailed


def test_a_training_that_is_done_is_green(capsys: pytest.CaptureFixture[str]) -> None:
    verdict_step(0, "done")
    assert "the training is done" in capsys.readouterr().out


@pytest.mark.parametrize("code", [1, 2, 70, 75, 76])
def test_any_other_end_is_red_with_its_reason(code: int) -> None:
    with pytest.raises(StepFailed, match="ArithmeticError: no"):
        verdict_step(code, "the training script failed. ArithmeticError: no")
    with pytest.raises(StepFailed, match=f"exit code {code}"):
        verdict_step(code, "")


def test_a_constant_reason_arrives_as_it_was_given(tmp_path: Path) -> None:
    reason = "KeyError: '{{x}}' of $(HOME), \"$$\""

    @dsl.pipeline
    def run() -> None:
        elastic_verdict(exit_code=1, reason=reason)

    compiler.Compiler().compile(run, str(tmp_path / "run.yaml"))
    tasks = yaml.safe_load((tmp_path / "run.yaml").read_text())["root"]["dag"]["tasks"]
    given = tasks["elastic-verdict"]["inputs"]["parameters"]["reason"]["runtimeValue"]["constant"]
    assert "{{" not in given and "$" not in given
    with pytest.raises(StepFailed) as raised:
        verdict_step(1, given)
    assert str(raised.value).startswith(reason)


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("KeyError: '{{x}}'", "KeyError: '{ {x}}'"),
        ("{{{a}}} $$$(HOME) $5 {x}", "{ { {a}}} $ $ $ (HOME) $5 {x}"),
    ],
)
def test_a_reason_that_another_step_is_given_holds_nothing_that_would_be_filled_in(text: str, sent: str) -> None:
    assert untouched(text) == sent
