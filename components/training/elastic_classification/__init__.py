"""Shows the confusion matrix and the ROC curve that a training's script left beside its model."""

from .component import elastic_classification

__all__ = ["elastic_classification"]
