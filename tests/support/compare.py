"""What a client sees of a request to a server with `take_over`, and to one with vLLM's
own structured output.

The differences that stay are in `KNOWN`, and in the table of docs/vllm.md.
"""

import json
import math
import re
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

FIELDS = ("status", "error", "shape", "finish", "valid", "events", "text", "logprobs")
"""What is compared."""
_SECONDS = 240
_ANSWER = {"shape", "finish", "valid", "events", "text", "logprobs"}
_REFUSAL = {"status", "error", *_ANSWER}
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)


def compared(urls, asks):
    """Of each request: it, the outcomes at both servers, the fields that differ."""
    with ThreadPoolExecutor(8) as pool:
        both = [
            list(pool.map(lambda ask, url=url: outcome(url, ask), asks)) for url in urls
        ]
    for ask, ours, theirs in zip(
        asks,
        *both,
        strict=True,
    ):
        # Texts and logprobs are compared where both follow one language: JSON and tools
        # have several.
        open_ = ask.pattern is None and "option" not in ask.tags
        names = [
            name for name in FIELDS if not open_ or name not in ("text", "logprobs")
        ]
        yield (
            ask,
            ours,
            theirs,
            {name for name in names if ours.get(name) != theirs.get(name)},
        )


def outcome(url, ask):
    """Send a request; what came of it."""
    status, events = _send(url + ask.path, ask.body)
    failed = next(
        (
            event.get("error", event)
            for event in events
            if status != 200 or event.get("error")
        ),
        None,
    )
    if failed is not None:
        about = {
            "keys": sorted(failed),
            "type": failed.get("type"),
            "code": failed.get("code"),
        }
        return {
            "status": status,
            "error": about,
            "message": str(failed.get("message"))[:160],
        }
    return {
        "status": 200,
        **(_response if ask.path.endswith("responses") else _choices)(ask, events),
    }


def _send(url, body):
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, [json.loads(error.read())]
    if not body.get("stream"):
        return 200, [json.loads(text)]
    parts = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return 200, [
        {"done": True} if part == "[DONE]" else json.loads(part) for part in parts
    ]


def _choices(ask, events):
    """Of a completion or a chat, streamed or not."""
    texts = {}
    calls = {}
    finish = {}
    kinds = set()
    logprobs = {}
    shape = set()
    for event in events:
        shape |= {f"usage.{key}" for key in event.get("usage") or ()}
        kinds |= {name for name in ("usage", "done") if event.get(name)}
        for choice in event.get("choices", ()):
            at = choice["index"]
            message = choice.get("message") or choice.get("delta") or {}
            texts[at] = texts.get(at, "") + (
                choice.get("text") or message.get("content") or ""
            )
            _add_calls(calls.setdefault(at, {}), message.get("tool_calls") or ())
            if choice.get("finish_reason") is not None:
                finish[at] = choice["finish_reason"]
                kinds.add("finish")
            kinds |= {
                name
                for name in ("content", "tool_calls", "text")
                if {**choice, **message}.get(name)
            }
            shape |= {f"choice.{key}" for key in choice} | {
                f"message.{key}" for key in message
            }
            logprobs.setdefault(at, []).extend(_logprobs(choice.get("logprobs")))
    ended = [at for at in texts if finish.get(at) in ("stop", "tool_calls")]
    return {
        "shape": sorted(shape),
        "finish": [finish.get(at) for at in sorted(texts)],
        "valid": [
            wrong
            for at in ended
            if (wrong := ask.judge(texts[at], list(calls[at].values())))
        ],
        "events": sorted(kinds) if len(events) > 1 else [],
        "text": [[texts[at], sorted(calls[at].items())] for at in sorted(texts)],
        "logprobs": [logprobs[at] for at in sorted(texts)],
    }


def _add_calls(calls, parts):
    for number, part in enumerate(parts):
        one = calls.setdefault(part.get("index", number), {"name": "", "arguments": ""})
        for key in one:
            one[key] += (part.get("function") or {}).get(key) or ""


def _logprobs(found):
    """By position: logprobs of what was sampled and of what could have been,
    rounded."""
    if not found:
        return []
    if found.get("content") is not None:
        each = [
            [one["logprob"], *(top["logprob"] for top in one["top_logprobs"])]
            for one in found["content"]
        ]
    else:
        tops = found.get("top_logprobs") or [{}] * len(found["token_logprobs"])
        own = found["token_logprobs"]
        each = [
            [first, *(top or {}).values()]
            for first, top in zip(
                own,
                tops,
                strict=True,
            )
        ]
    return [
        sorted(
            round(one, 2)
            for one in values
            if one is not None and one > -9000 and not math.isnan(one)
        )
        for values in each
    ]


def _response(ask, events):
    last = (
        events[-1].get("response") or events[-1]
        if ask.body.get("stream")
        else events[0]
    )
    messages = [
        item for item in last.get("output", ()) if item.get("type") == "message"
    ]
    text = "".join(
        part.get("text", "") for item in messages for part in item["content"]
    )
    wrong = ask.judge(text, []) if last.get("status") == "completed" else ""
    return {
        "shape": sorted(last),
        "finish": [last.get("status")],
        "valid": [wrong] if wrong else [],
        "events": sorted(
            {event.get("type", "") for event in events if "type" in event}
        ),
        "text": [[text, []]],
    }


def explained(ask, ours, theirs, fields):
    """The name of the known difference that explains all that differs; None if none
    does. Each is exact enough that nothing else hides behind it."""
    return next(
        (
            name
            for name, holds in KNOWN.items()
            if holds(
                ask,
                ours,
                theirs,
                set(fields),
            )
        ),
        None,
    )


def _compact(ask, ours, theirs, fields):
    """JSON without whitespace; vLLM's has some, and so runs into `length` instead, or
    goes on differently."""
    json_there = any("{" in one or "[" in one for one in _texts(theirs))
    if not fields <= _ANSWER or ours.get("valid") or not json_there:
        return False
    if ours["finish"].count("length") > theirs["finish"].count("length"):
        return False
    return _spaces(ours) < _spaces(theirs) or (
        ask.body.get("stream")
        and _held_back(
            ours,
            theirs,
            fields,
        )
    )


def _digits(ask, ours, theirs, fields):
    """A number that has an end: vLLM's goes on."""
    goes_on, ends = (
        any(re.search(r"\d{21}", text) for text in _texts(one))
        for one in (theirs, ours)
    )
    return fields <= _ANSWER and goes_on and not ends and not ours.get("valid")


def _held_back(ours, theirs, fields):
    """A stream of a call that ran into its length in whitespace, which vLLM's parser
    does not show."""
    pairs = zip(
        _texts(ours),
        _texts(theirs),
        strict=False,
    )
    return (
        fields == {"finish"}
        and theirs["finish"] == ["length"]
        and all(a.startswith(b) for a, b in pairs)
    )


def _enforced(ask, ours, theirs, fields):
    """A keyword that vLLM refuses."""
    served = (ours["status"], theirs["status"]) == (200, 400)
    return "hard" in ask.tags and fields <= _REFUSAL and served and not ours["valid"]


def _refused(tag):
    """What a request with this tag asks for is refused."""
    return lambda ask, ours, theirs, fields: (
        tag in ask.tags
        and fields <= _REFUSAL
        and (ours["status"], theirs["status"]) == (400, 200)
    )


def _line_breaks(ask, ours, theirs, fields):
    """`.` takes no line break, as in ECMA 262."""
    if fields != {"text"} or ask.pattern is None:
        return False
    matches = [
        all(re.fullmatch(ask.pattern, text) for text, _ in found["text"])
        for found in (ours, theirs)
    ]
    return matches == [True, False]


def _ignore_eos(ask, ours, theirs, fields):
    """Nothing follows the end of what was asked for."""
    if "ignore_eos" not in ask.tags or not fields <= {"text", "logprobs"}:
        return False
    return all(
        more[0].startswith(text[0])
        for text, more in zip(
            ours["text"],
            theirs["text"],
            strict=True,
        )
    )


def _before_the_stream(ask, ours, theirs, fields):
    """A refusal that vLLM tells in the stream."""
    streams = ask.body.get("stream") and fields == {"status"}
    return streams and (ours["status"], theirs["status"]) == (400, 200)


KNOWN = {
    "compact": _compact,
    "digits": _digits,
    "enforced": _enforced,
    "whitespace-pattern": _refused("whitespace"),
    "empty-regex": _refused("empty regex"),
    "beam-search": _refused("beams"),
    "stop-token-ids": _refused("stop_token_ids"),
    "line-breaks": _line_breaks,
    "ignore-eos": _ignore_eos,
    "before-the-stream": _before_the_stream,
}


def _texts(found):
    """Texts and arguments of calls."""
    texts = [text for text, _ in found.get("text", ())]
    return texts + [
        call["arguments"] for _, calls in found.get("text", ()) for _, call in calls
    ]


def _spaces(found):
    """Whitespace outside of strings."""
    return sum(len(re.findall(r"\s", _STRING.sub("", text))) for text in _texts(found))
