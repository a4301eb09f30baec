"""`ForcedTokens`: the tokens of what must follow, against tokenizers' own encodings and
against masks."""

import json
from pathlib import Path

import pytest
import tiktoken
from compilers import compiler_of, shown

from guided_plugin.cli.loading import load_vocabulary
from guided_plugin.demo import DEMOS, MODEL_DIR
from guided_plugin.grammar.forced import ForcedTokens
from guided_plugin.grammar.table import GrammarTable
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

DEMO = load_vocabulary(MODEL_DIR)
BYTES = [bytes([byte]) for byte in range(256)]
CASES = json.loads(Path(__file__).with_name("forced.json").read_bytes())


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
        return self.forced.after(self.request.matcher, most)

    def texts(self, most=7):
        return [self.vocabulary.tokens[token] for token in self.after(most)]

    def take(self, *tokens):
        for token in tokens:
            self.table.accept((0,), [token])
        assert self.request.error is None

    def allowed(self):
        return shown(self.table, 0)[0]


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
    for _ in range(60):
        for token in run.after():
            assert token in run.allowed()
            run.take(token)
            offered += 1
        free = set(run.allowed()) - stops
        if not free:
            break
        run.take(max(free, key=lambda token: len(DEMO.text_tokens[token])))
    assert offered > 10


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["regex"])
def test_what_is_offered_next_to_these_tokens(case):
    """A word that may go on is left out, and a mark where another token may be made of
    it; though not that of a value, which a sign or an empty text makes another of."""
    more = [text.encode() for text in case["tokens"]]
    tokens = [*BYTES, *more, b"</s>"]
    vocabulary = Vocabulary.from_tokens(tokens, [len(tokens) - 1])
    run = Run(OutputSpec.regex(case["regex"]), vocabulary)
    run.take(*(tokens.index(text.encode()) for text in case["begun"]))
    assert run.texts() == [text.encode() for text in case["offered"]]


def test_a_control_token_ends_what_must_follow():
    tokens = [*BYTES, b"ab", b"<|call|>", b"</s>"]
    tag = {
        "type": "tag",
        "begin": "ab<|call|>ab",
        "content": {"type": "any_text"},
        "end": "<x",
    }
    spec = OutputSpec.structural_tag({"format": tag})
    run = Run(spec, Vocabulary.from_tokens(tokens, [258], [257]))
    assert run.after() == (256,)
    run.take(256)
    assert run.after() == ()
    run.take(257)
    assert run.after() == (256,)


def test_no_more_than_most_and_nothing_behind_the_end():
    run = Run(OutputSpec.choice(["hello there, general"]))
    whole = run.after(50)
    assert b"".join(run.texts(50)) == b"hello there, general"
    assert run.after(2) == whole[:2]
    run.take(*whole)
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
