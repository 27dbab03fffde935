"""The body of ``elastic_classification``: shows a training's confusion matrix and ROC curve in Kubeflow.

The training step leaves it in the file of its ``metrics``: Kubeflow registers each artifact that a component declares,
so one of its own there would be an empty one of every run that classifies nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elastic_launcher.pipeline_step import StepFailed
from elastic_launcher.workdir import CLASSES

FORM = '{"labels": [...], "matrix": [[...]], "roc": [{"fpr": ..., "tpr": ..., "threshold": ...}]}'
_KEY = "classes"


def metrics_text(metrics: Mapping[str, float], classes: Mapping[str, Any] | None = None) -> str:
    """Returns what the file of a training's metrics says, with what the script left of its classes, if any."""
    document = {"metrics": dict(metrics), **({_KEY: classes} if classes else {})}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def read_classes(text: str) -> dict[str, Any]:
    """Returns what a script left of its classes: labels as texts, with a matrix, a ROC curve, or both.

    Raises:
        ValueError: If it is no such document, naming the part.
    """
    found = json.loads(text)
    if not isinstance(found, dict) or not ({"matrix", "roc"} & set(found)):
        raise ValueError('neither "matrix" nor "roc" is in it')
    classes: dict[str, Any] = {}
    if "matrix" in found:
        labels, matrix = found.get("labels"), found["matrix"]
        if not isinstance(labels, list) or not labels:
            raise ValueError('"labels" must be a list, with a label for each row of the matrix')
        if not isinstance(matrix, list) or [_numbers(row) for row in matrix] != [len(labels)] * len(labels):
            raise ValueError(f'"matrix" must have {len(labels)} rows of {len(labels)} numbers, as there are labels')
        classes |= {"labels": [str(one) for one in labels], "matrix": matrix}
    if "roc" in found:
        points = _with_finite_first(found["roc"])
        keys = ("fpr", "tpr", "threshold")
        if not isinstance(points, list) or any(
            not isinstance(one, dict) or _numbers([one.get(key) for key in keys]) != len(keys) for one in points
        ):
            raise ValueError('each point of "roc" must have the finite numbers fpr, tpr and threshold')
        classes["roc"] = [{key: one[key] for key in keys} for one in points]
    return classes


def _with_finite_first(points: Any) -> Any:
    """Gives the first point of scikit-learn's `roc_curve`, whose threshold is infinite, one above all others."""
    if not isinstance(points, list) or len(points) < 2 or not all(isinstance(one, dict) for one in points):
        return points
    first, second = points[0].get("threshold"), points[1].get("threshold")
    if first != math.inf or type(second) not in (int, float):
        return points
    return [{**points[0], "threshold": second + 1}, *points[1:]]


def classification_step(metrics: Any, classification: Any) -> None:
    """Fills a ``ClassificationMetrics`` with what a training left of its classes in its artifact of metrics.

    Raises:
        StepFailed: If the training left nothing of the kind.
    """
    try:
        found = json.loads(Path(metrics.path).read_text(encoding="utf-8"))[_KEY]
    except (OSError, ValueError, KeyError, TypeError):
        raise StepFailed(
            f"the training said nothing of its classes: its script has to write $ELASTIC_OUTPUT{CLASSES} ({FORM})"
        ) from None
    if "matrix" in found:
        classification.log_confusion_matrix(found["labels"], found["matrix"])
    for one in found.get("roc", ()):
        classification.log_roc_data_point(one["fpr"], one["tpr"], one["threshold"])


def _numbers(row: Any) -> int:
    """Returns how many numbers a list has; -1 for what is no list of finite numbers."""
    try:
        good = isinstance(row, list) and all(type(one) in (int, float) and math.isfinite(one) for one in row)
    except OverflowError:  # a whole number beyond all floats
        good = False
    return len(row) if good else -1
