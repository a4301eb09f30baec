"""What a request of 1 MB costs the others: how long the event loop of a frontend stands
still for it."""

import asyncio
import contextlib
import gc
import json
import sys
import time
from types import SimpleNamespace

import pytest
from vllm import SamplingParams
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm.reasoning import ReasoningParserManager
from vllm.sampling_params import StructuredOutputsParams
from vllm_support import config

import guided_plugin as gp
from guided_plugin.hosts.vllm import admission, gate, specs

MIB = 1 << 20

END = 256
THINK_END = 257
VOCABULARY = gp.Vocabulary(
    (
        *(bytes([byte]) for byte in range(256)),
        b"</s>",
        b"</think>",
        *(b"<%d>" % i for i in range(1000)),
    ),
    (END,),
    frozenset(range(END, END + 1002)),
    encode=lambda text: list(text.encode()),
)
TINY = {"enum": [1] * (MIB // 2)}
EMPTY = {"anyOf": [{}] * (MIB // 3)}
LONG = {"enum": ["x" * (MIB - 100)]}
NESTED = {
    "properties": {
        f"p{i}": {"type": "string", "maxLength": 5} for i in range(MIB // 40)
    }
}
MANY = {
    "properties": {
        f"p{i}": {"type": "string", "enum": ["x" * 170]} for i in range(4_900)
    }
}
"""Within all limits."""
TAG_TEXT = json.dumps(
    {"format": {"type": "or", "elements": [{"type": "any_text"}] * 40_000}}
)
TAG = {"format": {"type": "const_string", "value": "x" * MIB}}


def seconds_to_read(text):
    """What `json` takes for a text, which holds the interpreter meanwhile, in whatever
    thread."""
    start = time.process_time()
    json.loads(text)
    return time.process_time() - start


READING = min(seconds_to_read(TAG_TEXT) for _ in range(5))
LONGEST = max(0.05, 12 * READING) * (1 if sys.gettrace() is None else 2)
"""Seconds: little more than the server of vLLM takes to read the body of such a request
in any case. More than 50 ms only on slow machines, where `json` takes over 4 ms for that
text (one took 9 to 20, and ran all Python four times as slowly as the usual one); twice
as many where lines are counted."""

KINDS = {
    "tiny": {"json": TINY},
    "empty": {"json": EMPTY},
    "long": {"json": LONG},
    "nested": {"json": NESTED},
    "many": {"json": MANY},
    "deep": {"json": "[" * MIB},
    "regex": {"regex": "a" * MIB},
    "class": {"regex": "[" + "ab" * (MIB // 2) + "]"},
    "surrogate": {"regex": "é" * (MIB // 2) + "\ud800"},
    "choice": {"choice": [str(number) for number in range(MIB // 7)]},
    "one choice": {"choice": ["x" * MIB]},
    "ebnf": {"grammar": 'root ::= "' + "x" * MIB + '"'},
    "rules": {"grammar": "".join(f"r{i} ::= r{i + 1}\n" for i in range(MIB // 20))},
    "lark": {"grammar": 'start: "' + "x" * MIB + '"'},
    "tag": {"structural_tag": json.dumps(TAG)},
    "tags": {"structural_tag": TAG_TEXT},
    "whitespace": {"json": {}, "whitespace_pattern": "[ ]?" * (MIB // 4)},
}
OWN = {
    "triggers": {"start_after": [f"{number}" for number in range(105_000)]},
    "trigger": {"start_after": "x" * MIB},
    "ids": {"start_after": [3] * (MIB // 2)},
    "kept": {
        "start_after": [{"text": f"{number}", "kept": True} for number in range(40_000)]
    },
    "lists": {"start_after": [[number % 200, 1] for number in range(100_000)]},
    "stops": {"stop_token_ids": [END] * (MIB // 4)},
    "text stops": {"stop_token_ids": [65] * (MIB // 4)},
    "backend": {"backend": "x" * MIB},
    "strict": {"strict": ["x"] * (MIB // 5)},
    "whitespace": {"whitespace": "x" * MIB},
    "unknown": {"x" * MIB: 1},
    "keys": {f"key{number}": 1 for number in range(MIB // 12)},
}


class Engine:
    """An AsyncLLM as far as the wrappers look at it."""

    def __init__(self, options):
        self.vllm_config = config({"take_over": True, **options}, reasoning="tags")
        self.input_processor = SimpleNamespace(vllm_config=self.vllm_config)
        self.gate = admission.gate_of(self)

    async def collective_rpc(self, method, args=()):
        return [["", 0.0]]

    async def add(self, params, kwargs=None):
        """What vLLM does with a request, as far as the plugin has a part in it."""

        def process(processor, prompt, params):
            return request_of(params.clone())

        async def add_request(
            self,
            prompt,
            params,
            request_id,
            reasoning_ended=None,
            reasoning_parser_kwargs=None,
        ):
            return gate.process_inputs(
                self.input_processor, prompt, params, original=process
            )

        return await gate.add_request_async(
            self,
            None,
            params,
            "one",
            reasoning_parser_kwargs=kwargs,
            original=add_request,
        )


def request_of(params):
    return SimpleNamespace(
        sampling_params=params, prompt_token_ids=[1], cache_salt=None
    )


class Parser:
    end_token_id = THINK_END
    reasoning_end_str = None

    def __init__(self, tokenizer, **kwargs):
        pass

    def is_reasoning_end(self, tokens):
        return False

    def is_reasoning_end_streaming(self, tokens, delta):
        return THINK_END in delta


@pytest.fixture(scope="module")
def engine():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GUIDED_PLUGIN", raising=False)
        patch.setattr(specs, "vocabulary_of", lambda config: VOCABULARY)
        patch.setattr(
            "vllm.tokenizers.cached_tokenizer_from_config", lambda model_config: None
        )
        patch.setattr(
            ReasoningParserManager,
            "get_reasoning_parser",
            classmethod(lambda cls, name: Parser),
        )
        made = Engine({"threads": 1, "compile_seconds": 1.0})
        made.gate._warm()
        gc.collect()
        # as vLLM does: no collection looks at all that these tests have made
        gc.freeze()
        yield made
        gc.unfreeze()
        made.gate.specs.compiler.close()


async def longest_pause(work):
    """The longest time that nothing else ran on the loop while some work was done."""
    pauses = []
    before = clocks()

    async def look():
        nonlocal before
        while True:
            await asyncio.sleep(0.001)
            now = clocks()
            pauses.append(min(now[0] - before[0], now[1] - before[1]))
            before = now

    looking = asyncio.ensure_future(look())
    await asyncio.sleep(0.005)
    pauses.clear()
    # refused, or late
    with contextlib.suppress(VLLMValidationError, GracefulHTTPError):
        await work
    await asyncio.sleep(0.005)
    looking.cancel()
    return max(pauses)


def clocks():
    """Other processes take from the first, threads without the interpreter's lock add
    to the second."""
    return time.perf_counter(), time.process_time()


def check(engine, make):
    """Twice: the second time it may be remembered."""
    for _ in range(2):
        assert asyncio.run(longest_pause(make())) < LONGEST


def guided(form):
    return {"extra_args": {"guided": form}}


FORMS = {
    **KINDS,
    "no object": {"json_object": ["x"] * (MIB // 5)},
    "syntax": {"grammar": 'root ::= "a"', "syntax": "x" * MIB},
    **{f"option {name}": {"regex": "a", **option} for name, option in OWN.items()},
}
STOPS = [END] * (MIB // 4), [*range(END, END + 1000)] * 200, [65] * (MIB // 3)
ASKED = {
    **{
        f"vLLM's {name}": {"structured_outputs": StructuredOutputsParams(**form)}
        for name, form in KINDS.items()
    },
    **{name: guided(form) for name, form in FORMS.items()},
    **{f"{name} as text": guided(json.dumps(form)) for name, form in FORMS.items()},
    **{
        f"stops {at}": {**guided({"regex": "a"}), "stop_token_ids": stops}
        for at, stops in enumerate(STOPS)
    },
}


TEMPLATES = {
    "list": {"a": ["x"] * (MIB // 5)},
    "text": {"a": "x" * MIB},
    "keys": {f"k{i}": 1 for i in range(MIB // 10)},
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED.keys())
def test_no_request_stops_the_loop(engine, asked):
    check(engine, lambda: engine.add(SamplingParams(**asked)))


@pytest.mark.parametrize("kwargs", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_no_arguments_of_a_chat_template_stop_the_loop(engine, kwargs):
    params = SamplingParams(**guided({"regex": "a"}))
    given = {"chat_template_kwargs": kwargs}
    check(engine, lambda: engine.add(params, given))


FUNCTION = {"name": "f"}
TOOL = {
    "type": "function",
    "function": {**FUNCTION, "strict": True, "parameters": MANY},
}
CHATS = {
    **{
        name: {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": schema},
            }
        }
        for name, schema in (("schema", MANY), ("tiny", TINY))
    },
    "tag": {"response_format": {"type": "structural_tag", **TAG}},
    "own": {"structured_outputs": {"regex": "a" * MIB}},
    "guided": {"vllm_xargs": {"guided": json.dumps({"regex": "a", **OWN["triggers"]})}},
    "tools": {
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": FUNCTION},
    },
    "stops": {
        "structured_outputs": {"regex": "a"},
        "stop_token_ids": STOPS[0],
    },
}


@pytest.mark.parametrize("asked", CHATS.values(), ids=CHATS.keys())
def test_no_streamed_chat_stops_the_loop(engine, asked):
    request = ChatCompletionRequest(
        messages=[{"role": "user", "content": "a"}], model="m", stream=True, **asked
    )
    params = request.to_sampling_params(20, {})
    serving = SimpleNamespace(engine_client=engine)

    def generate(self, prompt, sampling_params, request_id):
        pass

    async def chat():
        given = engine, {"prompt": ""}, params, "one"
        begun = asyncio.to_thread(gate.generate, *given, original=generate)
        return await gate._admitted(serving, begun, request)

    check(engine, chat)
