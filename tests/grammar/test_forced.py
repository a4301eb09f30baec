"""`ForcedTokens`: the tokens of what must follow, against tokenizers' own encodings and
against masks."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tiktoken
from compilers import compiler_of, tokens_of

from guided_plugin.cli.loading import load_vocabulary
from guided_plugin.demo import DEMOS, MODEL_DIR
from guided_plugin.grammar.forced import ForcedTokens
from guided_plugin.grammar.request_state import Phase
from guided_plugin.grammar.table import GrammarTable
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

DEMO = load_vocabulary(MODEL_DIR)


class Run:
    """One request in a table, and what must follow in it."""

    def __init__(self, spec, vocabulary=DEMO):
        compiler = compiler_of(vocabulary)
        grammar = compiler.compile(spec)
        self.vocabulary = vocabulary
        self.forced = ForcedTokens(vocabulary)
        self.table = GrammarTable(vocabulary)
        self.table.add(0, "a", spec, grammar, compiler.backend(grammar.backend))
        self.request = self.table.requests[0]

    def after(self, most=7):
        return self.forced.after(self.request, most)

    def texts(self, most=7):
        return [self.vocabulary.tokens[token] for token in self.after(most)]

    def take(self, *tokens):
        for token in tokens:
            self.table.accept((0,), [token])
        assert self.request.error is None

    def allowed(self):
        mask = np.zeros((1, self.vocabulary.words), np.int32)
        self.table.fill((0,), mask)
        return tokens_of(mask)[0]


def test_tokens_of_a_forced_text_are_those_of_byte_pair_encoding():
    ranks = {text: token for token, text in enumerate(DEMO.text_tokens) if text}
    encoding = tiktoken.Encoding(
        "whole", pat_str=r"[\s\S]+", mergeable_ranks=ranks, special_tokens={}
    )
    forced = ForcedTokens(DEMO)
    text = json.dumps([demo.schema for demo in DEMOS] + ["Ada", 36, "a.b@example.com"])
    for at in range(0, len(text), 7):
        part = text[at : at + 60]
        pieces = [ranks[piece] for piece in forced._pieces(part.encode())]
        assert pieces == encoding.encode(part)


@pytest.mark.parametrize("demo", DEMOS, ids=lambda demo: demo.name)
def test_mask_allows_what_must_follow(demo):
    run = Run(OutputSpec.json_schema(demo.schema, whitespace="compact"))
    stops = set(DEMO.stop_token_ids)
    offered = 0
    while not stops.issuperset(run.allowed()) and offered < 100:
        for token in run.after():
            assert token in run.allowed()
            run.take(token)
            offered += 1
        free = set(run.allowed()) - stops
        if free:
            run.take(max(free, key=lambda token: len(DEMO.tokens[token])))
    assert offered > 10


ABC = OutputSpec.choice(["x:abc", "x:abd"])
CALL = {"type": "tag", "begin": "ab<|call|>ab", "content": {"type": "any_text"}}
NAMED = OutputSpec.structural_tag({"format": {**CALL, "end": "<x"}})
MARKS = [b'":', b'":-', b' "', b' "/', b" -"]


@pytest.mark.parametrize(
    ("more", "spec", "begun", "offered"),
    [
        # A word that may go on is left out.
        ([b"ab", b"abc", b"x:"], ABC, [], [b"x:"]),
        ([b"ab", b"x:"], OutputSpec.choice(["x:ab", "x:abd"]), [], [b"x:", b"ab"]),
        # So is a mark, where another token may be made of it,
        ([b'":', b'":"'], OutputSpec.regex('":("|1)'), [], []),
        ([b'":', b'":"'], OutputSpec.regex('":[12]'), [], [b'":']),
        ([b"_-"], OutputSpec.regex("_-?[0-9]"), [], []),
        # though not that of a value, which a sign or an empty text makes another of.
        (MARKS, OutputSpec.regex('":-?[0-9]'), [], [b'":']),
        (MARKS, OutputSpec.regex('": -?[0-9]+'), [], [b'":', b" "]),
        (MARKS, OutputSpec.regex('":( "[/a])'), [b'":'], [b' "']),
        # A control token ends what must follow.
        ([b"ab", b"<|call|>"], NAMED, [], [b"ab"]),
        ([b"ab", b"<|call|>"], NAMED, [b"ab"], []),
        ([b"ab", b"<|call|>"], NAMED, [b"ab", b"<|call|>"], [b"ab"]),
    ],
)
def test_what_is_offered_after_a_few_tokens(more, spec, begun, offered):
    tokens = [*(bytes([byte]) for byte in range(256)), *more, b"</s>"]
    controls = [256 + more.index(b"<|call|>")] if b"<|call|>" in more else []
    run = Run(spec, Vocabulary.from_tokens(tokens, [len(tokens) - 1], controls))
    run.take(*map(tokens.index, begun))
    assert run.texts() == offered


def test_only_active_requests_and_no_more_than_most():
    run = Run(OutputSpec.choice(["hello there, general"]))
    whole = run.after(50)
    assert b"".join(run.texts(50)) == b"hello there, general"
    assert run.after(2) == whole[:2]
    run.take(*whole, DEMO.stop_token_ids[0])
    assert run.request.state.phase is Phase.DONE
    assert run.after() == ()


def test_after_two_long_looks_in_a_row_a_grammar_is_not_asked_again(monkeypatch):
    def look_long():
        with monkeypatch.context() as patched:
            patched.setattr("guided_plugin.grammar.forced.LOOK_SECONDS", 0.0)
            run.after()

    run = Run(OutputSpec.choice(["hello there"]))
    other = Run(OutputSpec.choice(["hello there"]))
    for _ in range(2):  # such as a garbage collection makes
        look_long()
        assert run.after()
    look_long()
    look_long()
    assert run.after() == ()
    assert other.after()
