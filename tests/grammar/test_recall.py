"""What followed a place is found again without its grammar; what turns out wrong is looked for again."""

import sys
from types import SimpleNamespace

from vocabularies import BYTES

from guided_plugin.grammar.recall import Recall
from guided_plugin.grammar.request_state import RequestState
from guided_plugin.spec.triggers import Trigger

STOP = BYTES.stop_token_ids[0]


def request(spec="a spec", triggers=()):
    return SimpleNamespace(spec=spec, state=RequestState(triggers, (STOP,)))


def taught(recall, text, tokens, *, times=1, spec="a spec", source=None):
    """Requests that come to a place for the first time, until nothing is to be looked for."""
    for _ in range(times):
        one = request(spec)
        recall.after(0, one, list(text))
        recall.keep(0, one, tokens, source, offered=False)


def asked(recall, text, spec="a spec"):
    """What is offered to a new request, None if nothing is known; and whether that is to be looked for."""
    found, wanted = recall.after(1, request(spec), list(text))
    return None if found is None else found.tokens, wanted


def test_what_followed_a_place_is_known_there_and_nowhere_else():
    recall = Recall(BYTES)
    assert asked(recall, b'":"a"') == (None, True)
    taught(recall, b'":"a"', (7, 8), times=2)
    assert asked(recall, b'":"a"') == ((7, 8), False)
    assert asked(recall, b'":"b"') == (None, True)
    assert asked(recall, b'":"a"', "another spec") == (None, True)


def test_a_place_is_looked_at_again_ever_more_seldom_while_the_same_follows():
    recall = Recall(BYTES)
    taught(recall, b'":"a"', (7, 8))
    uses = []
    for _ in range(4):
        uses.append(0)
        while not asked(recall, b'":"a"')[1]:
            uses[-1] += 1
        taught(recall, b'":"a"', (7, 8))
    assert uses == [0, 1, 3, 7]
    taught(recall, b'":"a"', (9,))
    assert asked(recall, b'":"a"') == ((9,), True)


def test_what_was_refused_is_offered_no_more_until_it_is_looked_at():
    recall, one = Recall(BYTES), request()
    taught(recall, b'":"a"', (7, 8), times=4)
    assert recall.after(0, one, list(b'":"a"'))[0].tokens == (7, 8)
    recall.after(0, one, [9])
    assert asked(recall, b'":"a"') == ((), True)


def test_any_digit_and_any_later_word_is_the_same_place():
    recall, one, other = Recall(BYTES), request(), request()
    for text in (b'":', b"1", b"9", b"x", b"y"):
        recall.after(0, one, list(text))
        recall.keep(0, one, (ord("-"),) if text == b"9" else (), None, offered=False)
    found = [recall.after(1, other, list(text))[0] for text in (b'":', b"2", b"0", b"u", b"v")]
    # Something follows the second digit. The first word may be any of an enum.
    assert [one and one.tokens for one in found] == [(), (), (ord("-"),), None, ()]


def test_a_place_is_named_by_the_runs_of_the_last_two_steps_that_brought_some():
    recall, one, other = Recall(BYTES), request(), request()
    for text, tokens in ((b'":"', ()), (b"-0", (ord("-"),)), (b"-0", (ord('"'),))):
        recall.after(0, one, list(text))
        recall.keep(0, one, tokens, None, offered=False)
    found = [recall.after(1, other, list(text))[0].tokens for text in (b'":"', b"-0", b"-0")]
    assert found == [(), (ord("-"),), (ord('"'),)]


def test_what_only_followed_earlier_is_offered_as_long_as_it_is_the_likeliest():
    recall, source, one = Recall(BYTES), SimpleNamespace(likeliest=b""), request()
    taught(recall, b'":"a"', (), times=4, source=source)
    assert asked(recall, b'":"a"') == ((), False)
    source.likeliest = b"name"
    assert asked(recall, b'":"a"') == (None, True)  # it is looked for at once
    taught(recall, b'":"a"', (7, 8), times=4, source=source)
    assert recall.after(0, one, list(b'":"a"'))[0].tokens == (7, 8)
    recall.after(0, one, [9])  # that it was not taken this time says little
    assert asked(recall, b'":"a"') == ((7, 8), False)
    source.likeliest = b"city"
    assert asked(recall, b'":"a"') == (None, True)


def test_of_a_request_that_waits_only_what_may_begin_it_is_worth_a_look():
    recall, one = Recall(BYTES), request(triggers=[Trigger((ord(">"),))])
    assert recall.after(0, one, list(b"a")) == (None, False)
    assert recall.after(0, one, list(b"<t>")) == (None, True)
    assert recall.after(0, one, []) == (None, False)


def test_a_token_that_the_vocabulary_does_not_know_is_no_trouble():
    recall = Recall(BYTES)
    taught(recall, [ord(">"), BYTES.size + 7], (7,), times=2)
    assert asked(recall, [ord(">"), BYTES.size + 7]) == ((7,), False)


def test_a_slot_with_another_request_keeps_nothing_for_the_one_before():
    recall, first, second = Recall(BYTES), request(), request()
    recall.after(0, first, list(b'":"a"'))
    recall.after(0, second, list(b'":"b"'))
    recall.keep(0, first, (7,), None, offered=True)
    assert asked(recall, b'":"a"') == asked(recall, b'":"b"') == (None, True)


def test_a_request_that_leaves_is_not_kept():
    recall, one = Recall(BYTES), request()
    before = sys.getrefcount(one)
    recall.after(0, one, list(b'":"a"'))
    assert sys.getrefcount(one) == before
