"""`Guide.generate_kwargs`: what comes out of `generate` is what the specs say, whatever the call is like."""

import logging
import threading

import pytest
import torch
from generate_calls import MIXED, PAD, STOP, generate
from generating import PROMPTS, SPECS, encoded, random_model, recheck, same_until_stop
from transformers import CompileConfig, LogitsProcessor, StoppingCriteria, TextStreamer

import guided_plugin as gp
from guided_plugin.errors import ConfigError, GrammarError, PipelineError, SpecError
from guided_plugin.hosts.transformers import call as transformers_step

HOW = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 1.3, "top_k": 50, "top_p": 0.95},
    "min_p": {"do_sample": True, "min_p": 0.02, "top_k": 0},
    "penalties": {"do_sample": True, "repetition_penalty": 1.2, "no_repeat_ngram_size": 6},
    "watched": {"do_sample": True, "renormalize_logits": True, "remove_invalid_values": True},
    "static cache": {"do_sample": True, "cache_implementation": "static"},
}


@pytest.mark.parametrize("how", HOW)
def test_guided_rows_are_valid_and_unguided_ones_untouched(
    tokenizer, vocabulary, model, make_guide, mode, how
):
    guide = make_guide(model, mode=mode)
    inputs = encoded(tokenizer, PROMPTS)
    finished = 0
    for seed in range(3):
        kwargs = guide.generate_kwargs(MIXED)
        guided = generate(model, inputs, seed=seed, **HOW[how], **kwargs)
        bare = generate(model, inputs, seed=seed, **HOW[how])
        finished += sum(recheck(vocabulary, MIXED, guided))
        assert same_until_stop(guided[1], bare[1])
        assert not same_until_stop(guided[0], bare[0])
        assert kwargs.errors == {}
    assert finished >= 4


def test_compiled_forward(tokenizer, vocabulary, model, guide):
    torch._dynamo.reset()
    compiled = CompileConfig(backend="eager", mode=None, fullgraph=False)
    compiled._compile_all_devices = True
    options = {"cache_implementation": "static", "compile_config": compiled, "max_new_tokens": 12}
    options |= {"do_sample": True}
    inputs = encoded(tokenizer, PROMPTS)
    guided = generate(model, inputs, **options, **guide.generate_kwargs(MIXED))
    recheck(vocabulary, MIXED, guided)
    assert same_until_stop(guided[1], generate(model, inputs, **options)[1])
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(tokenizer, vocabulary, make_guide, dtype):
    model = random_model(len(tokenizer)).to(dtype)
    guided = generate(
        model, encoded(tokenizer, PROMPTS), do_sample=True, **make_guide(model).generate_kwargs(SPECS)
    )
    assert any(recheck(vocabulary, SPECS, guided))


def test_several_sequences_of_a_prompt(tokenizer, vocabulary, model, guide):
    inputs = encoded(tokenizer, PROMPTS)
    options = {"do_sample": True, "num_return_sequences": 3}
    guided = generate(model, inputs, **options, **guide.generate_kwargs(MIXED))
    each = [spec for spec in MIXED for _ in range(3)]
    recheck(vocabulary, each, guided)
    bare = generate(model, inputs, **options)
    for row, spec in enumerate(each):
        assert same_until_stop(guided[row], bare[row]) == (spec is None)
    assert guided[0].tolist() != guided[1].tolist()
    recheck(vocabulary, [SPECS[2]] * 9, generate(model, inputs, **options, **guide.generate_kwargs(SPECS[2])))


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_encoder_decoder(tokenizer, vocabulary, make_guide, kind):
    model = random_model(len(tokenizer), kind=kind)
    guide = make_guide(model)
    inputs = encoded(tokenizer, PROMPTS)
    kwargs = guide.generate_kwargs(MIXED)
    guided = generate(model, inputs, do_sample=True, **kwargs)[:, 1:]
    recheck(vocabulary, MIXED, guided)
    assert same_until_stop(guided[1], generate(model, inputs, do_sample=True)[1, 1:])
    assert kwargs.errors == {}


def test_forced_first_and_last_tokens(tokenizer, vocabulary, make_guide):
    # As BART checkpoints have them. Neither is the grammar's business, nor its failure.
    model = random_model(len(tokenizer), kind="bart")
    kwargs = make_guide(model).generate_kwargs(SPECS[0])
    options = {"forced_bos_token_id": 9, "forced_eos_token_id": STOP, "max_new_tokens": 8}
    rows = generate(model, encoded(tokenizer, PROMPTS), do_sample=True, **options, **kwargs)[:, 1:]
    assert rows[:, 0].tolist() == [9] * 3
    assert rows[:, -1].tolist() == [STOP] * 3
    recheck(vocabulary, [SPECS[0]] * 3, rows[:, :-1], after=1)
    assert kwargs.errors == {}


def test_embeddings_instead_of_token_ids(tokenizer, vocabulary, model, guide):
    inputs = encoded(tokenizer, PROMPTS)
    embeds = model.get_input_embeddings()(inputs["input_ids"])
    out = model.generate(
        inputs_embeds=embeds,
        attention_mask=inputs["attention_mask"],
        max_new_tokens=40,
        **guide.generate_kwargs(SPECS),
    )
    assert recheck(vocabulary, SPECS, out)[2]


def test_every_stop_token_of_the_model_may_end_a_row(tokenizer, make_guide):
    model = random_model(len(tokenizer))
    model.generation_config.eos_token_id = [STOP, 7, 300]
    guide = make_guide(model)
    stops = guide.compiler.vocabulary.stop_token_ids
    assert stops == (STOP, 7, 300)
    seen = set()
    for seed in range(12):
        rows = generate(
            model,
            encoded(tokenizer, PROMPTS),
            seed=seed,
            do_sample=True,
            **guide.generate_kwargs(gp.OutputSpec.choice(["a", "b"])),
        )
        assert all(recheck(guide.compiler.vocabulary, [gp.OutputSpec.choice(["a", "b"])] * 3, rows))
        seen |= {token for row in rows.tolist() for token in row if token in stops}
    assert len(seen) >= 2


def test_a_specs_own_stop_tokens_end_its_row(tokenizer, vocabulary, model, guide):
    spec = gp.OutputSpec.choice(["yes"], stop_token_ids=[44])
    rows = generate(model, encoded(tokenizer, PROMPTS), **guide.generate_kwargs([spec, None, SPECS[2]]))
    assert recheck(vocabulary, [spec, None, SPECS[2]], rows) == [True, False, True]
    # `generate` knows nothing of token 44: without the criterion's word it would sample on and on.
    alone = generate(model, encoded(tokenizer, PROMPTS[:1]), **guide.generate_kwargs(spec))
    assert alone.shape[1] <= 4
    assert alone[0, -1] == 44


def test_a_model_without_stop_token_ends_where_the_tokenizer_does(tokenizer, vocabulary, make_guide):
    model = random_model(len(tokenizer), eos_token_id=None)
    assert model.generation_config.eos_token_id is None
    rows = generate(model, encoded(tokenizer, PROMPTS), **make_guide(model).generate_kwargs(SPECS[2]))
    assert all(recheck(vocabulary, [SPECS[2]] * 3, rows, pads=(STOP,)))
    assert rows.shape[1] < 10


def test_no_stop_token_anywhere_is_an_error(make_guide, tokenizer):
    class Mute:
        eos_token_id = None

        def get_vocab(self):
            return tokenizer.get_vocab()

    with pytest.raises(ConfigError, match="which token ends an output") as caught:
        make_guide(random_model(8, eos_token_id=None), tokenizer=Mute())
    assert (caught.value.where, bool(caught.value.hint)) == ("eos_token_id", True)


@pytest.mark.parametrize("options", [{"min_new_tokens": 30}, {"min_length": 60}])
def test_a_grammar_that_has_ended_wins_over_a_least_length(tokenizer, vocabulary, model, guide, options):
    for sample in (False, True):
        kwargs = guide.generate_kwargs([SPECS[2], None, SPECS[1]])
        rows = generate(model, encoded(tokenizer, PROMPTS), do_sample=sample, **options, **kwargs)
        assert recheck(vocabulary, [SPECS[2], None, SPECS[1]], rows) == [True, False, True]
        assert kwargs.errors == {}
    # Where the grammar can go on, it must: nothing may end before its time.
    spec = gp.OutputSpec.regex("[a-c]*")
    rows = generate(
        model, encoded(tokenizer, PROMPTS), do_sample=True, **options, **guide.generate_kwargs(spec)
    )
    recheck(vocabulary, [spec] * 3, rows)
    least = options.get("min_new_tokens", 60 - encoded(tokenizer, PROMPTS)["input_ids"].shape[1])
    assert all(STOP not in row[:least] for row in rows.tolist())


def test_processors_that_forbid_all_that_the_grammar_allows(tokenizer, vocabulary, model, guide, caplog):
    letters = [[token] for token, data in enumerate(vocabulary.tokens) if data[:1] in (b"y", b"Y")]
    spec = gp.OutputSpec.choice(["yes"])
    kwargs = guide.generate_kwargs([spec, None, SPECS[1]])
    with caplog.at_level(logging.ERROR, "guided_plugin"):
        rows = generate(model, encoded(tokenizer, PROMPTS), do_sample=True, bad_words_ids=letters, **kwargs)
    assert rows[0, 0] == STOP
    assert list(kwargs.errors) == [0]
    assert "forbid every token" in kwargs.errors[0].what
    assert kwargs.errors[0].where
    assert kwargs.errors[0].hint
    assert "row 0" in caplog.text
    recheck(vocabulary, [None, None, SPECS[1]], rows)


def test_a_row_that_another_criterion_ends_has_not_failed(tokenizer, vocabulary, model, guide, caplog):
    class AfterFour(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            done = torch.zeros(input_ids.shape[0], dtype=torch.bool)
            done[0] = input_ids.shape[1] - length >= 4
            return done

    inputs = encoded(tokenizer, PROMPTS)
    length = inputs["input_ids"].shape[1]
    kwargs = guide.generate_kwargs(SPECS, stopping_criteria=[AfterFour()])
    rows = generate(model, inputs, do_sample=True, **kwargs)
    assert rows[0, 4:].tolist() == [PAD] * (rows.shape[1] - 4)
    recheck(vocabulary, [SPECS[0]], rows[:1, :4])
    recheck(vocabulary, [None, *SPECS[1:]], rows)
    assert rows.shape[1] > 5
    assert kwargs.errors == {}
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_stop_strings(tokenizer, vocabulary, model, guide):
    kwargs = guide.generate_kwargs(SPECS[0])
    inputs = encoded(tokenizer, PROMPTS)
    rows = generate(model, inputs, tokenizer=tokenizer, stop_strings=['"kind"'], do_sample=True, **kwargs)
    for row in rows.tolist():
        kept = row[: row.index(PAD)] if PAD in row else row
        recheck(vocabulary, [SPECS[0]], torch.tensor([kept]))
        assert tokenizer.decode(kept).endswith(('"kind"', '"kind":'))
    assert kwargs.errors == {}


class Shift(LogitsProcessor):
    """A user's processor: favours one token, whatever came before."""

    def __init__(self, token):
        self.token = token

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores[:, self.token] = 1e4
        return scores


def test_processors_of_the_user_go_first(tokenizer, vocabulary, model, guide):
    inputs = encoded(tokenizer, PROMPTS)
    kwargs = guide.generate_kwargs(SPECS, logits_processor=[Shift(400)])
    assert [type(one).__name__ for one in kwargs["logits_processor"]] == ["Shift", "GuidedProcessor"]
    recheck(vocabulary, SPECS, generate(model, inputs, **kwargs))
    assert kwargs.errors == {}


def test_a_processor_behind_the_guide_is_found_out(tokenizer, model, guide, caplog):
    kwargs = guide.generate_kwargs(SPECS)
    kwargs["logits_processor"].append(Shift(400))
    with caplog.at_level(logging.ERROR, "guided_plugin"):
        generate(model, encoded(tokenizer, PROMPTS), max_new_tokens=4, **kwargs)
    assert sorted(kwargs.errors) == [0, 1, 2]
    assert all("breaks the grammar" in error.what and error.hint for error in kwargs.errors.values())
    assert len(caplog.records) == 3


def test_logits_are_returned_as_the_model_made_them(tokenizer, model, guide):
    inputs = encoded(tokenizer, PROMPTS)
    options = {"return_dict_in_generate": True, "output_logits": True, "output_scores": True}
    bare = model.generate(**inputs, max_new_tokens=3, **options)
    made = model.generate(**inputs, max_new_tokens=3, **options, **guide.generate_kwargs(SPECS))
    assert torch.equal(made.logits[0], bare.logits[0])
    assert not torch.isinf(made.logits[0]).any()
    assert torch.isinf(made.scores[0]).any()


def test_streamers(tokenizer, vocabulary, model, guide, capsys):
    inputs = encoded(tokenizer, PROMPTS[:1])
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    rows = generate(model, inputs, streamer=streamer, do_sample=True, **guide.generate_kwargs(SPECS[1]))
    assert recheck(vocabulary, SPECS[1:2], rows) == [True]
    assert capsys.readouterr().out.strip() == tokenizer.decode(rows[0], skip_special_tokens=True)


def test_only_generated_tokens_are_the_grammars(tokenizer, vocabulary, model, guide):
    prompt = encoded(tokenizer, ['{"name":"half of an answer'])
    rows = generate(model, prompt, do_sample=True, **guide.generate_kwargs(SPECS[2]))
    assert recheck(vocabulary, SPECS[2:], rows) == [True]


# Without the criterion


def test_a_processor_alone_is_correct_and_says_once_how_to_be_faster(
    tokenizer, vocabulary, model, guide, mode, make_guide, caplog, monkeypatch
):
    monkeypatch.setattr(transformers_step, "_warned", threading.Event())
    guide = make_guide(model, mode=mode)
    inputs = encoded(tokenizer, PROMPTS)
    for seed in range(3):
        options = {"do_sample": True, "seed": seed}
        alone = generate(model, inputs, logits_processor=[guide.logits_processor(MIXED)], **options)
        paired = generate(model, inputs, **guide.generate_kwargs(MIXED), **options)
        recheck(vocabulary, MIXED, alone)
        assert alone.tolist() == paired.tolist()
    said = [record for record in caplog.records if "without its stopping criterion" in record.message]
    assert len(said) == 1
    assert "generate_kwargs" in said[0].message


def test_a_criterion_alone_is_an_error(tokenizer, model, guide):
    criteria = guide.generate_kwargs(SPECS)["stopping_criteria"]
    with pytest.raises(PipelineError, match="without its logits processor") as caught:
        generate(model, encoded(tokenizer, PROMPTS), stopping_criteria=criteria)
    assert caught.value.hint


# What can't be guided


def test_a_bad_spec_is_told_by_its_place_before_anything_runs(guide):
    with pytest.raises(GrammarError) as caught:
        guide.generate_kwargs([SPECS[0], gp.OutputSpec.regex("a(?=b)")])
    assert caught.value.where.startswith("spec 1")
    with pytest.raises(SpecError) as wrong:
        guide.generate_kwargs([SPECS[0], None, {"jsn_schema": {}}])
    assert wrong.value.where.startswith("spec 2")
    with pytest.raises(GrammarError):
        guide.generate_kwargs(gp.OutputSpec.regex("a(?=b)"))
    with pytest.raises(ConfigError, match="empty list"):
        guide.generate_kwargs([])


def test_a_bad_spec_is_told_without_a_model_too(make_guide):
    with pytest.raises(GrammarError):
        make_guide().generate_kwargs(gp.OutputSpec.regex("a(?=b)"))


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_as_many_specs_as_prompts(tokenizer, model, guide, count):
    kwargs = guide.generate_kwargs([SPECS[2]] * count)
    with pytest.raises(ConfigError, match=f"{count} specs for 3 prompts") as caught:
        generate(model, encoded(tokenizer, PROMPTS), **kwargs)
    assert caught.value.hint


def test_wire_forms_and_no_spec_at_all(tokenizer, vocabulary, model, guide):
    inputs = encoded(tokenizer, PROMPTS)
    rows = generate(model, inputs, **guide.generate_kwargs({"choice": ["yes", "no"]}))
    assert all(recheck(vocabulary, [gp.OutputSpec.choice(["yes", "no"])] * 3, rows))
    kwargs = guide.generate_kwargs(None)
    free = generate(model, inputs, do_sample=True, **kwargs)
    assert free.tolist() == generate(model, inputs, do_sample=True).tolist()
    assert kwargs.errors == {}


def test_a_model_of_another_tokenizer_is_refused(make_guide):
    with pytest.raises(gp.GuidedError, match="logits have 8 columns"):
        make_guide(random_model(8))


# Calls and what they leave
