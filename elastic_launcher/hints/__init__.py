"""Quota hints: what a job may use now, who says so, and when the job follows."""

from elastic_launcher.hints.debounce import Debounce
from elastic_launcher.hints.document import MATCH_KEYS, Document, HintError, parse, parse_match
from elastic_launcher.hints.file import FileSource
from elastic_launcher.hints.policy import HintPolicy, HintRead, Outcome
from elastic_launcher.hints.resolve import Demand, Resolution, resolve
from elastic_launcher.hints.source import HintSource

__all__ = [
    "MATCH_KEYS",
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
    "parse",
    "parse_match",
    "resolve",
]
