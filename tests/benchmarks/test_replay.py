"""Documents replayed: which are chosen, which tokens are forced, what is made of an
engine's outputs."""

import gzip
import json
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

import guided_plugin as gp
from benchmarks.measuring import turn
from benchmarks.replay import __main__ as bench
from benchmarks.replay.documents import Documents, ForcedTokens, least_forwards
from benchmarks.replay.trace import Case, Trace, device_times
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import PipelineError

BYTES = gp.Vocabulary.from_tokens(
    [*(bytes([byte]) for byte in range(256)), b"</s>", b'{"', b'":'], [256]
)
CLOSED = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "on": {"type": "boolean"}},
    "required": ["name"],
}


@pytest.fixture
def sample(tmp_path):
    files = {
        "BFCL_simple_1": [{"name": "x", "on": True}, {"name": "y", "extra": 1}],
        "Glaiveai2K---a": [{"name": "z"}],
        "Github_easy---b": [{"name": "w"}],
    }
    folder = tmp_path / "sample"
    folder.mkdir()
    for name, valid in files.items():
        tests = [{"valid": True, "data": data} for data in valid] + [
            {"valid": False, "data": {"name": 1}}
        ]
        document = {
            "schema": {**CLOSED, "description": "plain words " * 200},
            "tests": tests,
        }
        (folder / f"{name}.json").write_text(json.dumps(document))
    return folder


def texts(documents):
    return sorted(
        bytes(b"".join(map(BYTES.text_tokens.__getitem__, one.tokens)))
        for one in documents
    )


@pytest.mark.parametrize(("strict", "left_out"), [(True, 1), (False, 0)])
def test_documents_are_valid_instances_by_kind_and_what_the_grammar_refuses_is_left_out(
    sample, strict, left_out
):
    known = Documents(sample, BYTES, 64, 1, 7, strict=strict)
    tools, real = (known.choose(kind, "compact", 9) for kind in ("tools", "real"))
    expected = [
        b'{"name":"x","on":true}',
        b'{"name":"z"}',
        *([] if strict else [b'{"name":"y","extra":1}']),
    ]
    assert texts(tools) == sorted(expected)
    assert texts(real) == sorted([*expected, b'{"name":"w"}'])
    assert known.left_out == (
        {"tools compact": left_out, "real compact": left_out} if left_out else {}
    )
    assert all(one.tokens[-1] == 256 for one in tools)
    assert all(
        least_forwards(one.forced, 7) <= one.passes <= len(one.tokens) for one in tools
    )
    assert (
        Documents(sample, BYTES, 64, 1, 7, strict=strict).choose("tools", "compact", 9)
        == tools
    )
    assert known.taught(real) < sum(one.passes for one in real)


def test_free_text_is_never_guided_and_beside_takes_turns(sample):
    known = Documents(sample, BYTES, 64, 1, 7, strict=True)
    beside = known.choose("beside", "compact", 4)
    assert [one.spec is None for one in beside] == [True, False, True, False]
    assert not any(any(one.forced) for one in beside if one.spec is None)


def test_documents_whose_whitespace_the_grammar_leaves_open_are_written_as_a_model_would(
    sample,
):
    known = Documents(sample, BYTES, 64, 1, 7, strict=True)
    forms = {
        form: known.choose("tools", form, 9)
        for form in ("spaced", "flexible", "indent2", "indent4")
    }
    assert texts(forms["flexible"]) == texts(forms["spaced"])
    assert b'{\n  "name": "z"\n}' in texts(forms["indent2"])
    assert b'{\n    "name": "z"\n}' in texts(forms["indent4"])
    assert {one.spec["whitespace"] for one in forms["indent4"]} == {"flexible"}
    # Once it was seen, what stands between two values is offered.
    assert (
        known.taught(forms["indent4"]) < sum(one.passes for one in forms["indent4"]) / 2
    )


def test_a_form_that_this_version_does_not_have_is_refused_as_the_spec_is(
    sample, monkeypatch
):
    monkeypatch.setitem(bench.FORMS, "airy", ("airy", {}))
    with pytest.raises(gp.GuidedError, match="whitespace"):
        Documents(sample, BYTES, 64, 1, 7, strict=True).choose("tools", "airy", 4)


def test_a_token_is_forced_where_no_byte_of_it_is_open():
    spec = gp.OutputSpec.json_schema(CLOSED, whitespace="compact")
    tokens = [257, *b"name", 258, *b'"x"', ord("}")]
    forced = ForcedTokens(BYTES)(spec, tokens)
    # {" n a m e ": "  - open: x and the quote that may end it, a comma or the end;
    # forced: the stop token
    assert forced == [
        True,
        True,
        True,
        True,
        True,
        True,
        True,
        False,
        False,
        False,
        True,
    ]
    optional = gp.OutputSpec.json_schema(
        {**CLOSED, "required": []}, whitespace="compact"
    )
    assert ForcedTokens(BYTES)(optional, tokens)[:3] == [False, False, True]
    assert ForcedTokens(BYTES)(spec, [257, *b"no"]) is None


@pytest.mark.parametrize(
    ("forced", "drafts", "passes"),
    [
        ("f", 7, 1),
        ("ffff", 7, 4),
        ("tttt", 7, 2),
        ("ftttt", 2, 3),
        ("fttft", 7, 3),
        ("fttff", 7, 3),
    ],
)
def test_the_fewest_forward_passes(forced, drafts, passes):
    assert least_forwards([one == "t" for one in forced], drafts) == passes


def step(stamp, tokens, finished=()):
    outputs = [
        SimpleNamespace(
            request_id=name, new_token_ids=[1] * count, finished=name in finished
        )
        for name, count in tokens.items()
    ]
    return SimpleNamespace(timestamp=stamp, outputs=outputs)


def test_the_pace_is_that_of_steps_with_all_rows_taken_and_a_queue_behind():
    thread = iter((0.0, 1.0, 2.0, 3.0, 3.5, 9.0))
    trace = Trace(2, lambda: next(thread))
    for one in (
        step(1.0, {"a": 1}),  # a row is not taken yet
        step(2.0, {"a": 1, "b": 1}),
        step(3.0, {"a": 1, "b": 3}),
        # while this one runs the next is launched, which begins `c`
        step(3.5, {"a": 1, "b": 1}, "a"),
        step(5.0, {"c": 1, "b": 2}, "b"),  # one is left: nothing waits any more
        step(99.0, {"c": 1}, "c"),
    ):
        trace.note(one)
    # From 2.0 to 5.0: three steps of two rows each, nine tokens.
    pace = {
        "tokens_per_second": 3.0,
        "ms_per_step": 1000.0,
        "forwards_per_token": 0.6667,
        "seconds": 3.0,
    }
    steps = {
        "plain_step_ms": 0.0,
        "draft_step_ms": 1000.0,
        "prompt_step_ms": 1000.0,
        "prompt_steps": 0.6667,
    }
    assert trace.queued(3) == pace | steps | {
        "p99_step_ms": 1500.0,
        "thread_step_ms": 833.333,
    }
    with pytest.raises(gp.GuidedError, match="raise --queue"):
        Trace(2, time.monotonic, trace.steps[:2]).queued(2)


def test_a_profile_tells_when_the_device_works():
    def work(name, start, took, stream=7, kind="kernel"):
        return {
            "cat": kind,
            "name": name,
            "ts": start,
            "dur": took,
            "args": {"stream": stream},
        }

    events = [
        work("b", 60.0, 40.0),
        work("a", 0.0, 50.0),
        work("a", 100.0, 60.0),
        work("c", 0.0, 50.0, 9),
    ]
    found = device_times([*events, work("x", 0.0, 900.0, kind="cpu_op")], 2)
    assert (found["device_step_ms"], found["kernels_us"]) == (
        0.075,
        {"a": 55.0, "b": 20.0},
    )
    assert found["pauses_us"] == {"a -> b": 5.0, "b -> a": 0.0}


def test_accepted_drafts_at_open_places_are_counted():
    case = Case({}, 1)
    documents = {
        "a": {
            "name": "a",
            "tokens": [5, 6, 7, 8],
            "forced": [False, True, False, False],
        }
    }
    for first, accepted in ((1, "6 and 7"), (3, "5 and 6"), (4, "5 to 7")):
        trace = Trace(1, time.monotonic)
        trace.note(step(1.0, {"a": first}))
        trace.note(step(2.0, {"a": 4 - first}))
        before = case.unforced
        case.count_unforced(documents, trace)
        assert case.unforced - before == (2 if accepted == "5 to 7" else 1), accepted
    ends = {"finish_reason": "length", "stop_reason": None}
    outputs = [
        SimpleNamespace(token_ids=tokens, **ends)
        for tokens in ([5, 6, 7, 8], [5, 6, 9, 8])
    ]
    case.judge([documents["a"]] * 2, outputs)
    assert (case.outputs, case.wrong) == (2, 1)
    assert [one["at"] for one in case.differences] == [2]


def answer(pace, **changes):
    figure = {
        "kind": "tools",
        "form": "compact",
        "digest": "d",
        "bound": 0.5,
        "rows": 2,
        "outputs": 4,
    }
    figure |= {
        "wrong": 0,
        "unforced": 0,
        "tokens_per_second": pace,
        "ms_per_step": 1.0,
        "seconds": 1.0,
    }
    figure |= {
        "alone": 0.6,
        "forwards_per_token": 1.0,
        "document_ms": 9.0,
        "batch_ms": 5000 / pace,
    }
    return {
        "environment": {"date": "today"},
        "figures": [{**figure, "runs": [figure], **changes}],
    }


def test_ways_are_run_shown_written_and_read_together(
    sample, tmp_path, monkeypatch, capsys
):
    asked = []

    def run(module, options, environment, timeout, where):
        asked.append(
            (environment["GUIDED_PLUGIN"], options["engine"], options["guided"])
        )
        if "jump" in environment["GUIDED_PLUGIN"]:
            raise PipelineError("unknown option", where=where)
        return answer(
            250 if options["guided"] else 200, wrong=int(bool(options["engine"]))
        )

    monkeypatch.setattr(bench, "run_child", run)
    files = [tmp_path / f"{number}.json.gz" for number in range(3)]
    common = [
        "--device",
        "cpu",
        "--tokenizer",
        str(MODEL_DIR),
        "--sample",
        str(sample),
        "--rows",
        "2",
    ]
    assert bench.main([*common, "--ways", "unguided", "--out", str(files[0])]) == 0
    plugin = ["--plugin", '{"mode": "inline"}']
    assert (
        bench.main([*common, "--ways", "guided", *plugin, "--out", str(files[1])]) == 0
    )
    assert asked == [
        ("0", {}, False),
        ('{"take_over": true, "mode": "inline"}', {}, True),
    ]
    assert bench.main(["--read", f"{files[0]},{files[1]}", "--out", str(files[2])]) == 0
    assert "0.800" in capsys.readouterr().out
    written = json.loads(gzip.decompress(files[2].read_bytes()))
    assert [figure["way"] for figure in written["figures"]] == ["unguided", "guided"]
    assert list(written)[:2] == ["command", "date"]
    assert bench.main([*common, "--ways", "jump"]) == 1
    assert (
        "jump failed: benchmarks.replay, jump: unknown option"
        in capsys.readouterr().err
    )
    assert bench.main([*common, "--ways", "unguided+ngram"]) == 1  # a wrong output
    assert asked[-1][1]["speculative_config"]["num_speculative_tokens"] == 7
    assert bench.main([*common, "--ways", "fast"]) == 2
    assert bench.main([*common, "--ways", ""]) == 0
    assert "alone" in capsys.readouterr().out


def test_files_of_different_documents_are_not_read_together():
    with pytest.raises(gp.GuidedError, match="tools compact had different documents"):
        bench.merged(
            [
                {"figures": answer(1)["figures"]},
                {"figures": answer(1, digest="e")["figures"]},
            ]
        )


def test_engines_work_one_at_a_time_and_take_turns(tmp_path):
    worked = []

    def work(name):
        for _ in range(3):
            with turn(tmp_path / "turns"):
                worked.append(name)
                time.sleep(0.02)
                assert worked[-1] == name

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, "ab"))
    assert len(worked) == 6
    assert worked not in ([*"aaabbb"], [*"bbbaaa"])  # either may begin
