"""What of a beam search is refused, without an engine; tests of server and engine ask
them."""

import inspect
import pathlib
import re
from functools import partial
from types import SimpleNamespace

import pytest
import vllm
from vllm.entrypoints.generate.beam_search.online import BeamSearchOnlineMixin
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.speech_to_text.transcription.protocol import TranscriptionRequest
from vllm.entrypoints.speech_to_text.translation.protocol import TranslationRequest
from vllm.exceptions import VLLMValidationError
from vllm_support import SMALL, TAKES_OVER, config

from guided_plugin.hosts.vllm.names import ALL_NAMES, When
from guided_plugin.hosts.vllm.patches import patch

MESSAGES = [{"role": "user", "content": "Write"}]
FORM = {
    "type": "json_schema",
    "json_schema": {"name": "a", "schema": {"type": "integer"}},
}
THEIRS = {"response_format": FORM}, {"structured_outputs": {"choice": ["a"]}}
GUIDED = {"vllm_xargs": {"guided": '{"regex": "a"}'}}
OTHER = {"vllm_xargs": {"other": 1}}


@pytest.fixture(autouse=True)
def installed():
    patch(When.SERVING)


def search(request, options):
    """Begin the request's beam search as a server does; nothing of it runs."""

    class Serving(BeamSearchOnlineMixin):
        engine_client = SimpleNamespace(
            input_processor=SimpleNamespace(vllm_config=config(options))
        )

    params = request.to_beam_search_params(5, {})
    return Serving().beam_search(
        prompt={"type": "token"}, request_id="r", params=params
    )


def speech(kind, **options):
    return kind.model_construct(
        n=2,
        temperature=0.0,
        watermarking=None,
        length_penalty=1.0,
        include_stop_str_in_output=False,
        use_beam_search=True,
        **{"vllm_xargs": None, **options},
    )


def chat(**options):
    return ChatCompletionRequest(
        model="m", messages=MESSAGES, use_beam_search=True, **options
    )


def completion(**options):
    return CompletionRequest(model="m", prompt="p", use_beam_search=True, **options)


def test_every_way_to_a_beam_search_is_wrapped():
    root = pathlib.Path(vllm.__file__).parent
    found = {"to_beam_search_params": set(), "beam_search": set()}
    for file in (root / "entrypoints").rglob("*.py"):
        for name in re.findall(
            r"def (to_beam_search_params|beam_search)\(", file.read_text()
        ):
            found[name].add(
                ".".join(file.relative_to(root.parent).with_suffix("").parts)
            )
    for name, modules in found.items():
        assert modules == {
            one.path.partition(":")[0]
            for one in ALL_NAMES
            if one.wrapper == f"gate:{name}"
        }


OFF = {"enabled": False}


@pytest.mark.parametrize(
    "make",
    [
        chat,
        completion,
        partial(speech, TranscriptionRequest),
        partial(speech, TranslationRequest),
    ],
    ids=["chat", "completion", "transcription", "translation"],
)
def test_a_spec_is_refused_everywhere_and_vllms_own_where_it_is_taken_over(make):
    always = SMALL, TAKES_OVER, {**SMALL, **OFF}
    cases = [(GUIDED, always, ()), ({}, (), always), (OTHER, (), always)]
    if make in (chat, completion):
        taken = [TAKES_OVER], [SMALL, {**TAKES_OVER, **OFF}]
        cases += [(theirs, *taken) for theirs in THEIRS]
    for fields, refused, served in cases:
        for options in refused:
            with pytest.raises(
                VLLMValidationError, match="beam search can't be guided"
            ):
                search(make(**fields), options)
        for options in served:
            assert inspect.isasyncgen(search(make(**fields), options))
