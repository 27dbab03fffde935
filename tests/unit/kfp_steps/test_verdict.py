"""A training that ended green with its report is red one step later, for the same reason."""

import pytest

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
