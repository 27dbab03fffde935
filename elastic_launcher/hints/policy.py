"""Which document is in force: the last good one, whatever comes after it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from elastic_launcher.hints.document import Document, HintError, parse


@dataclass(frozen=True, slots=True)
class HintRead:
    """What a source found.

    Attributes:
        text: The document, or None if there is none.
        identity: What tells a new object from a changed one (a file that came back, another uid).
        error: Why there is none, if it could not be read.
    """

    text: str | bytes | None
    identity: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a read has changed.

    Attributes:
        kind: ``applied``, ``rejected``, ``missing``, ``older`` or ``same``.
        message: What to tell the user; empty for ``applied`` and ``same``.
    """

    kind: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class HintPolicy:
    """The document in force, and what is needed to judge the next one.

    Attributes:
        name: What the source is called in messages.
        document: The last good one, or None.
        version: Counts the documents that were applied; stands in for a missing generation.
    """

    name: str
    document: Document | None = None
    version: int = 0
    _text: str | bytes | None = None
    _identity: str | None = None
    _told: str | bytes | None = None

    def read(self, found: HintRead) -> tuple[HintPolicy, Outcome]:
        """Judges what a source found."""
        if found.text is None:
            gone = replace(self, _identity=None, _text=None, _told=None)
            if self._identity is None and self._told is not None:
                return self, Outcome("same")
            return replace(gone, _told=b""), Outcome(
                "missing", f"hints: {self.name}: {found.error or 'it is not there'}"
            )
        if found.text == self._text and found.identity == self._identity:
            return self, Outcome("same")
        same_object = self._identity is not None and found.identity == self._identity
        try:
            document = parse(found.text)
        except HintError as error:
            return self._reject(found, str(error))
        old = self.document.generation if self.document is not None and same_object else None
        if old is not None and document.generation is not None:
            if document.generation < old:
                return replace(self, _told=found.text), Outcome(
                    "older", f"hints: {self.name}: generation {document.generation} is older than {old}; ignored"
                )
            if document.generation == old and found.text != self._text:
                return self._reject(found, f"generation {old} again, with other content; raise generation")
        applied = replace(
            self,
            document=document,
            version=self.version + 1,
            _text=found.text,
            _identity=found.identity,
            _told=None,
        )
        return applied, Outcome("applied", "; ".join(document.warnings))

    def _reject(self, found: HintRead, why: str) -> tuple[HintPolicy, Outcome]:
        if found.text == self._told:
            return self, Outcome("same")
        kept = "" if self.document is None else " The last good document stays in force."
        return replace(self, _told=found.text), Outcome("rejected", f"hints: {self.name}: {why}.{kept}")
