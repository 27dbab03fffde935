"""Checks of compiled Kubeflow pipelines."""
