"""The component called as a function."""

import pytest

from ..component import elastic_verdict


def test_it_is_red_when_the_training_was_not_done() -> None:
    """And green when it was."""
    elastic_verdict.python_func(exit_code=0)
    with pytest.raises(RuntimeError, match="the training script failed"):
        elastic_verdict.python_func(exit_code=1, reason="the training script failed")
