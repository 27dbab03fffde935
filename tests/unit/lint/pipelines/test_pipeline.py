"""The linter knows all components that there are: none is forgotten when one more is made."""

from __future__ import annotations

from elastic_launcher import kfp
from elastic_launcher.lint.pipelines.pipeline import STEPS, UNCACHED

_COMPONENTS = {name: getattr(kfp, name).component_spec for name in kfp.COMPONENTS}


def test_those_that_train_are_known() -> None:
    assert set(STEPS) == {name for name, spec in _COMPONENTS.items() if "script" in spec.inputs}


def test_all_but_those_that_only_show_do_what_their_inputs_alone_do_not_say() -> None:
    assert set(UNCACHED) == set(_COMPONENTS) - {"elastic_verdict", "elastic_classification"}
