"""The component called as a function."""

import pytest

from elastic_launcher._components.training.elastic_verdict import component


def test_it_is_red_when_the_training_was_not_done() -> None:
    component.elastic_verdict.python_func(exit_code=0)
    with pytest.raises(RuntimeError, match="the training script failed"):
        component.elastic_verdict.python_func(exit_code=1, reason="the training script failed")
