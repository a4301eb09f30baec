"""The differences between `take_over` and vLLM's own that stay. Their table is in docs/vllm.md.

Each is a function of a request, both outcomes and what differs; it is exact enough that nothing else hides
behind it.
"""

import re

__all__ = ["KNOWN", "explained"]

_ANSWER = {"shape", "finish", "valid", "events", "text", "logprobs"}
_REFUSAL = {"status", "error", *_ANSWER}
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)


def explained(ask, ours, theirs, fields):
    """The name of the known difference that explains all that differs; None if none does."""
    found = (name for name, holds in KNOWN.items() if holds(ask, ours, theirs, set(fields)))
    return next(found, None)


def _compact(ask, ours, theirs, fields):
    """JSON without whitespace; vLLM's has some, and so runs into `length` instead, or goes on differently."""
    if (
        not fields <= _ANSWER
        or ours.get("valid")
        or not any("{" in one or "[" in one for one in _texts(theirs))
    ):
        return False
    if ours["finish"].count("length") > theirs["finish"].count("length"):
        return False
    return _spaces(ours) < _spaces(theirs) or (ask.body.get("stream") and _held_back(ours, theirs, fields))


def _enforced(ask, ours, theirs, fields):
    """A keyword that vLLM refuses."""
    served = (ours["status"], theirs["status"]) == (200, 400)
    return "hard" in ask.tags and fields <= _REFUSAL and served and not ours["valid"]


def _whitespace_pattern(ask, ours, theirs, fields):
    return "whitespace" in ask.tags and _refused(ours, theirs, fields)


def _empty_regex(ask, ours, theirs, fields):
    return "empty regex" in ask.tags and _refused(ours, theirs, fields)


def _beam_search(ask, ours, theirs, fields):
    return "beams" in ask.tags and _refused(ours, theirs, fields)


def _line_breaks(ask, ours, theirs, fields):
    """`.` takes no line break, as in ECMA 262."""
    if fields != {"text"} or ask.pattern is None:
        return False
    return _all_match(ask.pattern, ours) and not _all_match(ask.pattern, theirs)


def _ignore_eos(ask, ours, theirs, fields):
    """Nothing follows the end of what was asked for."""
    pairs = zip(ours.get("text", ()), theirs.get("text", ()), strict=True)
    goes_on = all(more[0].startswith(text[0]) for text, more in pairs)
    return "ignore_eos" in ask.tags and fields <= {"text", "logprobs"} and goes_on


def _before_the_stream(ask, ours, theirs, fields):
    """A refusal that vLLM tells in the stream."""
    return (
        ask.body.get("stream") and fields == {"status"} and (ours["status"], theirs["status"]) == (400, 200)
    )


KNOWN = {
    "compact": _compact,
    "enforced": _enforced,
    "whitespace-pattern": _whitespace_pattern,
    "empty-regex": _empty_regex,
    "beam-search": _beam_search,
    "line-breaks": _line_breaks,
    "ignore-eos": _ignore_eos,
    "before-the-stream": _before_the_stream,
}


def _refused(ours, theirs, fields):
    return fields <= _REFUSAL and (ours["status"], theirs["status"]) == (400, 200)


def _held_back(ours, theirs, fields):
    """A stream of a call that ran into its length in whitespace, which vLLM's parser does not show."""
    pairs = list(zip(_texts(ours), _texts(theirs), strict=False))
    return fields == {"finish"} and theirs["finish"] == ["length"] and all(a.startswith(b) for a, b in pairs)


def _texts(found):
    """Texts and arguments of calls."""
    texts = [text for text, _ in found.get("text", ())]
    return texts + [call["arguments"] for _, calls in found.get("text", ()) for _, call in calls]


def _spaces(found):
    """Whitespace outside of strings."""
    return sum(len(re.findall(r"\s", _STRING.sub("", text))) for text in _texts(found))


def _all_match(pattern, found):
    return all(re.fullmatch(pattern, text) for text, _ in found["text"])
