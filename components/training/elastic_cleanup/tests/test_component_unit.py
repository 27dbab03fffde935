"""The component called as a function, its body replaced."""

import pytest

from ..component import elastic_cleanup


def test_it_says_how_many_nodes_were_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number that the body returns."""
    from elastic_launcher.kfp_steps import cleanup

    monkeypatch.setattr(cleanup, "cleanup_step", lambda run_id, wait_seconds: 3)
    assert elastic_cleanup.python_func() == 3
