"""What a client sees of a request: a status and the shape of the answer, to be compared."""

import json
import math
import urllib.error
import urllib.request

__all__ = ["FIELDS", "outcome"]

FIELDS = ("status", "error", "shape", "finish", "valid", "events", "text", "logprobs")
"""What is compared, in this order."""

_SECONDS = 240


def outcome(url, ask):
    """Send a request; what came of it."""
    status, events = _send(url + ask.path, ask.body)
    if status != 200:
        error = events[0].get("error", events[0])
        return {
            "status": status,
            "error": {"keys": sorted(error), "type": error.get("type"), "code": error.get("code")},
            "message": str(error.get("message"))[:160],
        }
    failed = next((event["error"] for event in events if event.get("error")), None)
    if failed is not None:
        return {
            "status": 200,
            "error": {"keys": sorted(failed), "type": failed.get("type"), "code": failed.get("code")},
            "message": str(failed.get("message"))[:160],
        }
    if ask.path.endswith("responses"):
        return _response(ask, events)
    return _choices(ask, events)


def _send(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            lines = answer.read().decode()
            if not body.get("stream"):
                return answer.status, [json.loads(lines)]
            parts = [line[6:] for line in lines.splitlines() if line.startswith("data: ")]
            return answer.status, [json.loads(part) if part != "[DONE]" else {"done": True} for part in parts]
    except urllib.error.HTTPError as error:
        return error.code, [json.loads(error.read())]


def _choices(ask, events):
    """Of a completion or a chat, streamed or not."""
    texts, calls, finish, kinds, logprobs, shape = {}, {}, {}, [], {}, set()
    for event in events:
        kind = []
        shape |= {f"usage.{key}" for key in event.get("usage") or ()}
        for choice in event.get("choices", ()):
            at = choice["index"]
            message = choice.get("message") or choice.get("delta") or {}
            text = choice.get("text") or message.get("content") or ""
            texts[at] = texts.get(at, "") + text
            _add_calls(calls.setdefault(at, {}), message.get("tool_calls") or ())
            if choice.get("finish_reason") is not None:
                finish[at] = choice["finish_reason"]
                kind.append("finish")
            kind += [
                name for name in ("content", "tool_calls", "text") if message.get(name) or choice.get(name)
            ]
            shape |= {f"choice.{key}" for key in choice} | {f"message.{key}" for key in message}
            logprobs.setdefault(at, []).extend(_logprobs(choice.get("logprobs")))
        kind += [name for name in ("usage", "done") if event.get(name)]
        if not kinds or kinds[-1] != kind:
            kinds.append(kind)
    wrong = [
        ask.judge(texts[at], list(calls[at].values()))
        for at in texts
        if finish.get(at) in ("stop", "tool_calls")
    ]
    return {
        "status": 200,
        "shape": sorted(shape),
        "finish": [finish.get(at) for at in sorted(texts)],
        "valid": [one for one in wrong if one],
        "events": sorted({name for kind in kinds for name in kind}) if len(events) > 1 else [],
        "text": [[texts[at], sorted(calls[at].items())] for at in sorted(texts)],
        "logprobs": [logprobs[at] for at in sorted(texts)],
    }


def _add_calls(calls, parts):
    for number, part in enumerate(parts):
        one = calls.setdefault(part.get("index", number), {"name": "", "arguments": ""})
        function = part.get("function") or {}
        one["name"] += function.get("name") or ""
        one["arguments"] += function.get("arguments") or ""


def _logprobs(found):
    """By position: logprobs of what was sampled and of what could have been, rounded."""
    if not found:
        return []
    if found.get("content") is not None:
        return [
            _rounded([one["logprob"], *(top["logprob"] for top in one["top_logprobs"])])
            for one in found["content"]
        ]
    tops = found.get("top_logprobs") or [{}] * len(found["token_logprobs"])
    own = found["token_logprobs"]
    return [_rounded([first, *(top or {}).values()]) for first, top in zip(own, tops, strict=True)]


def _rounded(values):
    return sorted(round(one, 2) for one in values if one is not None and one > -9000 and not math.isnan(one))


def _response(ask, events):
    last = events[-1].get("response") or events[-1] if ask.body.get("stream") else events[0]
    text = "".join(
        part.get("text", "")
        for item in last.get("output", ())
        if item.get("type") == "message"
        for part in item["content"]
    )
    done = last.get("status")
    wrong = ask.judge(text, []) if done == "completed" else ""
    return {
        "status": 200,
        "shape": sorted(last),
        "finish": [done],
        "valid": [wrong] if wrong else [],
        "events": sorted({event.get("type", "") for event in events if "type" in event}),
        "text": [[text, []]],
    }
