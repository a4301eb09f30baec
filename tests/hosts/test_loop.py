"""The reference loop with the shipped model: hook order, validity, bit-identity, errors
by row."""

import enum
import itertools
import json

import jsonschema
import numpy
import pytest
import torch
from compilers import start
from transformers import AutoModelForCausalLM

import guided_plugin as gp
from guided_plugin.demo import DEMOS, MODEL_DIR
from guided_plugin.diagnose.check import check_spec
from guided_plugin.errors import (
    ConfigError,
    GrammarError,
    PluginError,
    SpecError,
    VocabularyError,
)
from guided_plugin.hosts import loop as loop_module

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture
def make_loop(mode):
    """Makes loops whose grammars work in either place; ends them."""
    loops = []

    def make(model, compiler, **options):
        loops.append(
            gp.DecodeLoop(
                model,
                compiler,
                mode=mode,
                **options,
            )
        )
        return loops[-1]

    yield make
    for loop in loops:
        loop.pipeline.close()


@pytest.fixture(scope="module", params=DEVICES)
def parts(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    from guided_plugin.cli.loading import load_tokenizer

    tokenizer = load_tokenizer(MODEL_DIR)
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR).to(request.param).eval()
    vocabulary = gp.Vocabulary.from_tokenizer(tokenizer)
    return tokenizer, model, gp.GrammarCompiler(vocabulary)


SPECS = [gp.OutputSpec.json_schema(demo.schema) for demo in DEMOS]


def prompts(tokenizer):
    return [tokenizer.encode(demo.prompt) for demo in DEMOS]


def test_hooks_are_called_in_this_order_and_no_other(parts, make_loop, monkeypatch):
    tokenizer, model, compiler = parts
    calls = []

    def recorded(name):
        original = getattr(loop_module.Batch, name)

        def call(self, *arguments):
            calls.append(name)
            return original(self, *arguments)

        monkeypatch.setattr(loop_module.Batch, name, call)

    for name in ("forward", "sample", "append", "check_stop"):
        recorded(name)

    class Recorder:
        @gp.hookimpl
        def post_sampling(self, step):
            calls.append(f"post_sampling {len(step.tokens)}")

        @gp.hookimpl
        def after_stop_criteria(self, step):
            calls.append("after_stop_criteria")

        @gp.hookimpl
        def register_logits_processors(self, register):
            register("first", lambda pipeline: first)

    def first(logits, step):
        calls.append("logits processor")
        return logits

    recorder = Recorder()
    compiler.plugins.register(recorder)
    try:
        loop = make_loop(model, compiler, processors=("first", "guided"))
        verbs = ("plan", "fill_mask", "apply_mask", "schedule_update", "finish_update")
        for verb in verbs:
            original = getattr(loop.pipeline, verb)

            def call(*arguments, verb=verb, original=original):
                calls.append(verb)
                return original(*arguments)

            monkeypatch.setattr(loop.pipeline, verb, call)
        loop.run(prompts(tokenizer)[:1], SPECS[:1], max_new_tokens=2)
    finally:
        compiler.plugins.unregister(recorder)
        del compiler.plugins.logits_processors["first"]
    # A worker is asked for the next step's masks at the end of a step: before the
    # forward pass.
    late, ahead = (
        ([], ["plan", "fill_mask"])
        if loop.pipeline.mode == "process"
        else (["plan", "fill_mask"], [])
    )
    expected = []
    for asked in (["plan", "fill_mask"], late):
        expected += ["forward", "logits processor", *asked, "apply_mask", "sample"]
        expected += ["schedule_update", "post_sampling 1", "append", "check_stop"]
        expected += ["finish_update", *ahead, "after_stop_criteria"]
    assert calls == expected


@pytest.mark.parametrize(
    "sampling", [{}, *({"temperature": 0.8, "seed": seed} for seed in range(3))]
)
def test_guided_rows_are_valid_and_unguided_rows_untouched(parts, make_loop, sampling):
    tokenizer, model, compiler = parts
    loop = make_loop(model, compiler)
    bare = gp.DecodeLoop(model, compiler)
    every = prompts(tokenizer) * 2
    outputs = loop.run(every, [*SPECS, None, None, None], **sampling)
    without = bare.run(every, [None] * 6, **sampling)
    for demo, spec, output in zip(
        DEMOS,
        SPECS,
        outputs[:3],
        strict=True,
    ):
        text = tokenizer.decode(output.tokens)
        assert output.stopped
        assert output.error is None
        jsonschema.validate(json.loads(text), demo.schema)
        assert check_spec(
            compiler,
            spec,
            [("", text)],
        ).ok
        matcher = start(compiler, spec)
        assert all(map(matcher.accept, output.tokens))
        assert matcher.complete
    assert [output.tokens for output in outputs[3:]] == [
        output.tokens for output in without[3:]
    ]


def test_sampling_repeats_by_its_seed(parts, make_loop):
    tokenizer, model, compiler = parts
    loop = make_loop(model, compiler)
    first, again, other = (
        loop.run(prompts(tokenizer), SPECS, temperature=1.0, seed=seed)
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_an_error_of_one_row_leaves_the_others_alone(parts, make_loop):
    tokenizer, model, compiler = parts
    loop = make_loop(model, compiler, max_rows=4)
    prompt = prompts(tokenizer)[0]
    specs = [
        SPECS[0],
        gp.OutputSpec.regex("a(?=b)"),
        None,
        gp.OutputSpec.choice(["yes", "no"]),
    ]
    outputs = loop.run([prompt, prompt, [], prompt], specs)
    assert isinstance(outputs[1].error, GrammarError)
    assert isinstance(outputs[2].error, ConfigError)
    assert outputs[0].error is outputs[3].error is None
    assert tokenizer.decode(outputs[3].tokens) in ("yes", "no")
    assert outputs[1].tokens == outputs[2].tokens == ()


@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        ("The order", "prompt 0: must be token ids, not 'The order' (prompts first"),
        (["a"], "prompt 0: must be token ids, not ['a'] (prompts first"),
        (gp.OutputSpec.choice(["yes"]), "prompt 0: must be token ids, not OutputSpec("),
        ([-1], "prompt 0: has token -1, and the model has 1344"),
        ([1344, 5], "prompt 0: has token 1344, and the model has 1344 (use"),
        ([], "prompt 0: is empty"),
    ],
)
def test_a_prompt_that_is_none_is_an_error_of_its_row(parts, make_loop, prompt, error):
    _, model, compiler = parts
    loop = make_loop(model, compiler)
    wrong, fine = loop.run([prompt, [1]], [None, None], max_new_tokens=1)
    assert error in str(wrong.error)
    assert (wrong.tokens, fine.error, len(fine.tokens)) == ((), None, 1)
    with pytest.raises(ConfigError, match="specs: 1 specs for 2 prompts"):
        loop.run([[1], [2]], [None])
    for temperature in (-1.0, float("nan")):
        with pytest.raises(ConfigError, match="temperature: must be at least 0"):
            loop.run([[1]], [None], temperature=temperature)


def test_token_ids_of_other_kinds_are_prompts(parts, make_loop):
    tokenizer, model, compiler = parts
    ids = prompts(tokenizer)[0]
    loop = make_loop(model, compiler)
    every = [ids, tuple(ids), numpy.array(ids), torch.tensor(ids)]
    assert (
        len(
            {
                output.tokens
                for output in loop.run(every, [SPECS[0]] * 4, max_new_tokens=20)
            }
        )
        == 1
    )


def test_a_loop_that_is_made_wrong_says_how_to_make_it(parts, make_loop):
    tokenizer, model, compiler = parts
    for wrong in ((compiler, model), (model, tokenizer), (model, compiler.vocabulary)):
        with pytest.raises(
            ConfigError,
            match=r"compiler: must be a GrammarCompiler, not .*DecodeLoop\(model, ",
        ):
            make_loop(*wrong)
    with pytest.raises(ConfigError, match="processors: must name 'guided'"):
        make_loop(model, compiler, processors=())
    with pytest.raises(PluginError, match="no logits processor named 'gided'"):
        make_loop(model, compiler, processors=("gided", "guided"))


def test_limits_and_stop_tokens(parts, make_loop):
    tokenizer, model, compiler = parts
    loop = make_loop(model, compiler)
    prompt = prompts(tokenizer)[0]
    (cut,) = loop.run([prompt], [SPECS[0]], max_new_tokens=5)
    assert len(cut.tokens) == 5
    assert not cut.stopped
    pad = tokenizer.convert_tokens_to_ids("<|pad|>")
    (other,) = loop.run([prompt], [gp.OutputSpec.choice(["yes"], stop_token_ids=[pad])])
    assert other.stopped
    assert tokenizer.decode(other.tokens) == "yes"


def test_everything_is_given_back_when_the_model_fails(parts, make_loop, monkeypatch):
    tokenizer, model, compiler = parts
    loop = make_loop(model, compiler, max_rows=1)
    names = compiler.plugins.names()

    def fail(self, *given):
        raise RuntimeError("out of memory")

    for method, spec in itertools.product(
        ("forward", "sample", "append"), (SPECS[0], None)
    ):
        with monkeypatch.context() as patch:
            patch.setattr(loop_module.Batch, method, fail)
            with pytest.raises(RuntimeError, match="out of memory"):
                loop.run(prompts(tokenizer)[:1], [spec])
    assert compiler.plugins.names() == names
    assert loop.run(prompts(tokenizer)[:1], SPECS[:1])[0].stopped


def test_a_model_narrower_than_its_tokenizer_is_refused(parts):
    _, model, _ = parts
    vocabulary = gp.Vocabulary.from_tokens([b"x"] * 5000, [0])
    with pytest.raises(VocabularyError, match="5000 tokens"):
        gp.DecodeLoop(model, gp.GrammarCompiler(vocabulary))


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def test_types_are_specs_and_outputs_name_what_nothing_enforced(parts, make_loop):
    tokenizer, model, compiler = parts
    options = {"isolate_compiles": False, "whitespace": "compact"}
    config = gp.GuidedConfig(unenforced_keywords=("uniqueItems",), **options)
    loop = make_loop(model, gp.GrammarCompiler(compiler.vocabulary, config=config))
    typed = gp.TypedSpec(tuple[Colour, bool])
    items = {"enum": [1, 2, 3]}
    loose = {"type": "array", "uniqueItems": True, "items": items, "maxItems": 3}
    prompt = tokenizer.encode("Say: ")
    specs = [Colour, typed, {"json_schema": loose}, None, {"jsn": 1}]
    outputs = loop.run([prompt] * 5, specs, max_new_tokens=30)
    assert gp.TypedSpec(Colour).read(tokenizer.decode(outputs[0].tokens)) in Colour
    value = typed.read(tokenizer.decode(outputs[1].tokens))
    assert list(map(type, value)) == [Colour, bool]
    told = [(), (), ("uniqueItems",), (), ()]
    assert [output.unenforced for output in outputs] == told
    assert [output.error for output in outputs[:4]] == [None] * 4
    assert isinstance(outputs[4].error, SpecError)
    assert loop.pipeline.metrics().unenforced == {"uniqueItems": 1}
