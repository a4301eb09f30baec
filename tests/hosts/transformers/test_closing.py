"""`close_before_length` with `generate`: what has room enough ends valid, whatever
limits the call."""

import pytest
import torch
from closing import CASES, is_valid
from generate_calls import generate
from generating import PROMPTS, SPECS, encoded, recheck, same_until_stop
from transformers import GenerationConfig, set_seed

import guided_plugin as gp
from guided_plugin.errors import RequestError

SCHEMA = CASES["schema"]
CALLS = {
    "max_new_tokens": lambda room, _: {"max_new_tokens": room},
    "process": lambda room, _: {"max_new_tokens": room},
    "max_length": lambda room, width: {"max_length": room + width},
    "a config": lambda room, width: {
        "generation_config": GenerationConfig(max_length=room + width)
    },
    "a least length": lambda room, _: {"max_new_tokens": room, "min_new_tokens": room},
    "three of each": lambda room, _: {
        "max_new_tokens": room,
        "num_return_sequences": 3,
    },
}


def least_in(guide, spec):
    return guide.compiler.compile(spec).admission().least


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        *((how, "schema") for how in CALLS),
        *(("max_new_tokens", kind) for kind in CASES if kind != "schema"),
    ],
)
def test_every_output_ends_valid_and_rows_beside_are_untouched(
    tokenizer, model, make_guide, how, kind
):
    guide = make_guide(model, mode="process" if how == "process" else "inline")
    spec = CASES[kind]
    inputs = encoded(tokenizer, PROMPTS)
    closed = 0
    least = least_in(guide, spec)
    width = inputs["input_ids"].shape[1]
    # How short an output a worker finds depends on how busy the machine is.
    for room in (least + 3 * (how == "process"), least + 5, 3 * least):
        options = {"do_sample": True, **CALLS[how](room, width)}
        set_seed(room)
        bare = model.generate(**inputs, **options)[:, width:]
        set_seed(room)
        found = guide.generate(model, inputs, [spec, None, spec], **options)
        assert len(found) == len(bare)
        for place, (output, tokens) in enumerate(zip(found, bare, strict=True)):
            if 3 * place // len(found) == 1:
                assert same_until_stop(torch.tensor(output.tokens), tokens)
                assert not output.closed
                continue
            assert (output.error, output.complete, len(output.tokens) < room) == (
                None,
                True,
                True,
            )
            assert is_valid(kind, output.text), output.text
            closed += output.closed == "led"
    assert closed or kind == "choice"


def test_too_little_room_is_an_error_with_its_place(
    tokenizer, model, guide, monkeypatch
):
    inputs = encoded(tokenizer, PROMPTS)
    least = least_in(guide, SCHEMA)
    specs = [None, SCHEMA, SPECS[2]]
    few = {"max_new_tokens": least - 1, "do_sample": True}
    found = guide.generate(model, inputs, specs, **few)
    errors = [type(output.error) for output in found]
    assert errors == [type(None), RequestError, type(None)]
    assert (found[1].tokens, found[1].closed, found[2].complete) == ((), "", True)
    with pytest.raises(RequestError, match=f"takes {least}") as caught:
        generate(model, inputs, **few, **guide.generate_kwargs(specs))
    assert caught.value.where.startswith("spec 1: ")
    assert f"at least {least}" in caught.value.hint
    kwargs = guide.generate_kwargs(specs)
    generate(model, inputs, **{**few, "max_new_tokens": least}, **kwargs)
    assert (kwargs.errors, kwargs.requests[1].closed) == ({}, "led")


@pytest.mark.parametrize("wanted", [True, False])
def test_as_the_configuration_says(tokenizer, model, make_guide, wanted):
    guide = make_guide(
        model,
        config=gp.GuidedConfig(isolate_compiles=False, close_before_length=wanted),
    )
    spec = gp.OutputSpec.json_schema(SCHEMA.text)
    options = {
        "max_new_tokens": 40,
        "do_sample": True,
        **guide.generate_kwargs(spec),
    }
    rows = generate(model, encoded(tokenizer, PROMPTS), **options)
    assert all(recheck(guide.compiler.vocabulary, [spec] * 3, rows)) == wanted
