"""Reusable Kubeflow Pipelines components, laid out as in kubeflow/pipelines-components."""
