"""The shipped model and a guide for it."""

import pytest
from generate_calls import STOP
from generating import random_model

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
    """Makes guides and closes them. Their specs are small: no helper process is worth its start."""
    made = []

    def make(model=None, **options):
        options = {"config": gp.GuidedConfig(threads=2, isolate_compiles=False), **options}
        made.append(gp.Guide(options.pop("tokenizer", tokenizer), model=model, **options))
        return made[-1]

    yield make
    for guide in made:
        guide.close()


@pytest.fixture
def guide(make_guide, model):
    return make_guide(model)
