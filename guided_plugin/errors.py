"""Every error this package raises. Depends on nothing.

    GuidedError                     the root: catch this one
    ├── SpecError                   a spec is malformed; `where` is the path inside it
    ├── GrammarError                a backend can't build a grammar for a well-formed spec
    │   ├── UnsupportedSpecError    no backend enforces something the spec asks for
    │   ├── UnsatisfiableSpecError  the spec allows no output at all
    │   └── CompileLimitError       compiling went over its time, memory or size limit
    ├── VocabularyError             a tokenizer, or its fit with a model, can't be used
    ├── ConfigError                 an option is unknown or has a wrong value
    ├── PluginError                 a plugin is broken, unknown or disabled
    ├── PipelineError               a host called the pipeline out of order or out of range
    └── RequestError                one guided request failed while it ran; the others go on
        └── BudgetError             a mask or a token of it took more time than one request may take

Each says what is wrong, where, what to do about it (`hint`) and, once there is one, which request it
belongs to.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "BudgetError",
    "CompileLimitError",
    "ConfigError",
    "GrammarError",
    "GuidedError",
    "PipelineError",
    "PluginError",
    "RequestError",
    "SpecError",
    "UnsatisfiableSpecError",
    "UnsupportedSpecError",
    "VocabularyError",
    "did_you_mean",
]


class GuidedError(Exception):
    """What is wrong, where, what to do, and the request it belongs to."""

    def __init__(self, what: str, *, where: str = "", hint: str = "", request_id: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint
        self.request_id = request_id

    def __str__(self) -> str:
        request = f"request {self.request_id}: " if self.request_id is not None else ""
        return request + self.reason

    @property
    def reason(self) -> str:
        """The message without the request's id."""
        where = f"{self.where}: " if self.where else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{where}{self.what}{hint}"

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries (a grammar worker, an engine core): keep every field.
        return _rebuild, (type(self), self.what, self.where, self.hint, self.request_id)

    def for_request(self, request_id: str) -> GuidedError:
        """The same error, told as the error of one request."""
        return type(self)(self.what, where=self.where, hint=self.hint, request_id=request_id)


def _rebuild(
    kind: type[GuidedError], what: str, where: str, hint: str, request_id: str | None
) -> GuidedError:
    return kind(what, where=where, hint=hint, request_id=request_id)


class SpecError(GuidedError, ValueError):
    """A spec is malformed; `where` is the path inside it."""


class GrammarError(GuidedError):
    """A backend can't build a grammar for a well-formed spec."""


class UnsupportedSpecError(GrammarError):
    """No backend enforces something the spec asks for."""


class UnsatisfiableSpecError(GrammarError):
    """The spec allows no output at all."""


class CompileLimitError(GrammarError):
    """Compiling went over its time, memory or size limit."""


class VocabularyError(GuidedError):
    """A tokenizer, or its fit with a model, can't be used."""


class ConfigError(GuidedError, ValueError):
    """An option is unknown or has a wrong value."""


class PluginError(GuidedError):
    """A plugin is broken, unknown or disabled."""


class PipelineError(GuidedError):
    """A host called the pipeline out of order or out of range."""


class RequestError(GuidedError):
    """One guided request failed while it ran; the others go on."""


class BudgetError(RequestError):
    """A mask or a token of one request took more time than one request may take."""


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known one, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(str(word), names, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else "known: " + (", ".join(names) or "none")
