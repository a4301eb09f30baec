"""`Guide.generate_kwargs`: what comes out of `generate` is what the specs say, whatever
the call is like."""

import gc
import logging

import pytest
import torch
from generate_calls import MIXED, PAD, STOP, generate
from generating import PROMPTS, SPECS, encoded, random_model, recheck, same_until_stop
from transformers import CompileConfig, LogitsProcessor

import guided_plugin as gp
from guided_plugin.errors import (
    ConfigError,
    GrammarError,
    PipelineError,
    SpecError,
    VocabularyError,
)

HOW = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 1.3, "top_k": 50, "top_p": 0.95},
    "min_p": {"do_sample": True, "min_p": 0.02, "top_k": 0},
    "penalties": {
        "do_sample": True,
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 6,
    },
    "watched": {
        "do_sample": True,
        "renormalize_logits": True,
        "remove_invalid_values": True,
    },
    "static cache": {"do_sample": True, "cache_implementation": "static"},
}


@pytest.fixture
def bare(tokenizer, model):
    """The same calls without a guide: rows."""

    def bare(*, model=model, prompts=PROMPTS, **options):
        rows = generate(model, encoded(tokenizer, prompts), **options)
        return rows[:, 1:] if model.config.is_encoder_decoder else rows

    return bare


# What `generate` does with its options is the same in both modes.
@pytest.mark.parametrize(
    ("mode", "how"),
    [
        *(("inline", how) for how in HOW),
        ("process", "sampling"),
        ("process", "static cache"),
    ],
)
def test_guided_rows_are_valid_and_unguided_ones_untouched(
    run, bare, model, make_guide, mode, how
):
    guide = make_guide(model, mode=mode)
    finished = 0
    for seed in range(3):
        made = run(
            MIXED,
            guide=guide,
            seed=seed,
            **HOW[how],
        )
        free = bare(seed=seed, **HOW[how])
        finished += sum(made.ended)
        assert same_until_stop(made.rows[1], free[1])
        assert not same_until_stop(made.rows[0], free[0])
        assert made.errors == {}
    assert finished >= 4


def test_compiled_forward(run, bare):
    torch._dynamo.reset()
    compiled = CompileConfig(backend="eager", mode=None, fullgraph=False)
    compiled._compile_all_devices = True
    options = {
        "cache_implementation": "static",
        "compile_config": compiled,
        "max_new_tokens": 12,
    }
    assert same_until_stop(
        run(MIXED, do_sample=True, **options).rows[1],
        bare(do_sample=True, **options)[1],
    )
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_encoder_decoder(run, bare, tokenizer, make_guide, kind):
    model = random_model(len(tokenizer), kind=kind)
    model.generation_config.forced_eos_token_id = None  # BART's own default is 2
    made = run(
        MIXED,
        model=model,
        guide=make_guide(model),
        do_sample=True,
    )
    assert same_until_stop(made.rows[1], bare(model=model, do_sample=True)[1])
    assert made.errors == {}


def test_embeddings_instead_of_token_ids(tokenizer, vocabulary, model, guide):
    inputs = encoded(tokenizer, PROMPTS)
    inputs["inputs_embeds"] = model.get_input_embeddings()(inputs.pop("input_ids"))
    out = model.generate(**inputs, max_new_tokens=40, **guide.generate_kwargs(SPECS))
    assert recheck(vocabulary, SPECS, out)[2]


def test_every_stop_token_of_the_model_may_end_a_row(run, tokenizer, make_guide):
    model = random_model(len(tokenizer))
    model.generation_config.eos_token_id = [STOP, 7, 300]
    guide = make_guide(model)
    stops = guide.compiler.vocabulary.stop_token_ids
    assert stops == (STOP, 7, 300)
    seen = set()
    for seed in range(12):
        made = run(
            gp.OutputSpec.choice(["a", "b"]),
            model=model,
            guide=guide,
            seed=seed,
            do_sample=True,
        )
        assert all(made.ended)
        seen |= {token for row in made.rows.tolist() for token in row if token in stops}
    assert len(seen) >= 2


def test_a_specs_own_stop_tokens_end_its_row(run):
    spec = gp.OutputSpec.choice(["yes"], stop_token_ids=[44])
    assert run([spec, None, SPECS[2]]).ended == [True, False, True]
    # `generate` knows nothing of token 44: without the criterion's word it would sample
    # on and on.
    alone = run(spec, prompts=PROMPTS[:1]).rows
    assert alone.shape[1] <= 4
    assert alone[0, -1] == 44


def test_a_model_without_stop_token_ends_where_the_tokenizer_does(
    tokenizer, vocabulary, make_guide
):
    model = random_model(len(tokenizer), eos_token_id=None)
    assert model.generation_config.eos_token_id is None
    rows = generate(
        model,
        encoded(tokenizer, PROMPTS),
        **make_guide(model).generate_kwargs(SPECS[2]),
    )
    assert all(
        recheck(
            vocabulary,
            [SPECS[2]] * 3,
            rows,
            pads=(STOP,),
        )
    )
    assert rows.shape[1] < 10


def test_no_stop_token_anywhere_is_an_error(make_guide, tokenizer):
    class Mute:
        eos_token_id = None

        def __getattr__(self, name):
            if name == "tokenizer":
                raise AttributeError(name)
            return getattr(tokenizer, name)

    with pytest.raises(VocabularyError, match="has no stop token") as caught:
        make_guide(random_model(8, eos_token_id=None), tokenizer=Mute())
    assert caught.value.hint


@pytest.mark.parametrize("options", [{"min_new_tokens": 30}, {"min_length": 60}])
def test_a_grammar_that_has_ended_wins_over_a_least_length(run, tokenizer, options):
    for sample in (False, True):
        made = run([SPECS[2], None, SPECS[1]], do_sample=sample, **options)
        assert (made.ended, made.errors) == ([True, False, True], {})
    # Where the grammar can go on, it must: nothing may end before its time.
    rows = run(gp.OutputSpec.regex("[a-c]*"), do_sample=True, **options).rows
    least = options.get(
        "min_new_tokens", 60 - encoded(tokenizer, PROMPTS)["input_ids"].shape[1]
    )
    assert all(STOP not in row[:least] for row in rows.tolist())


def test_processors_that_forbid_all_that_the_grammar_allows(
    tokenizer, vocabulary, model, guide, caplog
):
    letters = [
        [token]
        for token, data in enumerate(vocabulary.tokens)
        if data[:1] in (b"y", b"Y")
    ]
    kwargs = guide.generate_kwargs([gp.OutputSpec.choice(["yes"]), None, SPECS[1]])
    with caplog.at_level(logging.ERROR, "guided_plugin"):
        rows = generate(
            model,
            encoded(tokenizer, PROMPTS),
            do_sample=True,
            bad_words_ids=letters,
            **kwargs,
        )
    assert rows[0, 0] == STOP
    ((row, error),) = kwargs.errors.items()
    assert row == 0
    assert "forbid every token" in error.what
    assert error.where
    assert error.hint
    (said,) = caplog.messages
    assert said.startswith(f"request {error.request_id}: ")
    recheck(vocabulary, [None, None, SPECS[1]], rows)


def test_stop_strings(tokenizer, vocabulary, model, guide):
    kwargs = guide.generate_kwargs(SPECS[0])
    rows = generate(
        model,
        encoded(tokenizer, PROMPTS),
        tokenizer=tokenizer,
        stop_strings=['"kind"'],
        do_sample=True,
        **kwargs,
    )
    for row in rows.tolist():
        kept = row[: row.index(PAD)] if PAD in row else row
        recheck(vocabulary, [SPECS[0]], torch.tensor([kept]))
        assert tokenizer.decode(kept).endswith(('"kind"', '"kind":'))
    assert kwargs.errors == {}


class Shift(LogitsProcessor):
    """A user's processor: favours one token, whatever came before."""

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores[:, 400] = 1e4
        return scores


def test_processors_of_the_user_go_first_and_one_behind_the_guide_is_found_out(
    run, tokenizer, model, guide, caplog
):
    assert run(SPECS, logits_processor=[Shift()]).errors == {}
    kwargs = guide.generate_kwargs(SPECS, logits_processor=[Shift()])
    assert [type(one).__name__ for one in kwargs["logits_processor"]] == [
        "Shift",
        "GenerateCall",
    ]
    kwargs["logits_processor"].append(Shift())
    with caplog.at_level(logging.ERROR, "guided_plugin"):
        generate(
            model,
            encoded(tokenizer, PROMPTS),
            max_new_tokens=4,
            **kwargs,
        )
    assert sorted(kwargs.errors) == [0, 1, 2]
    assert all(
        "breaks the grammar" in error.what and error.hint
        for error in kwargs.errors.values()
    )
    assert len(caplog.records) == 3


def test_logits_are_returned_as_the_model_made_them(tokenizer, model, guide):
    inputs = encoded(tokenizer, PROMPTS)
    options = {
        "return_dict_in_generate": True,
        "output_logits": True,
        "output_scores": True,
    }
    bare = model.generate(**inputs, max_new_tokens=3, **options)
    made = model.generate(
        **inputs, max_new_tokens=3, **options, **guide.generate_kwargs(SPECS)
    )
    assert torch.equal(made.logits[0], bare.logits[0])
    assert not torch.isinf(made.logits[0]).any()
    assert torch.isinf(made.scores[0]).any()


@pytest.mark.parametrize("reuse", [False, True])
def test_a_processor_alone_is_an_error(tokenizer, model, guide, reuse):
    alone = guide.generate_kwargs(SPECS, reuse=reuse)["logits_processor"]
    with pytest.raises(PipelineError, match="criterion not once") as caught:
        generate(model, encoded(tokenizer, PROMPTS), logits_processor=alone)
    assert "generate_kwargs" in caught.value.hint


def test_a_criterion_alone_is_an_error(tokenizer, model, guide, caplog):
    kwargs = guide.generate_kwargs(SPECS)
    del kwargs["logits_processor"]
    with pytest.raises(PipelineError, match=r"without its logits processor \("):
        generate(model, encoded(tokenizer, PROMPTS), **kwargs)
    with pytest.raises(PipelineError, match=r"unguided \(.*continuous batching"):
        _ = kwargs.errors
    gc.collect()  # what other tests have dropped
    caplog.clear()
    del kwargs
    gc.collect()
    (said,) = caplog.messages
    assert "what was generated without them is unguided" in said


# What can't be guided

LOOKAHEAD = gp.OutputSpec.regex("a(?=b)")


@pytest.mark.parametrize(
    ("specs", "kind", "where"),
    [
        ([SPECS[0], LOOKAHEAD], GrammarError, "spec 1"),
        ([SPECS[0], None, {"jsn_schema": {}}], SpecError, "spec 2"),
        (LOOKAHEAD, GrammarError, ""),
        ([], ConfigError, "spec"),
    ],
)
@pytest.mark.parametrize("has_model", [True, False])
def test_a_bad_spec_is_told_by_its_place_before_anything_runs(
    make_guide, model, has_model, specs, kind, where
):
    with pytest.raises(kind) as caught:
        make_guide(model if has_model else None).generate_kwargs(specs)
    assert caught.value.where.startswith(where)


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_as_many_specs_as_prompts(run, count):
    with pytest.raises(ConfigError, match=f"{count} specs for 3 prompts") as caught:
        run([SPECS[2]] * count)
    assert caught.value.hint


def test_a_model_of_another_tokenizer_is_refused(make_guide):
    with pytest.raises(gp.GuidedError, match="logits have 8 columns"):
        make_guide(random_model(8))
