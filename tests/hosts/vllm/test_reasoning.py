"""Every reasoning parser of this vLLM: where reasoning ends, and whether what ends it
is output already."""

import json
import random
import re
from array import array
from pathlib import Path
from types import SimpleNamespace

import pytest
import vllm
from transformers import AutoTokenizer
from vllm.parser.engine.adapters import ParserEngineReasoningAdapter
from vllm.reasoning import ReasoningParserManager

from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import RequestError
from guided_plugin.grammar.request_state import RequestState, as_array
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.grammar.waiting import Lead
from guided_plugin.hosts.vllm.reasoning import Reasoning, Said
from guided_plugin.spec.triggers import nearest

TABLE = json.loads(Path(__file__).with_name("reasoning.json").read_text())
ENDS = TABLE["ends"]
"""Of outputs that think: each end, and whether it is part of the constrained output;
`older`: before 0.32."""

NONE = {*TABLE["none"]}
"""Constrained from the start: vLLM puts the reasoning of these into the structural
tag."""

REFUSED = {*TABLE["refused"]}
"""Those that tell no tokens: they look at texts, or never end a reasoning part for
vLLM's own masks."""

NOT_HERE = {*TABLE["not_here"]}
"""Those that need more of a tokenizer than its tokens: see that the error is one for
clients."""

ON, OFF = (
    {
        "chat_template_kwargs": {
            "enable_thinking": on,
            "thinking": on,
            "reasoning_effort": effort,
        }
    }
    for on, effort in ((True, "high"), (False, "no_think"))
)

ALWAYS_THINK = {*TABLE["always_think"]}
"""Parsers that no chat template switches off; `k2_horizon` refuses its arguments."""


ONCE = {*TABLE["once"]}
"""Parsers for which a prompt that ended the reasoning can't open it again."""


@pytest.fixture(scope="module")
def tokenizer():
    """With every marker that a parser's source names."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    root = Path(vllm.__file__).parent
    sources = [*root.glob("reasoning/*.py"), *root.glob("parser/**/*.py")]
    marks = {
        mark
        for file in sources
        for mark in re.findall(r"[\"'](<[^\"'\s]{1,40}>)[\"']", file.read_text())
    }
    marks |= {
        f"<{slash}ifm|think{speed}>"
        for slash in ("", "/")
        for speed in ("", "_fast", "_faster")
    }
    tokenizer.add_tokens([*sorted(marks), "</", "think", "Ġ</"])
    return tokenizer


@pytest.fixture
def reasoning(tokenizer, monkeypatch):
    monkeypatch.setattr(
        "vllm.tokenizers.cached_tokenizer_from_config", lambda model_config: tokenizer
    )
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    return lambda name: Reasoning(name, SimpleNamespace(model_config=None), vocabulary)


def texts(tokenizer, ends):
    """Ends as they are written in the table."""
    return {
        "".join(pieces) if pieces[0].startswith("<|") else " ".join(pieces): end.kept
        for end in ends
        for pieces in [tokenizer.convert_ids_to_tokens(list(end.tokens))]
    }


REGISTERED = ReasoningParserManager.list_registered()


def test_every_parser_has_a_row_in_the_table():
    assert set(REGISTERED) <= {*ENDS, *NONE, *REFUSED, *NOT_HERE}
    assert len(REGISTERED) > 30


@pytest.mark.parametrize("name", REGISTERED)
def test_an_output_that_thinks_begins_after_its_reasoning(tokenizer, reasoning, name):
    """One that does not think is constrained from the start."""
    parts = reasoning(name)
    filler = tokenizer.encode("a", add_special_tokens=False)
    if name in REFUSED | NOT_HERE:
        with pytest.raises(RequestError, match="reasoning parser") as raised:
            parts.ends(Said(None, ON), filler)
        assert raised.value.hint
    elif name in NONE:
        assert parts.ends(Said(None, ON), filler) == ()
    else:
        ends = dict(ENDS)
        if not hasattr(ParserEngineReasoningAdapter, "find_reasoning_end"):
            ends |= TABLE["older"]
        assert texts(tokenizer, parts.ends(Said(None, ON), filler)) == ends[name]
        if name not in ALWAYS_THINK | {"k2_horizon"}:
            assert parts.ends(Said(None, OFF), filler) == ()


HERE = sorted(ENDS.keys() & set(REGISTERED))


@pytest.mark.parametrize("name", HERE)
def test_prompts_that_end_the_reasoning_and_prompts_that_open_it_again(
    tokenizer, reasoning, name
):
    parts = reasoning(name)
    ends = parts.ends(Said(False, ON), [])
    over = [1, 2, *next(end.tokens for end in ends if not end.kept)]
    assert parts.ends(Said(None, ON), over) == ()
    assert parts.ends(Said(True, ON), [1]) == ()
    assert parts.ends(Said(False, ON), over) == ends
    start = parts._parser(ON).reasoning_start_str
    opening = tokenizer.get_vocab().get(start) if start else None
    if opening is not None and name not in ONCE:
        assert parts.ends(Said(None, ON), [*over, opening]) == ends


@pytest.mark.parametrize("name", HERE)
def test_random_outputs_begin_where_vllms_own_masks_would(tokenizer, reasoning, name):
    """Those too whose reasoning is led to its end, whatever came before, a part of an
    end too."""
    chance = random.Random(name)
    parts = reasoning(name)
    ends = parts.ends(Said(False, ON), [])
    lead = nearest(ends)
    assert not lead.kept
    some = [tokenizer.encode(text, add_special_tokens=False)[0] for text in "abc"]
    pieces = [[token] for token in some]
    for end in ends:
        pieces += [[token] for token in end.tokens]
        pieces += [list(end.tokens), list(end.tokens[:-1])]
    # The reasoning of one is over with the first token, unless that opens it.
    opened = parts._parser(ON)._start_token_ids if name == "minimax_m3" else some
    for _ in range(100):
        tokens = [opened[0]]
        for _ in range(chance.randrange(8)):
            tokens += chance.choice(pieces)
        state = RequestState(ends, ())
        state.extend(array("q", tokens))
        begins = state.start if state.begun else None
        assert begins == vllms_start(parts._parser(ON), tokens), tokens
        led = Lead(as_array(lead), so_far := len(tokens))
        while not state.begun:
            tokens.append(led.token(state))
            state.take(tokens[-1])
        assert len(tokens) - so_far <= len(lead.tokens)
        assert begins or vllms_start(parts._parser(ON), tokens) == len(tokens)
        assert begins or state.start == len(tokens)


def vllms_start(parser, tokens):
    """The index of the first token that vLLM's own masks constrain; None if there is
    none yet."""
    ids = getattr(parser, "reasoning_end_token_ids", None)
    if ids:
        offset = next((at for at, token in enumerate(tokens) if token in ids), None)
        if offset is None:
            return None
        # before 0.32 vLLM's masks begin one token late
        if not hasattr(parser, "find_reasoning_end"):
            return offset + (tokens[offset] == parser.vocab[parser.reasoning_end_str])
        end = parser.find_reasoning_end(tokens)
        assert end.offset == offset
        return offset if end.implicit else offset + 1
    for count in range(1, len(tokens) + 1):
        if parser.is_reasoning_end_streaming(tokens[:count], tokens[count - 1 : count]):
            return count
    return None


def test_arguments_that_a_parser_refuses_are_an_error_for_their_client(reasoning):
    with pytest.raises(
        RequestError, match="can't be made: Unsupported reasoning_effort"
    ):
        reasoning("k2_horizon").ends(Said(None, OFF), [1])


def test_parsers_are_kept_by_their_arguments_but_not_without_end(reasoning):
    parts = reasoning("qwen3")
    for number in range(100):
        parts.ends(Said(None, {"chat_template_kwargs": {"n": number}}), [1])
    parts.ends(Said(None, {"chat_template_kwargs": {"text": "x" * 10_000}}), [1])
    assert 0 < len(parts._parsers) <= 32
