"""Every error this package raises. Depends on nothing.

    GuidedError                     the root: catch this one
    ├── SpecError                   a spec is malformed; `where` is the path inside it
    ├── GrammarError                a backend can't build a grammar for a well-formed spec
    │   ├── UnsupportedSpecError    no backend enforces something the spec asks for
    │   ├── UnsatisfiableSpecError  the spec allows no output at all
    │   └── CompileLimitError       compiling went over its time, memory or size limit
    ├── VocabularyError             a tokenizer, or its fit with a model, can't be used
    ├── ConfigError                 an option is unknown or has a wrong value
    ├── MissingPackageError         a package is needed that is not installed
    ├── PluginError                 a plugin is broken, unknown or disabled
    ├── PipelineError               a host called the pipeline out of order or out of range
    │   └── BusyError               there is no room for a compile now: try again
    ├── OutputError                 an output is not a value of the type that was asked for
    └── RequestError                one guided request failed while it ran; the others go on
        └── BudgetError             a mask or a token of it took more time than one request may take

Each says what is wrong, where, what to do about it (`hint`) and, once there is one,
which request it belongs to. Messages quote clients and end up in logs: pass a client's
values through `shown`, and its texts through `printable`.
"""

from __future__ import annotations

import copy
import difflib
import reprlib
from collections import Counter
from collections.abc import Iterable

MAX_CHARACTERS = 1_000
"""The most characters of each field of a message."""


class GuidedError(Exception):
    """An error of the package: what is wrong, where, what to do, and the request it
    belongs to."""

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        hint: str = "",
        request_id: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint
        self.request_id = request_id

    def __str__(self) -> str:
        request = (
            f"request {printable(self.request_id)}: "
            if self.request_id is not None
            else ""
        )
        return request + self.reason

    @property
    def reason(self) -> str:
        """The message without the request's id: one line of bounded length, of
        printable characters, whatever the fields quote."""
        where = f"{printable(self.where)}: " if self.where else ""
        hint = f" ({printable(self.hint)})" if self.hint else ""
        return f"{where}{printable(self.what)}{hint}"

    def to_dict(self) -> dict[str, str]:
        """The type, and what is wrong, where and what to do, for JSON."""
        return {
            "type": type(self).__name__,
            "what": self.what,
            "where": self.where,
            "hint": self.hint,
        }

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries (a grammar worker, an engine core): keep every
        # field. A plugin's own class may be unknown on the other side.
        kind = next(kind for kind in type(self).__mro__ if kind.__module__ == __name__)
        request_id = None if self.request_id is None else str(self.request_id)
        return rebuild, (kind, self.what, self.where, self.hint, request_id)

    def for_request(self, request_id: str) -> GuidedError:
        """Return this error, attributed to one request. A plugin's own class may take
        other arguments: it becomes the class of this module that it is of."""
        told = copy.copy(self)
        told.request_id = request_id
        return told

    def under(self, place: str) -> GuidedError:
        """Return this error, with `place` in front of its own `where`."""
        told = copy.copy(self)
        told.where = f"{place}: {self.where}" if self.where else place
        return told


def rebuild(
    kind: type[GuidedError], what: str, where: str, hint: str, request_id: str | None
) -> GuidedError:
    """An error received from another process."""
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


class MissingPackageError(GuidedError, ImportError):
    """A package is needed that is not installed: an extra of this one has it."""

    @classmethod
    def of(cls, error: ModuleNotFoundError, where: str) -> Exception:
        """The error of an import, told with the extra to install; as it is where no
        extra has the module."""
        module = (error.name or "").partition(".")[0]
        extra = _EXTRAS.get(module)
        if extra is None:
            return error
        hint = f"pip install 'guided-plugin[{extra}]'; without a GPU, PyTorch's CPU build first"
        return cls(f"needs {module}, which is not installed", where=where, hint=hint)


_EXTRAS = {
    "xgrammar": "torch",
    "torch": "transformers",
    "transformers": "transformers",
    "tokenizers": "transformers",
    "vllm": "vllm",
}
"""The extra that brings a module which this package is installed without, as
pyproject.toml has it."""


class PluginError(GuidedError):
    """A plugin is broken, unknown or disabled."""


class PipelineError(GuidedError):
    """A host called the pipeline out of order or out of range."""


class BusyError(PipelineError):
    """There is no room for a compile now. Nothing is wrong with the spec: try again."""


class OutputError(GuidedError, ValueError):
    """An output is not a value of the type: it was truncated, or a validator refuses
    it."""


class RequestError(GuidedError):
    """One guided request failed while it ran; the others go on."""


class BudgetError(RequestError):
    """A mask or a token of one request took more time than one request may take."""


ERRORS: tuple[type[GuidedError], ...] = tuple(
    kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, GuidedError)
)
"""All of them."""


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known one, or all of them."""
    names = sorted(set(known))
    text = word[:100] if isinstance(word, str) else shown(word)
    near = difflib.get_close_matches(text, names, n=1, cutoff=0.6)
    return (
        f"did you mean {near[0]!r}?"
        if near
        else "known: " + (", ".join(names) or "none")
    )


def near_miss(word: object, known: Iterable[str]) -> str:
    """The known name that a word looks like without being one; empty where it is one,
    or like none."""
    names = list(known)
    if not isinstance(word, str) or len(word) > _LONGEST_NAME or word in names:
        return ""
    near = next(iter(difflib.get_close_matches(word, names, n=1, cutoff=0.8)), "")
    written = Counter(word)
    meant = Counter(near)
    # letters in another order are none
    edits = max((written - meant).total(), (meant - written).total())
    # `propertiesOrder` has a word more
    return near if edits <= max(1, len(near) // 5) else ""


_LONGEST_NAME = 60
"""Characters of a word that is compared with names: chosen, all of them have fewer."""


def printable(text: object, limit: int = MAX_CHARACTERS) -> str:
    """Text that a client may have written, as one line of bounded length. Characters
    that can't be printed (line ends, escape sequences of terminals, marks that turn the
    direction of text) are escaped."""
    line = str(text)
    if len(line) > 2 * limit:  # its ends, before each character is looked at
        line = line[:limit] + line[-limit:]
    if not line.isprintable():
        line = "".join(
            char if char.isprintable() else repr(char)[1:-1] for char in line
        )
    if len(line) > limit:
        middle = limit - limit // 4 - len(_LEFT_OUT)
        line = line[:middle] + _LEFT_OUT + line[-(limit // 4) :]
    return line


_LEFT_OUT = " ... "


def place_in(what: str, text: str, position: int) -> str:
    """A place in a text, as errors name it."""
    line = text.count("\n", 0, position) + 1
    return f"{what}, line {line}, column {position - text.rfind(chr(10), 0, position)}"


def shown(value: object) -> str:
    """A value that a client sent, as messages quote it: like `repr`, of bounded length
    and depth."""
    try:
        return _bounded.repr(value)
    except Exception:  # a value of a client's own class
        return f"<{type(value).__name__}>"


_bounded = reprlib.Repr()
_bounded.maxlevel = 3
_bounded.maxstring = _bounded.maxother = 80
