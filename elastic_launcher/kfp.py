"""The Kubeflow Pipelines front: the reusable components, with caching off.

A cached training step does not train: with the same inputs as before Kubeflow answers it from its cache, even if the
script, image or quota has changed. So tasks of these components are made with caching off; call
``.set_caching_options(True)`` where that is wanted. Components that are loaded from ``component.yaml`` can't say it
themselves: there the pipeline does, with ``.set_caching_options(False)``.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from elastic_launcher.pipeline_step import StepFailed

__all__ = ["COMPONENTS", "StepFailed"]

COMPONENTS = (
    "elastic_train",
    "elastic_train_distributed",
    "elastic_plan",
    "elastic_verdict",
    "elastic_classification",
    "elastic_cleanup",
)
"""What there is; each is loaded when it is asked for, since inside a step kfp lacks what components are made with."""


def __getattr__(name: str) -> Any:
    if name in COMPONENTS:
        return _loaded(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def _loaded(name: str) -> Any:
    module = importlib.import_module(f"elastic_launcher._components.training.{name}")
    return _uncached(getattr(module, name))


def _uncached(component: Any) -> Any:
    """Returns the same component, whose tasks in a pipeline are made with caching off."""
    from kfp.dsl import pipeline_context
    from kfp.dsl.python_component import PythonComponent

    from elastic_launcher.kfp_steps.arrival import in_words, sent

    reads = {"script", "reason"} & set(component.component_spec.inputs)  # what is sent so that nothing changes it
    fractions = [name for name, one in component.component_spec.inputs.items() if one.type == "Float"]

    class Uncached(PythonComponent):
        def __call__(self, *args: Any, **inputs: Any) -> Any:
            # Kubeflow refuses a whole number there
            inputs |= {name: float(inputs[name]) for name in fractions if type(inputs.get(name)) is int}
            task = super().__call__(*args, **(sent(inputs) if reads else in_words(inputs)))
            if pipeline_context.Pipeline.get_default_pipeline() is not None:  # else it has run, here and now
                task.set_caching_options(False)
            return task

    return Uncached(component.component_spec, component.python_func)
