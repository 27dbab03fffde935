"""Keeps the document in force: the last valid one.

Invariants: of one object, the generations that are applied only grow; what can't be used changes nothing, and is said
once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from elastic_launcher.hints.document import Document, parse
from elastic_launcher.hints.resolve import skewed
from elastic_launcher.hints.source import HintRead
from elastic_launcher.hints.values import HintError


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a read.

    Attributes:
        kind: ``applied``, or, where nothing changed: ``rejected`` (broken, or the same generation with other content),
            ``older`` (an older generation), ``missing`` (not there, or not to be read), ``same``.
        message: The message for the user: for ``applied`` the warnings that are new, if any; empty for ``same``.
    """

    kind: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class HintPolicy:
    """The document in force, and what is needed to judge the next one.

    Attributes:
        name: What the source is called in messages.
        document: The last good document, or None.
        applied: What it was read from, or None.
        applied_at: When it was read, in seconds since the epoch, or None if not given.
        generation: The highest that was applied of this object, or None.
        vanished: Whether the object has gone since then: the next one is another.
        complained: The read that was complained about last.
    """

    name: str
    document: Document | None = None
    applied: HintRead | None = None
    applied_at: float | None = None
    generation: int | None = None
    vanished: bool = False
    complained: HintRead | None = None

    def read(self, found: HintRead, now: float | None = None) -> tuple[HintPolicy, Outcome]:
        """Judges what a source found.

        Args:
            found: What it found.
            now: Seconds since the epoch. With it, messages say how old the document in force is, and one that was
                observed in the future counts as observed now.
        """
        if found == self.complained:
            return self, Outcome("same")
        if found.text is None:
            return self._miss(found, now)
        if found == self.applied and not self.vanished:
            return replace(self, complained=None), Outcome("same")
        try:
            document = parse(found.text)
        except HintError as error:
            return self._refuse(found, "rejected", str(error), now)
        old = self._generation_of(found)
        if old is not None and document.generation is not None and document.generation <= old:
            if self._is_applied(document):
                return replace(self, applied=found, complained=None), Outcome("same")
            return self._refuse_old(found, document.generation, old, now)
        return self._apply(found, document, old, now)

    def _generation_of(self, found: HintRead) -> int | None:
        """Returns what a document's generation has to exceed; a new object starts the count again."""
        same_object = self.applied is not None and not self.vanished and found.identity == self.applied.identity
        return self.generation if same_object else None

    def _is_applied(self, document: Document) -> bool:
        """Returns whether a document is that in force as it was read, only laid out in another way."""
        text = None if self.applied is None else self.applied.text
        return text is not None and document == parse(text)

    def _miss(self, found: HintRead, now: float | None) -> tuple[HintPolicy, Outcome]:
        policy = self if found.error else replace(self, vanished=True)
        return policy._refuse(found, "missing", found.error or "it is not there", now)

    def _refuse_old(self, found: HintRead, new: int, old: int, now: float | None) -> tuple[HintPolicy, Outcome]:
        if new < old:
            return self._refuse(found, "older", f"generation {new} is older than {old}, and ignored", now)
        why = f'generation {new} is there again with other content; "generation" must grow with each change'
        return self._refuse(found, "rejected", why, now)

    def _refuse(self, found: HintRead, kind: str, why: str, now: float | None) -> tuple[HintPolicy, Outcome]:
        return replace(self, complained=found), Outcome(kind, f"hints: {self.name}: {why}{self._what_stays(now)}")

    def _what_stays(self, now: float | None) -> str:
        if self.document is None:
            return ""
        facts = [f"generation {self.document.generation}"] if self.document.generation is not None else []
        since = self.applied_at if self.document.observed_at is None else self.document.observed_at
        if now is not None and since is not None:
            facts.append(f"{_duration(now - since)} old")
        return f". The last good document{' (' + ', '.join(facts) + ')' if facts else ''} stays in force."

    def _apply(
        self, found: HintRead, document: Document, old: int | None, now: float | None
    ) -> tuple[HintPolicy, Outcome]:
        if now is not None and skewed(document, now):
            odd = '"observedAt" is in the future, by a clock that is ahead; it is taken as now'
            document = replace(document, observed_at=now, warnings=(*document.warnings, odd))
        said = self.document.warnings if self.document is not None else ()
        news = [warning for warning in document.warnings if warning not in said]
        policy = HintPolicy(
            self.name,
            document,
            applied=found,
            applied_at=now,
            generation=old if document.generation is None else document.generation,
        )
        return policy, Outcome("applied", "; ".join(news))


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.0f} h"
