"""One engine with both: `guided` is the plugin's, `structured_outputs` goes to vLLM's
own manager where the operator says `refused: "vllm"`; rows beside guided ones are as
they are alone.

That both write the same is in `test_comparison.py`.
"""

import json

import pytest

pytest.importorskip("vllm")

from vllm.exceptions import VLLMValidationError
from vllm_support import params_of

YES = {"choice": ["yes", "no"]}
DIGITS = {"regex": "[0-9]{3}"}


def assert_same(ours, theirs):
    """The rank and the logprob of every token that was shown, by position."""
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        # Of tokens that no grammar allows, any may fill the rest of the list.
        allowed = {token for token, one in other.items() if one.logprob > -1e4}
        assert allowed == {token for token, one in mine.items() if one.logprob > -1e4}
        for token in allowed:
            assert mine[token].rank == other[token].rank
            assert mine[token].logprob == pytest.approx(other[token].logprob, abs=1e-3)


def test_a_batch_with_and_without(llm):
    """Every row as it is alone, and prompts as without the plugin."""
    asked = [
        params_of(form, temperature=0.0, max_tokens=8, logprobs=5, prompt_logprobs=3)
        for form in (YES, None, DIGITS)
    ]
    together = llm.generate(["Is it a dog? "] * 3, asked, use_tqdm=False)
    alone = [llm.generate(["Is it a dog? "], one, use_tqdm=False)[0] for one in asked]
    for one, other in zip(together, alone, strict=True):
        assert_same(one.outputs[0].logprobs, other.outputs[0].logprobs)
        assert_same(one.prompt_logprobs[1:], alone[1].prompt_logprobs[1:])


PATTERN = {"json": {"enum": ["a", "b"]}, "whitespace_pattern": "[.]"}
"""vLLM takes it, and drops the pattern, which demands what JSON can't have."""


def test_what_is_refused_goes_to_vllms_manager_and_is_counted(
    llm, reconfigured, caplog
):
    reconfigured(refused="vllm")

    def counts():
        ((metrics,),) = llm.collective_rpc("guided_metrics")
        return metrics["left_to_vllm"], metrics["added"]

    forms = PATTERN, {"json": PATTERN["json"]}, PATTERN, {"choice": ["x"]}
    asked = [params_of(form, theirs=True) for form in forms]
    before = counts()
    texts = [
        one.outputs[0].text
        for one in llm.generate(["One: "] * 4, asked, use_tqdm=False)
    ]
    assert [now - then for now, then in zip(counts(), before, strict=True)] == [2, 2]
    assert texts[3] == "x"
    assert all(json.loads(text) in ("a", "b") for text in texts[:3])
    (line,) = [line for line in caplog.messages if line.startswith("left to vLLM")]
    assert "whitespace_pattern" in line
    with pytest.raises((VLLMValidationError, ValueError)):  # vLLM refuses it too
        llm.generate(
            "One: ", params_of({"grammar": "root ::= ("}, theirs=True), use_tqdm=False
        )
    # asked for as the plugin's
    with pytest.raises(VLLMValidationError, match="whitespace_pattern"):
        llm.generate("One: ", params_of(PATTERN), use_tqdm=False)
