"""`ForcedTokens`: the tokens of what must follow, against tokenizers' own encodings and
against masks."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tiktoken

from guided_plugin.cli.loading import load_vocabulary
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.demo import DEMOS, MODEL_DIR
from guided_plugin.grammar.forced import ForcedTokens
from guided_plugin.grammar.request_state import Phase
from guided_plugin.grammar.table import GrammarTable
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

DEMO = load_vocabulary(MODEL_DIR)


class Run:
    """One request in a table, and what must follow in it."""

    def __init__(self, spec: OutputSpec, vocabulary: Vocabulary = DEMO) -> None:
        compiler = GrammarCompiler(vocabulary)
        grammar = compiler.compile(spec)
        self.vocabulary, self.forced = vocabulary, ForcedTokens(vocabulary)
        self.table = GrammarTable(vocabulary)
        self.table.add(0, "a", spec, grammar, compiler.backend(grammar.backend))
        self.request = self.table.requests[0]

    def after(self, most: int = 7) -> tuple[int, ...]:
        return self.forced.after(self.request, most)

    def texts(self, most: int = 7) -> list[bytes]:
        return [self.vocabulary.tokens[token] for token in self.after(most)]

    def take(self, token: int) -> None:
        self.table.accept((0,), [token])
        assert self.request.error is None

    def allows(self, token: int) -> bool:
        mask = np.zeros((1, self.vocabulary.words), np.int32)
        self.table.fill((0,), mask)
        return bool(mask[0, token // 32] >> (token % 32) & 1)


INSTANCES: list[Any] = [
    {
        "name": "Ada Lovelace",
        "age": 36,
        "email": "a.b@example.com",
        "city": "London",
        "role": "nurse",
    },
    {"id": "ORD-12345", "customer": "Max Power", "currency": "EUR"},
]


def test_pieces_are_those_of_byte_pair_encoding() -> None:
    ranks = {text: token for token, text in enumerate(DEMO.text_tokens) if text}
    encoding = tiktoken.Encoding(
        "whole", pat_str=r"[\s\S]+", mergeable_ranks=ranks, special_tokens={}
    )
    forced = ForcedTokens(DEMO)
    texts = [json.dumps(one) for one in [*INSTANCES, *(demo.schema for demo in DEMOS)]]
    texts += [text[at : at + 60] for text in texts for at in range(0, len(text), 7)]
    for text in texts:
        assert [
            ranks[piece] for piece in forced._pieces(text.encode())
        ] == encoding.encode(text)


@pytest.mark.parametrize("demo", DEMOS, ids=lambda demo: demo.name)
def test_mask_allows_what_must_follow(demo: Any) -> None:
    run = Run(OutputSpec.json_schema(demo.schema, whitespace="compact"))
    offered = 0
    for _ in range(60):
        tokens = run.after()
        offered += len(tokens)
        for token in tokens:
            assert run.allows(token)
            run.take(token)
        row = [token for token in range(DEMO.size) if run.allows(token)]
        if set(row) <= set(DEMO.stop_token_ids):
            break
        run.take(
            max(
                row,
                key=lambda token: (
                    len(DEMO.tokens[token]) if token not in DEMO.special_ids else -1
                ),
            )
        )
    assert offered > 10


def vocabulary(*texts: bytes) -> Vocabulary:
    singles = [bytes([byte]) for byte in range(256)]
    tokens = [*singles, *texts, b"</s>"]
    return Vocabulary.from_tokens(tokens, [len(tokens) - 1], [])


def test_word_that_may_go_on_is_left_out() -> None:
    words = vocabulary(b"ab", b"abc", b"x:")
    assert Run(OutputSpec.choice(["x:abc", "x:abd"]), words).texts() == [b"x:"]
    assert Run(
        OutputSpec.choice(["x:ab", "x:abd"]), vocabulary(b"ab", b"x:")
    ).texts() == [b"x:", b"ab"]


def test_mark_is_left_out_where_another_token_may_be_made_of_it() -> None:
    marks = vocabulary(b'":', b'":"')
    assert Run(OutputSpec.regex('":("|1)'), marks).texts() == []
    assert Run(OutputSpec.regex('":[12]'), marks).texts() == [b'":']


def test_of_a_value_the_first_mark_is_offered_though_a_sign_or_an_empty_text_makes_another_token() -> (
    None
):
    marks = vocabulary(b'":', b'":-', b' "', b' "/', b" -")
    assert Run(OutputSpec.regex('":-?[0-9]'), marks).texts() == [b'":']
    assert Run(OutputSpec.regex("_-?[0-9]"), vocabulary(b"_-")).texts() == []
    assert Run(OutputSpec.regex('": -?[0-9]+'), marks).texts() == [b'":', b" "]
    value = Run(OutputSpec.regex('":( "[/a])'), marks)
    value.take(marks.tokens.index(b'":'))
    assert value.texts() == [b' "']


def test_only_active_requests_and_no_more_than_most() -> None:
    run = Run(OutputSpec.choice(["hello there, general"]))
    whole = run.after(50)
    assert b"".join(DEMO.tokens[token] for token in whole) == b"hello there, general"
    assert run.after(2) == whole[:2]
    run.request.state.phase = Phase.WAITING
    assert run.after() == ()


def test_a_control_token_ends_what_must_follow() -> None:
    tokens = [*(bytes([byte]) for byte in range(256)), b"ab", b"<|call|>", b"</s>"]
    named = Vocabulary.from_tokens(tokens, [258], [257])
    tag = {
        "type": "tag",
        "begin": "ab<|call|>ab",
        "content": {"type": "any_text"},
        "end": "<x",
    }
    run = Run(OutputSpec.structural_tag({"format": tag}), named)
    assert run.after() == (256,)
    run.take(256)
    assert run.after() == ()
    run.take(257)
    assert run.after() == (256,)


def test_after_two_long_looks_in_a_row_a_grammar_is_not_asked_again(
    monkeypatch: Any,
) -> None:
    def look_long() -> None:
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
