"""What of a beam search is refused, without an engine; tests of server and engine ask
them."""

import asyncio
import pathlib
import re
from types import SimpleNamespace

import pytest
import vllm
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.speech_to_text.transcription.protocol import TranscriptionRequest
from vllm.entrypoints.speech_to_text.translation.protocol import TranslationRequest
from vllm.exceptions import VLLMValidationError
from vllm_support import SMALL, TAKES_OVER, config

from guided_plugin.hosts.vllm.gate import cleanup
from guided_plugin.hosts.vllm.names import When
from guided_plugin.hosts.vllm.patches import patch

MESSAGES = [{"role": "user", "content": "Write"}]
FORM = {
    "type": "json_schema",
    "json_schema": {"name": "a", "schema": {"type": "integer"}},
}
TOOL = {"type": "function", "function": {"name": "a", "parameters": {}}}
THEIRS = {"response_format": FORM}, {"structured_outputs": {"choice": ["a"]}}
GUIDED = {"vllm_xargs": {"guided": '{"regex": "a"}'}}
OTHER = {"vllm_xargs": {"other": 1}}


def search(request, options):
    """Answer the request as a server does."""
    processor = SimpleNamespace(vllm_config=config(options))
    serving = SimpleNamespace(engine_client=SimpleNamespace(input_processor=processor))

    async def create():
        return "searched"

    async def passed_on(serving, awaitable, request, raw_request):
        return await awaitable

    return asyncio.run(cleanup(serving, create(), request, None, original=passed_on))


def chat(**options):
    return ChatCompletionRequest(model="m", messages=MESSAGES, **options)


def completion(**options):
    return CompletionRequest(model="m", prompt="p", **options)


def test_beam_searches_are_those_of_requests_that_were_looked_at():
    """Those of speech have names of their own."""
    root = pathlib.Path(vllm.__file__).parent
    assert {
        file.parent.name
        for file in (root / "entrypoints").rglob("protocol.py")
        if re.search(r"def to_beam_search_params\(", file.read_text())
    } == {"chat_completion", "completion", "transcription", "translation"}


OFF = {"enabled": False}


@pytest.mark.parametrize("make", [chat, completion])
def test_a_spec_is_refused_everywhere_and_vllms_own_where_it_is_taken_over(make):
    always = SMALL, TAKES_OVER, {**SMALL, **OFF}
    taken = [TAKES_OVER], [SMALL, {**TAKES_OVER, **OFF}]
    cases = [(GUIDED, always, ()), ({}, (), always), (OTHER, (), always)]
    cases += [(theirs, *taken) for theirs in THEIRS]
    if make is chat:
        tools = {"tools": [TOOL]}
        cases += [
            ({**tools, "tool_choice": "required"}, *taken),
            ({**tools, "tool_choice": "none"}, (), always),
        ]
    for fields, refused, served in cases:
        for options in refused:
            with pytest.raises(
                VLLMValidationError, match=r"^use_beam_search: beam search can't be"
            ):
                search(make(use_beam_search=True, **fields), options)
            assert search(make(**fields), options) == "searched"
        for options in served:
            assert search(make(use_beam_search=True, **fields), options) == "searched"


@pytest.mark.parametrize("kind", [TranscriptionRequest, TranslationRequest])
def test_beam_searches_of_speech_with_a_spec_are_refused(kind):
    patch(When.SERVING)
    asked = kind.model_construct(use_beam_search=True, **GUIDED)
    with pytest.raises(VLLMValidationError, match="beam search"):
        asked.to_beam_search_params(5)
    free = kind.model_construct(
        n=2,
        temperature=0.0,
        watermarking=None,
        length_penalty=1.0,
        include_stop_str_in_output=False,
        **OTHER,
    )
    assert free.to_beam_search_params(5, {}).beam_width == 2
