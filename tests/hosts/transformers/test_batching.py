"""Continuous batching: every guided request is what its spec says, however the manager
moves it."""

import contextlib
import json
import time
from types import SimpleNamespace

import pytest
import torch
from closing import CASES, is_valid, least_of
from generate_calls import STOP
from generating import SPECS, recheck
from listening import StepListener
from worker_runs import until

import guided_plugin as gp
from guided_plugin.errors import ConfigError, GrammarError, PipelineError, RequestError

try:
    from guided_plugin.hosts.transformers import batching as batching_module
except ConfigError as too_old:
    pytest.skip(str(too_old), allow_module_level=True)

from transformers.generation.configuration_utils import ContinuousBatchingConfig


@pytest.fixture
def managed(model):
    """Makes managers, and stops them."""
    made = []

    def make(generation=None, **options):
        options = {
            "num_blocks": 64,
            "max_batch_tokens": 64,
            "max_requests_per_batch": 4,
            **options,
        }
        if generation is None:
            generation = {"do_sample": False}
        config = model.generation_config.__class__(
            eos_token_id=STOP, pad_token_id=2, **generation
        )
        made.append(
            model.init_continuous_batching(
                generation_config=config,
                continuous_batching_config=ContinuousBatchingConfig(**options),
            )
        )
        return made[-1]

    yield make
    for manager in made:
        if manager.is_running():
            manager.stop(hard_stop=True)


@pytest.fixture
def started(guide, managed):
    """Makes managers that run, guided: the manager, its `GuidedBatching`."""

    def start(generation=None, **options):
        manager = managed(generation, **options)
        batching = guide.batching(manager)
        manager.start()
        return manager, batching

    return start


@pytest.fixture
def prompt(demo_tokenizer):
    return demo_tokenizer.encode("Person as JSON: ")


FIELDS = ContinuousBatchingConfig.__dataclass_fields__
SMALL_CACHE = {
    "num_blocks": 6,
    "page_size" if "page_size" in FIELDS else "block_size": 16,
    "cpu_offload_space": 0.0,
}
"""Requests make room and come back."""


def collect(manager, wanted, seconds=120):
    """So many results, or those of these requests, among others."""
    found = {}
    end = time.monotonic() + seconds
    while (
        len(found) < wanted if isinstance(wanted, int) else not found.keys() >= wanted
    ):
        assert manager.is_running(), "the manager's loop has died"
        assert time.monotonic() < end, f"{len(found)} of {wanted} requests came"
        result = manager.get_result(timeout=0.2)
        if result is not None and result.is_finished():
            assert result.error is None, result.error
            found[result.request_id] = result
    return found


def check(guide, spec, result):
    tokens = torch.tensor([result.generated_tokens])
    return recheck(guide.compiler.vocabulary, [spec], tokens)[0]


@pytest.mark.parametrize(
    "generation",
    [{"do_sample": False}, {"do_sample": True, "top_k": 20, "temperature": 1.2}],
)
def test_requests_of_all_kinds(prompt, guide, managed, started, generation):
    free_manager = managed(generation)
    manager, batching = started(generation)
    wanted = {}
    for number in range(14):
        spec = [*SPECS, None][number % 4]
        ids = prompt * (1 + number % 5)
        wanted[batching.add_request(ids, spec, max_new_tokens=40)] = spec
    found = collect(manager, len(wanted))
    ended = [check(guide, spec, found[name]) for name, spec in wanted.items()]
    assert sum(ended) >= 6
    assert all(batching.error(name) is None for name in wanted)
    manager.stop()
    batching.close()
    if not generation["do_sample"]:
        free_manager.start()
        name = free_manager.add_request(prompt * 4, max_new_tokens=40)
        bare = collect(free_manager, 1)[name].generated_tokens
        assert found["req_3"].generated_tokens == bare


def test_a_plugin_hears_each_step_once(demo_tokenizer, guide, started):
    manager, batching = started(**SMALL_CACHE)
    listener = StepListener()
    guide.compiler.plugins.register(listener)
    try:
        spec = gp.OutputSpec.regex("[a-c]{45,50}")
        prompt = demo_tokenizer.encode("x")
        guided = [
            batching.add_request([*prompt, 20 + n], spec, max_new_tokens=60)
            for n in range(3)
        ]
        free = batching.add_request(prompt, None, max_new_tokens=30)
        found = collect(manager, 4)
        manager.stop()
        batching.close()
    finally:
        guide.compiler.plugins.unregister(listener)
    listener.check_order()
    heard = {}
    for name, tokens in listener.produced.items():
        heard.setdefault(name.split("-", 2)[2], []).extend(tokens)
    assert heard == {name: found[name].generated_tokens for name in guided}
    unguided = [
        token
        for step, tokens in zip(listener.steps, listener.tokens, strict=True)
        for slot, token in zip(step.slots, tokens, strict=True)
        if slot == gp.UNGUIDED
    ]
    assert unguided == found[free].generated_tokens


def test_a_hook_that_raises_is_named_once_and_ends_no_request(
    prompt, guide, started, caplog
):
    class Clumsy:
        @gp.hookimpl
        def post_sampling(self, step):
            raise ZeroDivisionError("oops")

    clumsy = Clumsy()
    guide.compiler.plugins.register(clumsy, "clumsy")
    try:
        manager, batching = started()
        name = batching.add_request(prompt, SPECS[2], max_new_tokens=20)
        assert check(guide, SPECS[2], collect(manager, 1)[name])
    finally:
        guide.compiler.plugins.unregister(clumsy)
    (told,) = [
        record.message for record in caplog.records if "step hooks" in record.message
    ]
    assert "'clumsy'" in told
    assert "oops" in told


def test_several_sequences_of_a_request(prompt, guide, started):
    manager, batching = started({"do_sample": True, "num_return_sequences": 3})
    name = batching.add_request(prompt, SPECS[1], max_new_tokens=40)
    found = collect(manager, 3)
    assert set(found) == {name, f"{name}__child#0", f"{name}__child#1"}
    assert sum(check(guide, SPECS[1], result) for result in found.values())


def test_cancelled_requests_leave_the_others_alone(prompt, guide, started):
    manager, batching = started()
    long = gp.OutputSpec.regex("[a-z]{300,400}")
    leaving = [
        batching.add_request([*prompt, 30 + n], long, max_new_tokens=350)
        for n in range(2)
    ]
    staying = batching.add_request(
        prompt, gp.OutputSpec.regex("[a-c]{60,70}"), max_new_tokens=100
    )
    time.sleep(0.3)
    for name in leaving:
        manager.cancel_request(name)
    found = collect(manager, {staying})
    assert check(guide, gp.OutputSpec.regex("[a-c]{60,70}"), found[staying])
    again = batching.add_request(prompt, SPECS[2], max_new_tokens=20)
    assert check(guide, SPECS[2], collect(manager, {again})[again])
    assert batching.error(staying) is None


def test_a_bad_spec_is_an_error_of_its_own_request(prompt, guide, started):
    manager, batching = started()
    with pytest.raises(GrammarError):
        batching.add_request(prompt, gp.OutputSpec.regex("a(?=b)"))
    # The manager checks no spec: its row fails closed.
    bad = manager.add_request(prompt, max_new_tokens=20, guided="no JSON")
    worse = manager.add_request(prompt, max_new_tokens=20, guided='{"regex": "a(?=b)"}')
    good = manager.add_request(
        prompt, max_new_tokens=20, guided='{"choice": ["yes", "no"]}'
    )
    found = collect(manager, 3)
    assert found[bad].generated_tokens == found[worse].generated_tokens == [STOP]
    assert check(guide, gp.OutputSpec.choice(["yes", "no"]), found[good])
    assert batching.error(bad).hint
    assert isinstance(batching.error(worse), GrammarError)
    assert batching.error(good) is None
    wrong = manager.add_request(prompt, max_new_tokens=20, guided=7)
    result = None
    while result is None:
        result = manager.get_result(timeout=0.2)
    assert result.request_id == wrong
    assert "has type int, expected str" in result.error


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"use_async_batching": True}, "asynchronous"),
        ({"default_compile_level": 1}, "compiled"),
    ],
)
def test_what_its_interface_can_not_do_is_refused(guide, managed, options, says):
    with pytest.raises(ConfigError, match=says) as caught:
        guide.batching(managed(**options))
    assert caught.value.where
    assert caught.value.hint


@pytest.mark.parametrize(
    ("graphs", "refused"),
    [((False, True), True), (None, True), (True, True), ((False, False), False)],
)
def test_cuda_graphs_are_refused_on_cuda(graphs, refused):
    config = {"use_async_batching": False, "use_cuda_graph": graphs}
    manager = SimpleNamespace(
        batch_processor=None,
        is_running=lambda: False,
        model=SimpleNamespace(device=torch.device("cuda")),
        continuous_batching_config=SimpleNamespace(**config),
    )
    expected = pytest.raises(ConfigError, match="CUDA graph")
    with expected if refused else contextlib.nullcontext():
        batching_module._refuse(manager)


def test_a_manager_that_has_begun_is_refused(guide, started):
    manager, batching = started()
    with pytest.raises(PipelineError, match="has started"):
        guide.batching(manager)
    with pytest.raises(PipelineError, match="still running"):
        batching.close()


def test_a_step_whose_forward_pass_failed_is_not_handed_over(
    prompt, guide, started, model, monkeypatch
):
    def fail(*given, **options):
        raise RuntimeError("out of memory")

    manager, batching = started()
    name = batching.add_request(prompt, SPECS[2], max_new_tokens=20)
    assert check(guide, SPECS[2], collect(manager, 1)[name])
    monkeypatch.setattr(model, "forward", fail)
    batching.add_request(prompt, SPECS[2], max_new_tokens=20)
    until(lambda: not manager.is_running())
    batching.close()


@pytest.mark.parametrize("options", [{}, SMALL_CACHE])
def test_requests_are_closed_before_their_limit(demo_tokenizer, started, options):
    manager, batching = started({"do_sample": True, "max_new_tokens": 33}, **options)
    rooms = []
    add = batching.pipeline.add_request

    def spy(name, spec, *, tokens=()):
        rooms.append((len(tokens), spec.room))
        return add(name, spec, tokens=tokens)

    batching.pipeline.add_request = spy
    start = demo_tokenizer.encode("x")
    wanted = {}
    for number in range(12):
        kind = ["schema", "regex", "choice"][number % 3]
        least = least_of(batching.pipeline, CASES[kind])
        room = [least, 2 * least, 3 * least, None][number // 3]
        name = batching.add_request(
            [*start, 20 + number], CASES[kind], max_new_tokens=room
        )
        wanted[name] = kind, room or 33
    found = collect(manager, {*wanted})
    vocabulary = batching.pipeline.compiler.vocabulary.tokens
    for name, (kind, room) in wanted.items():
        *tokens, last = found[name].generated_tokens
        assert (batching.error(name), last, len(tokens) < room) == (None, STOP, True)
        assert is_valid(kind, b"".join(map(vocabulary.__getitem__, tokens)).decode())
    assert 3 < sum(batching.closed(name) == "led" for name in wanted) < len(wanted)
    assert {room for _, room in rooms} == {room for _, room in wanted.values()}
    assert not options or max(rooms)[0], "nothing was moved: the cache is too large"


def test_too_little_room_is_refused(prompt, started):
    manager, batching = started()
    spec = CASES["schema"]
    least = least_of(batching.pipeline, CASES["schema"])
    with pytest.raises(RequestError, match=f"takes {least}"):
        batching.add_request(prompt, spec, max_new_tokens=least - 1)
    # the manager's own config has no limit
    free = batching.add_request(prompt, CASES["choice"])
    assert collect(manager, {free})[free].generated_tokens[-1] == STOP
    assert batching.error(free) is None
    assert batching.closed(free) == "unprotected: its token limit is not known"
    bad = manager.add_request(
        prompt, max_new_tokens=least - 1, guided=json.dumps(spec.to_dict())
    )
    assert collect(manager, {bad})[bad].generated_tokens == [STOP]
    assert f"takes {least}" in batching.error(bad).what
