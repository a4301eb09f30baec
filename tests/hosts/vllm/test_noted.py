"""What a frontend notes: for a listener, for the log; and the lines at start."""

import io
import logging

import pytest

pytest.importorskip("vllm")

from prometheus_client import REGISTRY

import guided_plugin as gp
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import BusyError, SpecError
from guided_plugin.hosts.vllm import figures
from guided_plugin.hosts.vllm import telling as noted
from guided_plugin.hosts.vllm.telling import engine_line, frontend_line


@pytest.fixture
def listening(monkeypatch):
    monkeypatch.setattr(noted, "listener", None)
    figures.GuidedStatLogger(None, [0]).record()
    return lambda name, **labels: REGISTRY.get_sample_value(f"guided_plugin_{name}", labels) or 0.0


def test_requests_are_counted_by_backend_and_outcome(listening):
    cases = {
        ("llguidance", "admitted"): lambda: noted.listener.admitted("llguidance"),
        ("none", "refused"): lambda: noted.refused(SpecError("wrong"), "one"),
        ("none", "busy"): lambda: noted.refused(BusyError("full"), "two"),
        ("none", "failed"): lambda: noted.listener.failed(),
    }
    for (backend, outcome), happen in cases.items():
        before = listening("requests_total", backend=backend, outcome=outcome)
        happen()
        assert listening("requests_total", backend=backend, outcome=outcome) == before + 1
    assert listening("refusals_total", reason="BusyError") >= 1


def test_keywords_that_nothing_enforces_are_counted(listening):
    before = listening("unenforced_total", keyword="uniqueItems")
    noted.listener.admitted("llguidance", ("pattern", "uniqueItems"))
    assert listening("unenforced_total", keyword="uniqueItems") == before + 1


def test_a_second_stat_logger_in_a_process_is_fine(listening):
    figures.GuidedStatLogger(None, [0])
    before = listening("compile_seconds_count", backend="xgrammar")
    noted.listener.compiled("xgrammar", 0.2)
    assert listening("compile_seconds_count", backend="xgrammar") == before + 1


def test_what_engines_answer_becomes_gauges(listening):
    worker = {"restarts": 2, "exposed_wait": 0.5, "learnt_bytes": 7}
    before = listening("engine_steps", engine="0")  # of an engine of another test, perhaps
    figures._metrics.tell([{"refused": "off"}, {"steps": 5, "worker": worker}])
    assert listening("engine_steps", engine="1") == 5
    assert listening("worker_restarts", engine="1") == 2
    assert listening("mask_wait_seconds", engine="1") == 0.5
    assert listening("engine_steps", engine="0") == before


def test_a_refusal_has_the_clients_id_and_is_one_line(caplog):
    with caplog.at_level(logging.INFO, "guided_plugin.requests"):
        noted.refused(SpecError("wrong\nhere", where="#/type"), "cmpl-\x1b[31m\nmine")
    assert caplog.messages == [r"request cmpl-\x1b[31m\nmine refused: #/type: wrong\nhere"]


def test_handlers_of_vllm_are_taken_where_there_are_no_others(monkeypatch):
    ours, theirs, root = (logging.getLogger(name) for name in ("guided_plugin", "vllm", ""))
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("%(levelname)s %(asctime)s %(message)s"))
    for logger, handlers in ((ours, []), (theirs, [handler]), (root, [logging.NullHandler()])):
        monkeypatch.setattr(logger, "handlers", handlers)
    monkeypatch.setattr(ours, "level", logging.NOTSET)
    noted.adopt_handlers()
    assert ours.handlers == []  # the program has a log of its own
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(theirs, "level", logging.INFO)
    noted.adopt_handlers()
    noted.adopt_handlers()
    assert ours.handlers == [handler]
    ours._cache.clear()
    logging.getLogger("guided_plugin.requests")._cache.clear()
    noted.refused(SpecError("wrong"), "one")
    assert out.getvalue().startswith("INFO 2")
    assert out.getvalue().count("request one refused: wrong") == 1


def test_start_lines_say_what_is_on_and_why_not():
    on = GuidedConfig(take_over=True)
    off = SpecError("the plugin is switched off", hint="set enabled")
    line = frontend_line(on, None, ["llguidance", "mine"])
    assert line.startswith(f"guided_plugin {gp.__version__} is on in this frontend: take_over on")
    assert "llguidance 1." in line
    assert line.endswith(", mine")
    assert frontend_line(GuidedConfig(), off, ()).endswith(
        "is off in this frontend: the plugin is switched off (set enabled); take_over off"
    )
    assert "2.0 MiB of shared memory" in engine_line(on, None, "process", 16, 2 << 20)
    assert "no shared memory" in engine_line(on, None, "inline", 16, 0)
    assert "grammars work at rank 0" in engine_line(on, None, "process", 16, 2 << 20, leads=False)
    assert engine_line(on, off, "", 16, 0).endswith(
        "is off in this engine: the plugin is switched off (set enabled)"
    )
