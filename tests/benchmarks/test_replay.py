"""Documents replayed: which are chosen, which tokens are forced, what is made of an
engine's outputs."""

import gzip
import json
import time
from types import SimpleNamespace

import pytest

import guided_plugin as gp
from benchmarks import harness
from benchmarks.replay import __main__ as bench
from benchmarks.replay.documents import Documents, ForcedTokens, least_forwards
from benchmarks.replay.trace import Case, Trace
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import PipelineError

BYTES = gp.Vocabulary.from_tokens(
    [
        *(bytes([byte]) for byte in range(256)),
        b"</s>",
        b'{"',
        b'":',
    ],
    [256],
)
CLOSED = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "on": {"type": "boolean"},
    },
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
            "schema": {
                **CLOSED,
                "description": "plain words " * 200,
            },
            "tests": tests,
        }
        (folder / f"{name}.json").write_text(json.dumps(document))
    return folder


def texts(documents):
    return sorted(
        bytes(b"".join(map(BYTES.text_tokens.__getitem__, one.tokens)))
        for one in documents
    )


def test_documents_are_valid_instances_that_the_grammar_takes(sample):
    known = Documents(
        sample,
        BYTES,
        64,
        7,
    )
    tools = known.choose(
        "tools",
        "compact",
        9,
    )
    expected = [b'{"name":"x","on":true}', b'{"name":"z"}']
    assert texts(tools) == sorted(expected)
    real = known.choose(
        "real",
        "compact",
        9,
    )
    assert texts(real) == sorted([*expected, b'{"name":"w"}'])
    assert known.left_out == {"tools compact": 1, "real compact": 1}
    assert all(one.tokens[-1] == 256 for one in tools)
    for one in tools:
        assert least_forwards(one.forced, 7) <= one.passes <= len(one.tokens)
    assert (
        Documents(
            sample,
            BYTES,
            64,
            7,
        ).choose(
            "tools",
            "compact",
            9,
        )
        == tools
    )
    assert known.taught(real) < sum(one.passes for one in real)
    free = known.choose(
        "free",
        "compact",
        4,
    )
    assert not any(one.spec or any(one.forced) for one in free)


def test_a_token_is_forced_where_no_byte_of_it_is_open():
    spec = gp.OutputSpec.json_schema(CLOSED, whitespace="compact")
    tokens = [
        257,
        *b"name",
        258,
        *b'"x"',
        ord("}"),
    ]
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


def step(stamp, tokens, finished=()):
    outputs = [
        SimpleNamespace(
            request_id=name, new_token_ids=[1] * count, finished=name in finished
        )
        for name, count in tokens.items()
    ]
    return SimpleNamespace(
        timestamp=stamp,
        outputs=outputs,
    )


def test_the_pace_is_that_of_steps_with_all_rows_taken_and_a_queue_behind():
    thread = iter((0.0, 1.0, 2.0, 3.0, 3.5, 9.0))
    trace = Trace(2, lambda: next(thread))
    for one in (
        step(1.0, {"a": 1}),  # a row is not taken yet
        step(2.0, {"a": 1, "b": 1}),
        step(3.0, {"a": 1, "b": 3}),
        # while this one runs the next is launched, which begins `c`
        step(
            3.5,
            {"a": 1, "b": 1},
            "a",
        ),
        step(
            5.0,
            {"c": 1, "b": 2},
            "b",
        ),  # one is left: nothing waits any more
        step(
            99.0,
            {"c": 1},
            "c",
        ),
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
        Trace(
            2,
            time.monotonic,
            trace.steps[:2],
        ).queued(2)


def test_accepted_drafts_at_open_places_and_wrong_outputs_are_counted():
    case = Case({}, 1)
    flags = [False, True, False, False]
    document = {
        "name": "a",
        "tokens": [5, 6, 7, 8],
        "forced": flags,
    }
    # Tokens of the first step, of which all but the last one were drafts.
    for first, unforced in ((1, 1), (3, 1), (4, 2)):
        trace = Trace(1, time.monotonic)
        trace.note(step(1.0, {"a": first}))
        trace.note(step(2.0, {"a": 4 - first}))
        before = case.unforced
        case.count_unforced({"a": document}, trace)
        assert case.unforced - before == unforced
    ends = {"finish_reason": "length", "stop_reason": None}
    outputs = [
        SimpleNamespace(
            token_ids=tokens,
            **ends,
        )
        for tokens in ([5, 6, 7, 8], [5, 6, 9, 8])
    ]
    case.judge([document] * 2, outputs)
    assert (case.outputs, case.wrong) == (2, 1)
    assert [one["at"] for one in case.differences] == [2]


def answer(pace, wrong):
    run = {
        "kind": "tools",
        "form": "compact",
        "rows": 2,
        "tokens_per_second": pace,
        "batch_ms": 5000 / pace,
        "document_ms": 9.0,
        "ms_per_step": 1.0,
        "p99_step_ms": 2.5,
        "forwards_per_token": 1.0,
        "bound": 0.5,
        "alone": 0.6,
        "unforced": 0,
        "wrong": wrong,
    }
    return {
        "environment": {"date": "today"},
        "figures": [
            {
                **run,
                "runs": [run],
            }
        ],
    }


def test_ways_are_run_shown_and_written(sample, tmp_path, monkeypatch, capsys):
    asked = {}

    def ask(engine, limit):
        asked[engine.name] = engine
        if "jump" in engine.name:
            raise PipelineError("unknown option", where=engine.name)
        guided = engine.question["guided"]
        wrong = "speculative_config" in engine.question["engine"]
        return answer(250 if guided else 200, int(wrong))

    monkeypatch.setattr(
        harness,
        "ask",
        ask,
    )
    out = tmp_path / "replay.json.gz"
    words = f"--device cpu --tokenizer {MODEL_DIR} --sample {sample} --rows 2 --ways"
    common = words.split()
    plugin = [
        "--plugin",
        '{"mode": "inline"}',
        "--out",
        str(out),
    ]
    assert (
        bench.main(
            [
                *common,
                "unguided,guided+new",
                *plugin,
            ]
        )
        == 0
    )
    assert asked["unguided"].plugin is None
    assert asked["guided+new"].plugin == {"take_over": True, "mode": "inline"}
    assert asked["guided+new"].question["new"]
    written = json.loads(gzip.decompress(out.read_bytes()))
    ratios = {one["way"]: one["ratio"] for one in written["figures"]}
    assert ratios == {"unguided": 1.0, "guided+new": 0.8}
    assert list(written)[:2] == ["command", "date"]
    assert "2.500" in capsys.readouterr().out
    assert bench.main([*common, "jump"]) == 1
    assert "jump: unknown option" in capsys.readouterr().err
    assert bench.main([*common, "unguided+ngram"]) == 1  # a wrong output
    assert bench.main([*common, "fast"]) == 2
    assert bench.main([*common, ""]) == 0
    assert "alone" in capsys.readouterr().out
