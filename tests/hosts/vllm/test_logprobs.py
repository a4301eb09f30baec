"""Logprobs in the real vLLM on the CPU: those of the plugin's requests are those of vLLM's own manager.

One engine has both: `guided` is the plugin's, `structured_outputs` vLLM's. In float32, so that they can be
compared.
"""

import pytest

pytest.importorskip("vllm")

from vllm import LLM
from vllm_support import SMALL, params_of, runner

from guided_plugin.demo import MODEL_DIR
from guided_plugin.vllm import GuidedLogitsProcessor

PROMPT = "Is it a dog? "
FORMS = [{"choice": ["yes", "no"]}, {"regex": "[0-9]{3}"}]


@pytest.fixture(scope="module")
def llm():
    made = LLM(
        str(MODEL_DIR),
        dtype="float32",
        max_model_len=256,
        max_num_seqs=6,
        enforce_eager=True,
        max_logprobs=20,
        logits_processors=[GuidedLogitsProcessor],
        additional_config={"guided_plugin": {**SMALL, "mode": "inline"}},
    )
    yield made
    runner(made).engine.close()


def generate(llm, forms, **options):
    options = {"temperature": 0.0, "max_tokens": 8, **options}
    asked = [params_of(form, theirs=theirs, **options) for form, theirs in forms]
    return llm.generate([PROMPT] * len(asked), asked, use_tqdm=False)


def logprobs_of(output):
    """By position: the rank and the logprob of every token that was shown."""
    return [
        {token: (one.rank, one.logprob) for token, one in position.items()}
        for position in output.outputs[0].logprobs
    ]


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        # Of tokens that no grammar allows, any may fill the rest of the list.
        allowed = {token for token, (_, logprob) in other.items() if logprob > -1e4}
        assert allowed == {token for token, (_, logprob) in mine.items() if logprob > -1e4}
        for token in allowed:
            assert mine[token] == (other[token][0], pytest.approx(other[token][1], abs=1e-3))


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("wanted", [0, 5])
def test_logprobs_are_those_of_vllms_own(llm, form, wanted):
    ours, theirs = generate(llm, [(form, False), (form, True)], logprobs=wanted)
    assert ours.outputs[0].token_ids == theirs.outputs[0].token_ids
    assert_same(logprobs_of(ours), logprobs_of(theirs))


def test_logprobs_of_chosen_tokens(llm):
    chosen = llm.get_tokenizer().encode("yn", add_special_tokens=False)
    ours, theirs = generate(llm, [(FORMS[0], False), (FORMS[0], True)], logprob_token_ids=chosen)
    assert_same(logprobs_of(ours), logprobs_of(theirs))


def test_a_batch_with_and_without(llm):
    """Every row as it is alone, and prompts as without the plugin."""
    forms = [(FORMS[0], False), (None, False), (FORMS[1], False)]
    together = generate(llm, forms, logprobs=5, prompt_logprobs=3)
    alone = [generate(llm, [form], logprobs=5, prompt_logprobs=3)[0] for form in forms]
    for one, other in zip(together, alone, strict=True):
        assert_same(logprobs_of(one), logprobs_of(other))
    (plain,) = generate(llm, [(None, False)], prompt_logprobs=3)
    for one in together:
        for mine, other in zip(one.prompt_logprobs[1:], plain.prompt_logprobs[1:], strict=True):
            assert set(mine) == set(other)
            assert all(mine[at].logprob == pytest.approx(other[at].logprob, abs=1e-3) for at in other)
