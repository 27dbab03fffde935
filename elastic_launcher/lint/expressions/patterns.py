"""Checks a regular expression by Go's rules, which differ from Python's.

What Go has and Python has not is written for Python first; what Python has and Go has not is looked for.
"""

from __future__ import annotations

import re
import warnings

_PART = re.compile(
    r"""(?P<set>\[\^?\]?(?:\[:\^?\w*:\]|[^\]])*\])
    | (?P<strange>\(\?(?:[=!>\#(]|<[=!]|P=))
    | \(\?(?P<flags>[a-zA-Z]*(?P<off>-[a-zA-Z]*)?)(?P<end>[:)])
    | (?P<name>\(\?<)
    | (?P<anchor>[\^$])
    | (?P<literal>\{,\d*\})
    | (?P<often>[*+?]|\{(?P<least>\d+)(?:,(?P<most>\d*))?\})\??(?P<twice>[*+?]|\{\d+(?:,\d*)?\})?""",
    re.VERBOSE,
)
_FLAGS = frozenset("imsU-")
_MOST_TIMES = 1000


def pattern_fault(text: str) -> str:
    """Returns why a text without backslashes is no regular expression for Go, as far as that is certain; else ""."""
    faults = [fault for found in _PART.finditer(text) if (fault := _fault(found))]
    if faults:
        return faults[0]
    try:
        with warnings.catch_warnings(action="ignore"):
            re.compile(_PART.sub(_for_python, text))
    except (re.error, OverflowError) as error:
        return str(error).partition(" at position")[0]
    return ""


def _fault(found: re.Match[str]) -> str:
    if found["strange"]:
        return "Go's regular expressions have no such group"
    if found["flags"] is not None and (found["off"] == "-" or not _FLAGS.issuperset(found["flags"])):
        return f"Go has no flags {found['flags']}"
    if found["twice"]:
        return "a repetition is repeated"
    if any(number and (len(number) > 4 or int(number) > _MOST_TIMES) for number in (found["least"], found["most"])):
        return f"Go repeats {_MOST_TIMES} times at most"
    return ""


def _for_python(found: re.Match[str]) -> str:
    """Returns an equivalent part, to check whether it is allowed there."""
    if found["set"] and "[:" in found[0]:
        return "[a]"
    if found["flags"] is not None and found["end"] == ")":  # a repetition may come before it, and one after it
        return "(?:)" if found.string[: found.start()].endswith(("*", "+", "?", "}")) else ""
    if found["flags"] is not None:
        return "(?:"
    if found["literal"]:
        return re.escape(found[0])
    if found["name"]:
        return "(?P<"
    return f"(?:{found[0]})" if found["anchor"] else found[0]
