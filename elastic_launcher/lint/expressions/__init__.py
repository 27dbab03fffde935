"""Argo's expression language: words, parser, types."""
