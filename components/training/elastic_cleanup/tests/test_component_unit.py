"""The component called as a function, its body replaced."""

import pytest

from elastic_launcher._components.training.elastic_cleanup import component
from elastic_launcher.kfp_steps import cleanup


def test_it_says_how_many_nodes_were_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "cleanup_step", lambda run_id, wait_seconds: 3)
    assert component.elastic_cleanup.python_func() == 3
