"""Quota hints: what a job may use now, where that is written, and when the job follows."""

from elastic_launcher.hints.debounce import Debounce
from elastic_launcher.hints.document import Document, parse
from elastic_launcher.hints.edit import edit
from elastic_launcher.hints.file import FileSource
from elastic_launcher.hints.match import parse_match
from elastic_launcher.hints.policy import HintPolicy, Outcome
from elastic_launcher.hints.resolve import Demand, Resolution, most_samples, resolve
from elastic_launcher.hints.source import HintRead, HintSource
from elastic_launcher.hints.values import HintError

__all__ = [
    "Debounce",
    "Demand",
    "Document",
    "FileSource",
    "HintError",
    "HintPolicy",
    "HintRead",
    "HintSource",
    "Outcome",
    "Resolution",
    "edit",
    "most_samples",
    "parse",
    "parse_match",
    "resolve",
]
