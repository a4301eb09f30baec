"""The shipped model and a guide for it."""

from types import SimpleNamespace

import pytest
from generate_calls import STOP, generate
from generating import PROMPTS, encoded, random_model, recheck

import guided_plugin as gp


@pytest.fixture(scope="module")
def tokenizer(demo_tokenizer):
    return demo_tokenizer


@pytest.fixture(scope="module")
def vocabulary(tokenizer):
    return gp.Vocabulary.from_tokenizer(tokenizer, stop_token_ids=STOP)


@pytest.fixture(scope="module")
def model(tokenizer):
    # Wider than its tokenizer, as padded vocabularies are.
    return random_model(len(tokenizer) + 61)


@pytest.fixture
def make_guide(tokenizer):
    """Makes guides and closes them. Their specs are small: no helper process is worth
    its start. A random model writes all the whitespace that it may."""
    made = []

    def make(model=None, **options):
        options = {
            "config": gp.GuidedConfig(
                threads=2, isolate_compiles=False, whitespace="compact"
            ),
            **options,
        }
        made.append(
            gp.Guide(options.pop("tokenizer", tokenizer), model=model, **options)
        )
        return made[-1]

    yield make
    for guide in made:
        guide.close()


@pytest.fixture
def guide(make_guide, model):
    return make_guide(model)


@pytest.fixture
def run(tokenizer, vocabulary, model, guide):
    """Makes a `generate` call, and has a fresh matcher judge every guided row: the
    rows, which of them have ended, and the errors."""

    def run(specs, *, guide=guide, model=model, prompts=PROMPTS, seed=0, **options):
        own = {
            name: options.pop(name, ())
            for name in ("logits_processor", "stopping_criteria")
        }
        kwargs = guide.generate_kwargs(specs, **own)
        rows = generate(
            model, encoded(tokenizer, prompts), seed=seed, **options, **kwargs
        )
        if model.config.is_encoder_decoder:
            rows = rows[:, 1:]
        listed = specs if isinstance(specs, list) else [specs]
        each = [spec for spec in listed for _ in range(len(rows) // len(listed))]
        ended = recheck(guide.compiler.vocabulary, each, rows)
        return SimpleNamespace(rows=rows, ended=ended, errors=kwargs.errors)

    return run
