"""The component called as a function, its body replaced: all that it is given is handed on, by name."""

from typing import Any

import pytest

from ..component import elastic_train_distributed as step

OUTPUTS = (2, 3, 0.9, 120, "/jobs/1", 0, "done")


def test_all_parameters_and_artifacts_are_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given, and the defaults of the rest, and the artifacts."""
    from elastic_launcher.kfp_steps import training

    handed: dict[str, Any] = {}
    monkeypatch.setattr(training, "train_step", lambda given: handed.update(given) or OUTPUTS)
    artifacts = {name: object() for name in ("model", "metrics", "timeline", "summary")}
    own = {name: object() for name in step.component_spec.inputs if name == "task_config"}
    assert step.python_func(**artifacts, **own, script="train.py", max_nodes=3) == OUTPUTS
    assert handed == {
        **{name: given.default for name, given in step.component_spec.inputs.items()},
        **artifacts,
        **own,
        "script": "train.py",
        "max_nodes": 3,
    }


def test_each_scalar_output_has_its_value() -> None:
    """In the order in which the body returns them."""
    outputs = list(step.component_spec.outputs)
    names = ["world_size_final", "resizes_total", "goodput", "steps", "job_dir", "exit_code", "reason"]
    assert outputs[-len(names) :] == names
