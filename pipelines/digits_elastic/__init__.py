"""Handwritten digits, trained by a step that changes its size: prepare, elastic_train, evaluate."""
