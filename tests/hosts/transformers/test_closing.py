"""`close_before_length` with `generate`: what has room enough ends valid, whatever limits the call."""

import re

import pytest
import torch
from closing import CASES, is_valid, least_of
from generate_calls import STOP, generate
from generating import PROMPTS, SPECS, encoded, random_model, recheck, same_until_stop
from transformers import GenerationConfig, set_seed

import guided_plugin as gp
from guided_plugin.errors import RequestError
from guided_plugin.hosts.transformers import call as call_module
from guided_plugin.hosts.transformers.surroundings import Surroundings

SCHEMA = CASES["schema"]
WIDTH = 12
"""Columns of the prompts."""
CALLS = {
    "max_new_tokens": lambda room: {"max_new_tokens": room},
    "max_length": lambda room: {"max_length": room + WIDTH},
    "a config": lambda room: {"generation_config": GenerationConfig(max_length=room + WIDTH, do_sample=True)},
    "a least length": lambda room: {"max_new_tokens": room, "min_new_tokens": room},
    "three of each": lambda room: {"max_new_tokens": room, "num_return_sequences": 3},
    "a forced last token": lambda room: {"max_new_tokens": room, "forced_eos_token_id": STOP},
}


@pytest.fixture(scope="module")
def prompts(demo_tokenizer):
    """Of different lengths, padded to WIDTH columns."""
    found = encoded(demo_tokenizer, ["Person as JSON: ", "x", "Another: "])
    pad = WIDTH - found["input_ids"].shape[1]
    return {
        name: torch.nn.functional.pad(value, (pad, 0), value=2 * (name == "input_ids"))
        for name, value in found.items()
    }


def least_in(guide, spec):
    return guide.compiler.compile(spec).admission().least


def check(outputs, kind, room):
    for output in outputs:
        assert (output.error, output.complete) == (None, True)
        assert is_valid(kind, output.text), output.text
        assert len(output.tokens) < room
    return sum(output.closed for output in outputs)


@pytest.mark.parametrize("how", CALLS)
def test_every_output_ends_valid_however_the_call_is_limited(model, guide, prompts, how):
    least, closed = least_in(guide, SCHEMA), 0
    for room in (least, least + 2, 2 * least, 3 * least):
        set_seed(room)
        found = guide.generate(model, prompts, [SCHEMA] * 3, do_sample=True, **CALLS[how](room))
        assert len(found) == (9 if how == "three of each" else 3)
        closed += check(found, "schema", room)
    assert closed > 3


@pytest.mark.parametrize("kind", [kind for kind in CASES if kind != "schema"])
@pytest.mark.parametrize("mode", ["inline", "process"])
def test_specs_of_all_kinds_next_to_a_row_without(model, make_guide, prompts, mode, kind):
    guide, spec = make_guide(model, mode=mode), CASES[kind]
    loan = guide._pool.borrow(torch.device("cpu"), 1)
    least = least_of(loan.pipeline, spec)
    guide._pool.give_back([loan])
    for room in (least, least + 1, 3 * least):
        set_seed(room)
        options = {"do_sample": True, "max_new_tokens": room}
        one, free, other = guide.generate(model, prompts, [spec, None, spec], **options)
        check([one, other], kind, room)
        set_seed(room)
        bare = model.generate(**prompts, **options)[1, WIDTH:]
        assert same_until_stop(torch.tensor(free.tokens), bare)
        assert not free.closed


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_decoders_with_forced_tokens(tokenizer, make_guide, kind):
    model = random_model(len(tokenizer), kind=kind)
    guide = make_guide(model)
    forced = {"forced_bos_token_id": 9, "forced_eos_token_id": STOP} if kind == "bart" else {}
    least = least_in(guide, SCHEMA)
    for room in (least, 2 * least):
        options = {"do_sample": True, "max_new_tokens": room + len(forced) // 2, **forced}
        kwargs = guide.generate_kwargs(SCHEMA)
        rows = generate(model, encoded(tokenizer, PROMPTS), seed=room, **options, **kwargs)[:, 1:]
        assert all(recheck(guide.compiler.vocabulary, [SCHEMA] * 3, rows, after=len(forced) // 2))
        assert kwargs.errors == {}
    with pytest.raises(RequestError, match=f"takes {least}"):
        model.generate(
            **encoded(tokenizer, PROMPTS),
            **{**options, "max_new_tokens": least - 1 + len(forced) // 2},
            **guide.generate_kwargs(SCHEMA),
        )


def test_a_first_token_is_forced_behind_a_single_one_only(tokenizer, model, guide):
    kwargs = guide.generate_kwargs(SPECS)
    rows = generate(
        model, encoded(tokenizer, PROMPTS), do_sample=True, forced_bos_token_id=9, max_new_tokens=90, **kwargs
    )
    assert all(recheck(guide.compiler.vocabulary, SPECS, rows)[1:])
    assert kwargs.errors == {}


def test_too_little_room_is_an_error_with_its_place(model, guide, prompts, monkeypatch):
    least, specs = least_in(guide, SCHEMA), [CASES["choice"], None, SCHEMA]
    options = {"max_new_tokens": least - 1, "do_sample": True, "num_return_sequences": 2}
    found = guide.generate(model, prompts, specs, **options)
    assert all(output.error is None for output in found[:4])
    check(found[:2], "choice", least - 1)
    for output in found[4:]:
        assert isinstance(output.error, RequestError)
        assert (output.text, output.tokens, output.complete, output.closed) == ("", (), False, False)
    with pytest.raises(RequestError, match=f"takes {least}") as caught:
        model.generate(**prompts, **options, **guide.generate_kwargs(specs))
    assert caught.value.where.startswith("spec 2: ")
    told = int(re.search(r"allow at least (\d+)", caught.value.hint)[1])
    kwargs = guide.generate_kwargs(specs)
    rows = model.generate(**prompts, **{**options, "max_new_tokens": told}, **kwargs)
    assert recheck(guide.compiler.vocabulary, [SCHEMA] * 2, rows[4:, WIDTH:]) == [True, True]
    assert (kwargs.errors, kwargs.closed >= {4, 5}) == ({}, True)
    # A loop of the user's own has no such frame: the limit is not known, and nothing is cut silently.
    monkeypatch.setattr(call_module, "surroundings", lambda processor: Surroundings())
    with pytest.raises(RequestError, match="within") as caught:
        model.generate(**prompts, max_new_tokens=told, **guide.generate_kwargs(SCHEMA))
    assert caught.value.where == "close_before_length"
    assert model.generate(
        **prompts, max_new_tokens=told, **guide.generate_kwargs(SCHEMA.within(told))
    ).tolist()


@pytest.mark.parametrize("wanted", [True, False])
def test_as_the_configuration_says_without_a_criterion(model, make_guide, prompts, wanted):
    config = gp.GuidedConfig(threads=2, isolate_compiles=False, close_before_length=wanted)
    guide, spec = make_guide(model, config=config), gp.OutputSpec.json_schema(SCHEMA.text)
    set_seed(0)
    rows = model.generate(
        **prompts, max_new_tokens=40, do_sample=True, logits_processor=[guide.logits_processor(spec)]
    )
    ended = recheck(guide.compiler.vocabulary, [spec] * 3, rows[:, WIDTH:])
    assert all(ended) if wanted else not all(ended)
