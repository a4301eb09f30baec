"""The model-free host: its outputs depend on nothing but the request, and a broken
promise is found."""

import pytest
import torch
from generating import recheck
from listening import StepListener

import guided_plugin as gp
from guided_plugin.errors import ConfigError, GrammarError, PipelineError, RequestError
from guided_plugin.hosts.fake import FakeHost, small_vocabulary
from guided_plugin.pipeline import pipeline

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

SPECS = [
    gp.OutputSpec.regex("[a-c]{3,9}x"),
    None,
    gp.OutputSpec.choice(["yes", "no"]),
    gp.OutputSpec.json_schema(
        {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    ),
    gp.OutputSpec.choice(["late"], start_after=[104]),
    gp.OutputSpec.regex("a(?=b)"),
]


@pytest.fixture
def compiler(plugins):
    config = gp.GuidedConfig(threads=1, isolate_compiles=False)
    return gp.GrammarCompiler(small_vocabulary(), config=config, plugins=plugins)


def decode(compiler, **options):
    with FakeHost(compiler, seed=3, **options) as host:
        for number in range(18):
            spec = SPECS[number % 6]
            script = b"oh" if spec is SPECS[4] else b""
            host.add_request(
                f"request-{number}", spec, max_new_tokens=20, script=script
            )
        return host.run()


@pytest.mark.parametrize("device", DEVICES)
def test_other_rows_and_modes_change_no_output(compiler, mode, device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    alone = decode(compiler, max_rows=1, mode="inline")
    crowded = decode(compiler, max_rows=5, mode=mode, device=device, preempt=0.4)
    assert {name: request.tokens for name, request in alone.items()} == {
        name: request.tokens for name, request in crowded.items()
    }
    ended = [request for request in crowded.values() if request.stopped]
    assert len(ended) >= 6
    for request in crowded.values():
        if request.spec is SPECS[5]:
            assert isinstance(request.error, GrammarError)
            assert request.tokens == []
        else:
            assert request.error is None
            spec = request.spec
            after = 0
            if spec is SPECS[4]:
                assert bytes(request.tokens[:-1]) == b"ohlate"
                spec = gp.OutputSpec.choice(["late"])
                after = 2
            recheck(
                compiler.vocabulary, [spec], torch.tensor([request.tokens]), after=after
            )


def test_a_plugin_hears_each_step_once(compiler, mode):
    listener = StepListener()
    compiler.plugins.register(listener)
    outputs = decode(compiler, max_rows=4, mode=mode, preempt=0.3)
    listener.check_order()
    assert listener.produced == {
        name: request.tokens
        for name, request in outputs.items()
        if request.spec and request.tokens
    }


def test_a_script_is_followed_as_far_as_the_grammar_allows(compiler):
    with FakeHost(compiler) as host:
        yes = host.add_request("yes", SPECS[2], script=b"yes")
        no = host.add_request("no", SPECS[2], script=b"maybe")
        free = host.add_request("free", script=b"maybe", max_new_tokens=5)
        host.run()
    assert bytes(yes.tokens[:-1]) == b"yes"
    assert bytes(no.tokens[:-1]) in (b"yes", b"no")
    assert bytes(free.tokens) == b"maybe"
    assert not free.stopped


def test_a_request_id_is_used_once(compiler):
    with FakeHost(compiler) as host:
        host.add_request("a")
        with pytest.raises(ConfigError, match="request a"):
            host.add_request("a")


def test_broken_promises_are_found(compiler, monkeypatch):
    def run(mask_rows=pipeline.mask_rows, sampled=None):
        with FakeHost(compiler, mode="inline") as host, monkeypatch.context() as patch:
            patch.setattr(pipeline, "mask_rows", mask_rows)
            patch.setattr(
                host.pipeline.runtime,
                "sampled",
                sampled or host.pipeline.runtime.sampled,
            )
            host.add_request("guided", SPECS[2])
            host.add_request("free", max_new_tokens=2)
            host.run()

    with pytest.raises(PipelineError, match="unguided row"):
        run(lambda logits, *others: logits.fill_(-torch.inf))
    with pytest.raises(PipelineError, match="changed logits"):
        run(lambda logits, *others: logits.fill_(0.5))
    with pytest.raises(PipelineError, match="its grammar saw"):
        run(sampled=lambda tokens: None)

    class Blind(FakeHost):
        def _leave(self, row):
            self.pipeline.remove_request(row.request_id)

    monkeypatch.setattr(pipeline, "mask_rows", lambda logits, *others: None)
    with Blind(compiler, mode="inline") as host:
        host.add_request("guided", SPECS[2], script=b"maybe", max_new_tokens=5)
        with pytest.raises(RequestError, match="fresh matcher"):
            host.run()
