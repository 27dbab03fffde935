"""Documents and jobs that tests of hints are about, by hand and at random."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from elastic_launcher.hints import Demand, Document, parse

OBSERVED = 1_795_000_000.0


def text(*hints: dict[str, Any], **more: Any) -> str:
    """Returns a document of form B."""
    return json.dumps({"apiVersion": "elastic-hints/v1", "hints": list(hints), **more})


def hint(allowed: int = 4, guaranteed: int | None = None, limit: int | None = None, **more: Any) -> dict[str, Any]:
    """Returns an entry; ``match`` and all else as given."""
    gpus = {"guaranteed": guaranteed, "allowed": allowed, "limit": limit}
    return {"gpus": {name: value for name, value in gpus.items() if value is not None}, **more}


def document(*hints: dict[str, Any], **more: Any) -> Document:
    """Returns a document of form B, parsed."""
    return parse(text(*hints, **more))


@st.composite
def hints(draw: st.DrawFn) -> dict[str, Any]:
    """Any entry that is right, for any job that `demands` makes."""
    guaranteed, allowed, limit = sorted(draw(st.tuples(*[st.integers(0, 40)] * 3)))
    entry = hint(allowed)
    entry["gpus"] |= draw(st.sampled_from([{}, {"guaranteed": guaranteed}]))
    entry["gpus"] |= draw(st.sampled_from([{}, {"limit": limit}]))
    optional: dict[str, st.SearchStrategy[Any]] = {
        "match": st.dictionaries(st.sampled_from(("namespace", "job")), st.sampled_from(("a", "b", "*", "a*"))),
        "priority": st.integers(-2, 2),
        "gpusPerNode": st.integers(1, 4),
        "sizes": st.lists(st.integers(1, 40), max_size=5),
        "reclaim": st.fixed_dictionaries({"to": st.integers(0, 40)}),
    }
    return entry | draw(st.fixed_dictionaries({}, optional=optional))


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    """Any job."""
    least, most = sorted(draw(st.tuples(st.integers(1, 12), st.integers(1, 12))))
    parts = draw(st.integers(1, 4))
    return Demand(
        draw(st.dictionaries(st.sampled_from(("namespace", "job")), st.sampled_from(("a", "b")))),
        least,
        most,
        draw(st.integers(1, 4)),
        draw(st.none() | st.integers(1, 64)),
        draw(st.none() | st.integers(1, parts).map(lambda part: (part, parts))),
    )
