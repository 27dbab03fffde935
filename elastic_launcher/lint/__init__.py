"""The linter: finds errors that API servers accept and that show only when the pipeline runs."""

from elastic_launcher.lint.check import lint
from elastic_launcher.lint.documents.finding import Finding
from elastic_launcher.lint.libraries import MissingLibrary
from elastic_launcher.lint.rules import RULES

__all__ = ["RULES", "Finding", "MissingLibrary", "lint"]
