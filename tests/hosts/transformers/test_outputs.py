"""`Guide.generate`: texts, values of types and parsed objects, errors by row;
transformers' own pipeline."""

from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from generating import PROMPTS, encoded, random_model
from pydantic import BaseModel, Field, field_validator

import guided_plugin as gp
from guided_plugin.demo import DEMOS
from guided_plugin.errors import (
    ConfigError,
    GrammarError,
    OutputError,
    SpecError,
)
from guided_plugin.hosts.transformers.output import prompt_tensors


@dataclass
class Pair:
    left: bool
    right: Literal["a", "b"] | None = None


class Never(BaseModel):
    a: bool

    @field_validator("a")
    @classmethod
    def refuse(cls, value):
        raise ValueError("never right")


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=150)


SCHEMA = gp.OutputSpec.json_schema(Person)


@pytest.fixture(scope="module")
def guide(demo_tokenizer, demo_model):
    options = {"threads": 2, "isolate_compiles": False, "whitespace": "compact"}
    config = gp.GuidedConfig(unenforced_keywords=("uniqueItems",), **options)
    with gp.Guide(demo_tokenizer, model=demo_model, config=config) as guide:
        yield guide


def test_a_row_with_a_bad_spec_has_an_error_and_the_others_are_as_without_it(
    demo_model, guide
):
    prompts = [demo.prompt for demo in DEMOS]
    good = [gp.OutputSpec.json_schema(demo.schema) for demo in DEMOS]
    bad = guide.generate(
        demo_model,
        [prompts[0], "Person", prompts[1], "x", prompts[2]],
        [good[0], gp.OutputSpec.regex("a(?=b)"), good[1], {"jsn_schema": {}}, good[2]],
        max_new_tokens=200,
    )
    without = guide.generate(
        demo_model,
        prompts,
        good,
        max_new_tokens=200,
    )
    assert isinstance(bad[1].error, GrammarError)
    assert isinstance(bad[3].error, SpecError)
    assert bad[1].tokens == bad[3].tokens == ()
    assert [bad[0], bad[2], bad[4]] == without
    assert all(output.complete and output.parsed for output in without)
    tensors = encoded(guide._tokenizer, [prompts[0], "x"])
    specs = [good[0], gp.OutputSpec.regex("a(?=b)")]
    mixed = guide.generate(
        demo_model,
        tensors,
        specs,
        max_new_tokens=200,
    )
    assert mixed[0].text == without[0].text
    assert isinstance(mixed[1].error, GrammarError)
    with pytest.raises(GrammarError):
        guide.generate(demo_model, {**tensors, "pixels": torch.zeros(7, 3)}, specs)


@pytest.mark.parametrize("inputs", ["x", ["x", "y"]])
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"jsn": 1}, SpecError),
        (gp.OutputSpec.regex("a(?=b)"), GrammarError),
        (object(), SpecError),
    ],
)
def test_one_bad_spec_for_all_prompts_raises(demo_model, guide, inputs, bad, error):
    with pytest.raises(error):
        guide.generate(
            demo_model,
            inputs,
            bad,
            max_new_tokens=4,
        )
    assert guide.generate(demo_model, ["x"], [bad])[0].error is not None


def test_only_the_guided_part_is_parsed(demo_tokenizer):
    random = random_model(len(demo_tokenizer))
    spec = gp.OutputSpec.json_schema({"enum": [1, 2]}, start_after=[300])
    options = {"do_sample": True, "sequence_bias": {(300,): 12.0}}
    opened = 0
    with gp.Guide(demo_tokenizer, model=random) as other:
        for seed in range(4):
            torch.manual_seed(seed)
            outputs = other.generate(
                random, PROMPTS, spec, max_new_tokens=30, **options
            )
            opened += sum(output.parsed in (1, 2) for output in outputs)
            for output in outputs:
                assert output.error is None or (
                    300 not in output.tokens and not output.complete
                )
    assert opened > 0


def test_spaces_survive(demo_model, guide):
    # Decoders tidy up; a grammar's text may not be tidied.
    spec = gp.OutputSpec.choice(["  two , spaces .  "])
    (output,) = guide.generate(
        demo_model,
        "Say: ",
        spec,
        max_new_tokens=40,
    )
    assert output.text == "  two , spaces .  "


def test_inputs_as_a_tokenizer_gives_them(demo_tokenizer, demo_model, guide):
    tensors = demo_tokenizer(
        "Person as JSON: ", return_tensors="pt", return_token_type_ids=False
    )
    text = guide.generate(
        demo_model,
        "Person as JSON: ",
        Person,
        max_new_tokens=80,
    )
    assert (
        guide.generate(
            demo_model,
            tensors,
            Person,
            max_new_tokens=80,
        )
        == text
    )
    assert (
        guide.generate(
            demo_model,
            tensors["input_ids"],
            Person,
            max_new_tokens=80,
        )
        == text
    )
    dictionary = guide.generate(
        demo_model,
        tensors,
        Person,
        max_new_tokens=80,
        return_dict_in_generate=True,
        output_scores=True,
    )
    assert dictionary == text


@pytest.mark.parametrize(
    ("inputs", "where"),
    [
        ([], "inputs"),
        (7, "inputs"),
        ([[1, 2]], "inputs"),
        ({"input_ids": [1]}, "inputs"),
    ],
)
def test_inputs_that_are_none(demo_model, guide, inputs, where):
    with pytest.raises(ConfigError) as caught:
        guide.generate(demo_model, inputs, Person)
    assert (caught.value.where, bool(caught.value.hint)) == (where, True)


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 2},
        {"prompt_lookup_num_tokens": 2},
    ],
)
def test_options_that_are_refused(demo_model, guide, options):
    with pytest.raises(ConfigError) as caught:
        guide.generate(
            demo_model,
            "x",
            Person,
            max_new_tokens=9,
            **options,
        )
    assert caught.value.hint


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda model, tokenizer, _: gp.Guide(model, model=tokenizer),
            "model: must be a model of transf",
        ),
        (
            lambda model, tokenizer, _: gp.Guide(model, tokenizer),
            r"not \w+ \(Guide\(tokenizer, model=model",
        ),
        (
            lambda model, tokenizer, _: gp.Guide(tokenizer, mode="proces"),
            "did you mean 'process'",
        ),
        (
            lambda model, tokenizer, _: gp.Guide(tokenizer, config={"threads": 1}),
            "must be a GuidedConfig",
        ),
        (
            lambda model, tokenizer, guide: guide.generate("x", model, Person),
            "model: must be a model",
        ),
        (
            lambda model, tokenizer, guide: guide.generate(model, "x"),
            "0 specs for 1 prompts .one for",
        ),
        (
            lambda model, tokenizer, guide: guide.generate_kwargs(),
            "spec: an empty list .one spec for",
        ),
    ],
)
def test_what_is_given_in_the_wrong_place_or_not_at_all(
    demo_model, demo_tokenizer, guide, make, says
):
    with pytest.raises(gp.GuidedError, match=says):
        make(demo_model, demo_tokenizer, guide)


def test_text_generation_pipeline(
    demo_tokenizer, demo_model, guide, quiet_transformers
):
    pipe = quiet_transformers.pipeline(
        "text-generation", model=demo_model, tokenizer=demo_tokenizer
    )
    prompts = ["Person as JSON: "] * 3
    made = pipe(
        prompts,
        return_full_text=False,
        max_new_tokens=80,
        do_sample=True,
        **guide.generate_kwargs(Person, reuse=True),
    )
    people = [Person.model_validate_json(one[0]["generated_text"]) for one in made]
    assert len({person.name for person in people}) > 1
    with pytest.raises(gp.GuidedError, match="second generate call"):
        pipe(prompts, max_new_tokens=80, **guide.generate_kwargs(Person))


def test_values_of_their_types_come_back(demo_tokenizer, demo_model, guide):
    specs = [Pair, Literal["yes", "no"], Person, tuple[Person, Pair]]
    specs += [gp.TypedSpec(bool), Never, set[bool], object(), SCHEMA, None]
    prompts = ["Person as JSON: "] * len(specs)
    outputs = guide.generate(
        demo_model,
        prompts,
        specs,
        max_new_tokens=120,
    )
    pair, choice, person, both, flag, *others = outputs
    never, flags, wrong, as_dict, free = others
    assert isinstance(pair.parsed, Pair)
    assert choice.parsed == choice.text
    assert isinstance(person.parsed, Person)
    assert as_dict.parsed == person.parsed.model_dump()
    assert demo_tokenizer.decode(as_dict.tokens) == as_dict.text
    assert free.parsed is None
    assert list(map(type, both.parsed)) == [Person, Pair]
    assert flag.parsed in (True, False)
    assert isinstance(never.error, OutputError)
    assert (never.complete, never.parsed) == (True, None)
    assert isinstance(wrong.error, SpecError)
    assert [one for one in outputs if one.unenforced] == [flags]
    assert flags.unenforced == ("uniqueItems",)


def test_arguments_for_generate_take_types_and_name_what_nothing_enforced(
    demo_tokenizer, demo_model, guide
):
    inputs = demo_tokenizer(
        ["x", "x", "x"], return_tensors="pt", return_token_type_ids=False
    )
    typed = gp.TypedSpec(Pair)
    kwargs = guide.generate_kwargs([typed, set[bool], None])
    made = demo_model.generate(**inputs, **kwargs, max_new_tokens=40)
    assert kwargs.requests[1].unenforced == ("uniqueItems",)
    text = demo_tokenizer.decode(
        made[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True
    )
    assert isinstance(typed.read(text), Pair)
    assert kwargs.errors == {}
    with pytest.raises(SpecError, match=r"spec 1: .* not builtin_function"):
        guide.generate_kwargs([Pair, len])


TEMPLATE = (
    "<s>{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def test_messages_of_chats_are_prompts(demo_tokenizer, demo_model, guide, monkeypatch):
    chat = [{"role": "user", "content": "A person?"}]
    with pytest.raises(
        ConfigError, match=r"inputs: the tokenizer has no chat template .set tokenizer"
    ):
        guide.generate(demo_model, chat, Person)
    monkeypatch.setattr(demo_tokenizer, "chat_template", TEMPLATE)
    begun = [*chat, {"role": "assistant", "content": "It is"}]
    texts = ["<s>user: A person?\nassistant: ", "<s>user: A person?\nassistant: It is"]
    ids = [
        demo_tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts
    ]
    # a text has no template that begins it
    ids.append(demo_tokenizer("x")["input_ids"])
    assert prompt_tensors(demo_tokenizer, chat, "cpu")["input_ids"].tolist() == ids[:1]
    rows = prompt_tensors(demo_tokenizer, [chat, begun, "x"], "cpu")
    real = [row[mask.bool()].tolist() for row, mask in zip(*rows.values(), strict=True)]
    assert real == ids
    (output,) = guide.generate(
        demo_model,
        chat,
        Person,
        max_new_tokens=80,
    )
    assert isinstance(output.parsed, Person)
    with pytest.raises(ConfigError, match="a chat is"):
        guide.generate(demo_model, [{"content": "no role"}], Person)
