"""What the other tests here rest on: an answer is asked for again only if the server
says that it was cut."""

import json

import pytest
from client_wire import Wire, reason


def chat(*reasons):
    return {
        "object": "chat.completion",
        "choices": [{"finish_reason": one} for one in reasons],
    }


def events(*documents):
    return (
        "".join(f"data: {json.dumps(one)}\n\n" for one in documents).encode()
        + b"data: [DONE]\n\n"
    )


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (json.dumps(chat("stop")).encode(), "stop"),
        (json.dumps(chat("length")).encode(), "length"),
        (json.dumps({"object": "response", "status": "incomplete"}).encode(), "length"),
        (json.dumps({"object": "response", "status": "completed"}).encode(), "completed"),
        (json.dumps({"error": {"message": "no"}}).encode(), None),
        (events(chat(None), chat("tool_calls"), {"choices": []}), "tool_calls"),
        (events(chat(None), {"error": {"message": "no"}}), None),
        (events({"type": "response.completed", "response": {"object": "response", "status": "completed"}}),
         "completed"),
    ],
)  # fmt: skip
def test_the_reason_of_an_answer(body, found):
    assert reason(body) == found


def asking(wire, *answers):
    """Calls that end with these reasons, and return or raise."""
    left = iter(answers)

    def ask():
        found, answer = next(left)
        wire.reasons.extend(found)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return lambda: wire.whole(ask)


def test_answers_that_were_cut_are_asked_for_again_and_counted():
    wire = Wire()
    assert (
        asking(
            wire, (["length"], "{"), (["length"], ValueError("half")), (["stop"], "{}")
        )()
        == "{}"
    )
    assert (wire.finished, wire.cut) == (1, 2)
    with pytest.raises(AssertionError, match="in a row were cut off"):
        asking(wire, *[(["length"], "{")] * 20)()
    assert wire.cut == 10


@pytest.mark.parametrize(
    "found", [["stop"], ["tool_calls"], [None], [], ["length", "length"]], ids=str
)
def test_what_a_client_raises_otherwise_is_raised(found):
    with pytest.raises(ValueError, match="invalid"):
        asking(Wire(), (found, ValueError("invalid")), (["stop"], "{}"))()


@pytest.mark.parametrize(
    "found", [["error"], [None], [], ["stop", "stop"], ["length", "stop"]], ids=str
)
def test_an_answer_that_ended_otherwise_is_none(found):
    with pytest.raises(AssertionError):
        asking(Wire(), (found, "{}"))()
