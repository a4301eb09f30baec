"""`DecodeLoop(jump_forward=True)`: the same outputs in fewer forward passes, and the
same distribution."""

import collections
import itertools
import json
from random import Random

import jsonschema
import pytest
import torch
from listening import StepListener
from schemas import random_schema

import guided_plugin as gp
from guided_plugin.demo import DEMOS, MODEL_DIR
from guided_plugin.diagnose.explain import jump_through
from guided_plugin.errors import ConfigError, GrammarError, GuidedError
from guided_plugin.hosts.batch import DraftBatch

SPECS = [gp.OutputSpec.json_schema(demo.schema, whitespace="compact") for demo in DEMOS]


@pytest.fixture(scope="module")
def parts():
    from guided_plugin.cli.loading import load_model, load_tokenizer, model_vocabulary

    tokenizer = load_tokenizer(MODEL_DIR)
    model = load_model(MODEL_DIR)
    patient = gp.GuidedConfig(
        worker_step_ms=60_000, worker_grammar_ms=60_000, compile_seconds=60
    )
    return (
        tokenizer,
        model,
        gp.GrammarCompiler(model_vocabulary(tokenizer, model), config=patient),
    )


@pytest.fixture(scope="module")
def loops(parts):
    """Without and with it."""
    _, model, compiler = parts
    return gp.DecodeLoop(model, compiler, mode="inline"), gp.DecodeLoop(
        model, compiler, jump_forward=True
    )


def told(outputs):
    return [
        (output.tokens, output.stopped, output.unenforced, str(output.error))
        for output in outputs
    ]


def test_greedy_outputs_are_the_same_in_fewer_forward_passes(parts, loops):
    tokenizer, _, compiler = parts
    plain, jumping = loops
    chance = Random(7)
    cases = []
    while len(cases) < 120:
        try:
            form = chance.choice(["compact", "compact", "spaced", "flexible"])
            spec = gp.OutputSpec.json_schema(random_schema(chance), whitespace=form)
            compiler.compile(spec)
        except GuidedError:
            continue
        prompt = tokenizer.encode(chance.choice(DEMOS).prompt)
        cases.append(
            (
                prompt[: chance.randint(1, len(prompt))],
                chance.choice([spec, *SPECS, None]),
            )
        )
    forwards = [0, 0]
    for first in range(0, len(cases), 12):
        prompts, specs = zip(*cases[first : first + 12], strict=True)
        before, after = (loop.run(prompts, specs, max_new_tokens=60) for loop in loops)
        assert told(after) == told(before)
        for one, other in zip(before, after, strict=True):
            assert one.forwards == len(one.tokens) + one.stopped
            assert 0 < other.forwards <= one.forwards
            forwards[0] += one.forwards
            forwards[1] += other.forwards
    assert forwards[1] < 0.8 * forwards[0]
    assert plain.run([[5]], [None], max_new_tokens=3) == jumping.run(
        [[5]], [None], max_new_tokens=3
    )


@pytest.mark.parametrize("most", [0, 1, 2, 5, 23])
def test_limits_of_tokens_and_stops(parts, loops, most):
    tokenizer, _, _ = parts
    prompts = [tokenizer.encode(demo.prompt) for demo in DEMOS]
    specs = [*SPECS[:2], gp.OutputSpec.choice(["yes"])]
    for options in ({}, {"ignore_stop": True}):
        before, after = (
            loop.run(prompts, specs, max_new_tokens=most, **options) for loop in loops
        )
        assert told(after) == told(before)


def test_errors_late_starts_and_own_stop_tokens(parts, loops):
    tokenizer, _, _ = parts
    prompt = tokenizer.encode(DEMOS[0].prompt)
    pad = tokenizer.convert_tokens_to_ids("<|pad|>")
    opening = tokenizer.encode("{", add_special_tokens=False)
    specs = [
        *(
            SPECS[0],
            gp.OutputSpec.regex("a(?=b)"),
            None,
            gp.OutputSpec.choice(["yes"], stop_token_ids=[pad]),
        ),
        gp.OutputSpec.choice(['{"name": 1}'], start_after=opening[-1:]),
        gp.OutputSpec.json_schema(
            {"type": "array", "items": {"enum": ["one", "two"]}, "uniqueItems": True}
        ),
    ]
    before, after = (loop.run([prompt] * 6, specs, max_new_tokens=40) for loop in loops)
    assert told(after) == told(before)
    assert isinstance(after[1].error, GrammarError)
    assert after[1].forwards == 0


def test_sampled_outputs_are_valid_and_repeat(parts, loops):
    tokenizer, _, _ = parts
    prompts = [tokenizer.encode(demo.prompt) for demo in DEMOS]
    for seed in range(5):
        sampling = gp.Sampling(0.9, seed=seed)
        outputs = loops[1].run(prompts, SPECS, sampling=sampling)
        assert outputs == loops[1].run(prompts, SPECS, sampling=sampling)
        for demo, output in zip(DEMOS, outputs, strict=True):
            jsonschema.validate(
                json.loads(tokenizer.decode(output.tokens)), demo.schema
            )


def test_explain_counts_the_forward_passes_that_the_loop_takes(parts, loops):
    tokenizer, _, compiler = parts
    prompts = [tokenizer.encode(demo.prompt) for demo in DEMOS]
    for temperature in (0.0, 0.9):
        outputs = loops[1].run(
            prompts, SPECS, sampling=gp.Sampling(temperature, seed=1)
        )
        for spec, output in zip(SPECS, outputs, strict=True):
            told = jump_through(
                compiler, spec, [*output.tokens, *compiler.vocabulary.stop_token_ids]
            )
            assert (told.tokens, told.forwards) == (
                len(output.tokens) + 1,
                output.forwards,
            )
            assert "".join(text for text, _ in told.pieces) == tokenizer.decode(
                output.tokens
            )


def test_hooks_hear_every_token_once(parts, loops):
    tokenizer, _, compiler = parts
    listener = StepListener()
    compiler.plugins.register(listener)
    try:
        outputs = loops[1].run(
            [tokenizer.encode(demo.prompt) for demo in DEMOS], [*SPECS[:2], None]
        )
    finally:
        compiler.plugins.unregister(listener)
    listener.check_order()
    heard = [
        [token for token in row if token >= 0]
        for row in zip(*listener.tokens, strict=True)
    ]
    assert [
        tuple(row[: len(one.tokens)]) for row, one in zip(heard, outputs, strict=True)
    ] == [one.tokens for one in outputs]


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"mode": "process"}, "mode='inline'"),
        ({"mode": "inlin"}, "did you mean 'inline'"),
        ({"processors": ("first", "guided")}, "processors"),
        ({"jump_forward": "no"}, "True or False, not 'no'"),
    ],
)
def test_what_does_not_go_together_is_refused(parts, options, hint):
    _, model, compiler = parts
    with pytest.raises(ConfigError, match=hint):
        gp.DecodeLoop(model, compiler, **{"jump_forward": True, **options})


def test_a_cache_that_forgets_nothing_is_refused(parts):
    from transformers import MistralConfig, MistralForCausalLM

    compiler = parts[2]
    model = MistralForCausalLM(
        MistralConfig(
            **SIZES,
            vocab_size=compiler.vocabulary.size,
            sliding_window=4,
            max_position_embeddings=64,
        )
    )
    loop = gp.DecodeLoop(model, compiler, jump_forward=True)
    with pytest.raises(
        ConfigError, match=r"not DynamicSlidingWindowLayer.*jump_forward"
    ):
        loop.run([[1, 2]], [SPECS[0]])


SIZES = dict.fromkeys(("hidden_size", "intermediate_size"), 16)
SIZES |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
TEXTS = ["ababca", "ababcb", "ababab"]
TOKENS = [b"a", b"b", b"c", b"ab", b"ba", b"aba", b"bab", b"</s>"]
STOP = len(TOKENS) - 1


@pytest.fixture(scope="module")
def small():
    """A model of eight tokens, with several spellings of each text."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        **SIZES,
        vocab_size=len(TOKENS),
        initializer_range=0.6,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config).eval()


def probabilities(model, prompt, texts):
    """Of each output: the model's own, over the tokens with which a text can go on. No
    cache, no grammar."""
    found = {}

    @torch.inference_mode()
    def follow(tokens, text, chance):
        allowed = [
            i
            for i, token in enumerate(TOKENS[:-1])
            if any(t.startswith(text + token) for t in texts)
        ]
        allowed += [STOP] * (text in texts)
        logits = (
            model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, -1].double()
        )
        for token, share in zip(
            allowed, logits[allowed].softmax(0).tolist(), strict=True
        ):
            if token == STOP:
                found[tokens] = chance * share
            else:
                follow((*tokens, token), text + TOKENS[token], chance * share)

    follow((), b"", 1.0)
    return found


def surprise(counts, expected):
    """Chi-square of counts, as so many standard deviations of a normal distribution
    (Wilson and Hilferty)."""
    total = sum(counts.values())
    large = {
        key: share * total for key, share in expected.items() if share * total >= 5
    }
    rest = total - sum(large.values())
    statistic = sum((counts[key] - due) ** 2 / due for key, due in large.items())
    if rest >= 5:
        statistic += (total - sum(counts[key] for key in large) - rest) ** 2 / rest
    freedom = len(large) - (rest < 5)
    return ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / (
        2 / (9 * freedom)
    ) ** 0.5


def drawn(model, runs=40):
    """Outputs of two prompts, in batches where rows differ in length and in how many
    drafts they accept."""
    compiler = gp.GrammarCompiler(gp.Vocabulary.from_tokens(TOKENS, [STOP]))
    loop = gp.DecodeLoop(model, compiler, jump_forward=True)
    spec = gp.OutputSpec.choice(TEXTS)
    prompts = [[0, 2, 1], [1]] * 32
    counts = collections.Counter(), collections.Counter()
    forwards = 0
    for seed in range(runs):
        outputs = loop.run(
            prompts, [spec] * len(prompts), sampling=gp.Sampling(1.0, seed=seed)
        )
        for output, count in zip(outputs, itertools.cycle(counts)):
            assert output.stopped
            count[output.tokens] += 1
            forwards += output.forwards
    tokens = sum(
        (len(each) + 1) * number for count in counts for each, number in count.items()
    )
    return counts, forwards / tokens


def test_distribution_is_that_of_sampling_without_it(small):
    counts, share = drawn(small)
    assert share < 0.9
    for count, prompt in zip(counts, ([0, 2, 1], [1]), strict=True):
        expected = probabilities(small, prompt, [text.encode() for text in TEXTS])
        assert set(count) <= set(expected)
        assert len(expected) >= 12
        assert abs(surprise(count, expected)) < 4


def test_distribution_differs_if_drafts_are_taken_unseen(small, monkeypatch):
    """So the test above can fail."""
    take = DraftBatch.take

    def credulous(self, sampled, drafts):
        for row, draft in enumerate(drafts):
            for place, token in enumerate(draft):
                sampled[place][row] = token
        take(self, sampled, drafts)

    monkeypatch.setattr(DraftBatch, "take", credulous)
    counts, _ = drawn(small)
    expected = probabilities(small, [0, 2, 1], [text.encode() for text in TEXTS])
    assert surprise(counts[0], expected) > 8
