"""Tensor-parallel ranks in vLLM: both model runners with vLLM's own types, ranks in
threads, no engine."""

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from rank_threads import on_ranks
from vllm_proposals import V2ProposeGame
from vllm_runners import V1, V2, V2Drafts
from vllm_support import END, config, parallel, runner_config, runner_params, told

import guided_plugin as gp
from guided_plugin.hosts.vllm import engine as vllm_engine
from guided_plugin.hosts.vllm.common import unsupported_reason
from guided_plugin.hosts.vllm.failures import FAILED, LED, Ledger
from guided_plugin.hosts.vllm.logits import GuidedRequest
from guided_plugin.worker.ranks.follower import FollowerRuntime

pytestmark = pytest.mark.usefixtures("byte_tokenizer")

AB = gp.OutputSpec.regex("ab")


@pytest.fixture
def on_two(monkeypatch):
    """What `make(config)` makes at two ranks."""
    made = []

    def build(mode, make, options=None, where="aa"):
        groups = {}
        configs = [runner_config(mode, **(options or {})) for _ in range(2)]
        monkeypatch.setattr(vllm_engine, "ranks_of", lambda config: groups[id(config)])

        def at_rank(group):
            own = configs[group.rank]
            groups[id(own)] = group
            return make(own)

        found = on_ranks(where, at_rank)
        for one in found:
            if isinstance(one, Exception):
                raise one
        made.extend(found)
        return found

    yield build
    for one in made:
        getattr(one, "guide", one).runner.engine.close()


@pytest.fixture
def two_ranks(on_two):
    """Make the same runner at two ranks."""

    def make(kind, mode, specs, where="aa", **options):
        names = list(specs)
        params = [
            [runner_params(specs[name], name, **options) for name in names]
            for _ in range(2)
        ]
        return on_two(
            mode, lambda config: kind(config, names, params.pop()), where=where
        )

    return make


@pytest.mark.parametrize(
    ("mode", "where"), [("inline", "aa"), ("inline", "ab"), ("process", "aa")]
)
@pytest.mark.parametrize("kind", [V1, V2, V2Drafts])
def test_both_ranks_sample_the_same(two_ranks, mode, kind, where):
    """One request fails, one is closed before its limit, and rank 0 tells."""
    closed = gp.OutputSpec.regex("x*y", close_before_length=True).within(4)
    specs = {"one": AB, "two": closed, "bad": gp.OutputSpec.regex("(?<=a)b")}
    ranks = two_ranks(kind, mode, specs, where)
    ranks[1].engine.prepare(told(AB)["guided"], print)  # it has no grammars
    assert [rank.engine.health()[0] for rank in ranks] == ["", ""]
    heard = [{}, {}]
    for _ in range(5):
        for rank, failed in zip(ranks, heard, strict=True):
            output = rank.step()
            failed |= getattr(output, FAILED, {})
            failed |= dict.fromkeys(getattr(output, LED, ()))
    assert ranks[0].tokens == ranks[1].tokens
    one, two, bad = ranks[1].tokens
    assert (bytes(one[:2]), one[2], two[3], bad[0]) == (b"ab", END, END, END)
    assert ranks[1].engine.pipeline.runtime.follows == (where == "aa")
    assert "ook" in heard[0].pop("bad")
    assert heard == [{"two": None}, {}]
    assert not ranks[1].engine.failed


@pytest.mark.parametrize("own", [True, False])
def test_both_ranks_verify_the_same_drafts(on_two, own):
    """Each in a thread of its own, as fast as it can."""
    made = on_two(
        "process",
        lambda config: V2ProposeGame(config, 1, own=own),
        {"jump_forward": True},
    )

    def play(game):
        for _ in range(150):
            game.step()
        game.finish()
        return [(request.name, request.tokens) for request in game.done]

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(play, made)
    assert first == second
    assert len(first) > 20
    assert made[0].guide.runner.engine.pipeline.metrics().worker.taken > 20
    assert isinstance(made[1].guide.runner.engine.pipeline.runtime, FollowerRuntime)


def test_a_forbidden_stop_token_is_found_where_it_was_put():
    """Also where a draft was that token, and was accepted."""
    flags = torch.tensor([[True, False], [False, False], [False, True]])
    requests = [GuidedRequest(name, 0, END, "min_tokens") for name in ("first", "last")]

    def cut(*tokens):
        output = SimpleNamespace(
            req_id_to_index={"last": 0, "first": 1}, sampled_token_ids=[*tokens]
        )
        news = Ledger()._news(0, [(requests, flags)], None, output)
        return {*news.get(FAILED, ())}

    assert cut([5, 6, END], [END, 7]) == {"first", "last"}
    assert cut([5, END], [5, END]) == cut([END], []) == cut() == set()


def test_what_one_rank_alone_knows_changes_no_slot(two_ranks, mode):
    """V1 shows a request's tokens at the output rank, and placeholders elsewhere; or
    the other way round: no grammar takes these."""
    ranks = two_ranks(V1, mode, {"one": AB, "two": AB})
    ranks[1].tokens[0].append(-1)
    ranks[0].tokens[0].append(ord("a"))
    for rank in ranks:
        assert not hasattr(rank.step(), FAILED)
    assert ranks[0].tokens[0][-1] == ranks[1].tokens[0][-1] == ord("b")
    ranks = two_ranks(V1, mode, {"one": AB, "two": AB})
    ranks[0].tokens[0].append(-1)
    ranks[1].tokens[0].append(ord("a"))
    failed = getattr(ranks[0].step(), FAILED)
    assert list(failed) == ["one"], failed
    assert "token -1 " in failed["one"]
    assert not hasattr(ranks[1].step(), FAILED)
    assert ranks[0].tokens[0][-1] == ranks[1].tokens[0][-1] == END
    assert ranks[0].tokens[1] == ranks[1].tokens[1] == [ord("a")]


@pytest.mark.parametrize("kind", [V1, V2, V2Drafts])
def test_rank_0_tells_what_fails_on_another_machine(two_ranks, mode, kind):
    """Requests for which that one samples other tokens, whatever the reason."""
    spec = gp.OutputSpec.regex("[a-c]{50}")
    ranks = two_ranks(kind, mode, {"one": spec, "two": spec}, "ab")
    for rank in ranks:
        rank.step()
    ranks[1].forbidden = {1: [ord("a")]}
    heard = [{}, {}]
    for _ in range(40):
        for rank, failed in zip(ranks, heard, strict=True):
            failed |= getattr(rank.step(), FAILED, {})
        if heard[0]:
            break
        time.sleep(0.02)
    assert list(heard[0]) == ["two"]
    assert "rank 1, on another machine, sampled another token" in heard[0]["two"]
    assert heard[1] == {}


def test_a_rank_that_cannot_take_part_stops_all(two_ranks, monkeypatch):
    """All refuse, with its reason, and close what reaches them."""
    original = vllm_engine.vocabulary_of
    broken = []

    def vocabulary_of(config):
        if not broken:
            broken.append(config)
            raise gp.errors.VocabularyError("the tokenizer cannot be read")
        return original(config)

    monkeypatch.setattr(vllm_engine, "vocabulary_of", vocabulary_of)
    ranks = two_ranks(V1, "inline", {"one": AB})
    for rank in ranks:
        assert "tokenizer cannot be read" in rank.engine.health()[0]
    outputs = [rank.step() for rank in ranks]
    assert [rank.tokens[0] for rank in ranks] == [[END], [END]]
    assert "tokenizer" in getattr(outputs[0], FAILED)["one"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tensor_parallel_size": 1, "pipeline_parallel_size": 2},
        {"pipeline_parallel_size": 2},
    ],
)
def test_two_ranks_are_served(device, changes):
    served = config(
        parallel_config=parallel(**{"tensor_parallel_size": 2, **changes}),
        device_config=SimpleNamespace(device_type=device),
        use_v2_model_runner=True,
    )
    assert unsupported_reason(served, gp.GuidedConfig()) is None
