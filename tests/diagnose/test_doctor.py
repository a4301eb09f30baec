"""`doctor` as a whole: on this machine, and where a part of it raises."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
from command_line import run

from guided_plugin.diagnose import doctor, machine
from guided_plugin.diagnose.machine import Finding
from guided_plugin.errors import BusyError, UnsupportedSpecError

__all__ = ["run"]


@pytest.fixture
def without_running(monkeypatch):
    """Leave out the self-test, which takes seconds."""
    sections = {
        **doctor.SECTIONS,
        "self-test": lambda: iter([Finding("ok", "runs")]),
    }
    monkeypatch.setattr(doctor, "SECTIONS", sections)
    monkeypatch.delenv("GUIDED_PLUGIN", raising=False)
    return sections


def test_the_self_test_compiles_and_decodes_in_both_modes(monkeypatch):
    monkeypatch.delenv("GUIDED_PLUGIN", raising=False)
    found = [*machine.self_test()]
    assert {finding.status for finding in found} == {"ok"}
    assert [finding.what.split(":")[0].split(" compiles")[0] for finding in found] == [
        "llguidance",
        "xgrammar",
        "mode inline",
        "mode process",
    ]


def test_a_backend_that_is_not_installed_is_no_problem(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    monkeypatch.setattr(machine, "_decodes", lambda compiler, mode: Finding("ok", mode))
    (missing,) = [one for one in machine.self_test() if one.status == "unknown"]
    assert "xgrammar, which is not installed" in missing.what
    assert missing.remedy


@pytest.mark.parametrize("error", [BusyError, UnsupportedSpecError])
def test_a_backend_that_is_busy_or_takes_other_specs_needs_no_reinstall(error):
    def compile(spec):
        raise error("8 specs are compiling or waiting", hint="try again")

    found = machine._compiles(SimpleNamespace(compile=compile), "xgrammar")
    told = found.status, found.remedy
    assert told == (("problem", "try again") if error is BusyError else ("unknown", ""))


def test_tokens_that_the_grammar_forbids_are_told(monkeypatch):
    compiler = machine._compiler()
    monkeypatch.setattr(
        "guided_plugin.pipeline.pipeline.mask_rows", lambda *given: None
    )
    found = machine._decodes(compiler, "inline")
    assert found.status == "problem"
    assert "breaks the grammar" in found.what


def test_no_shared_memory_fails_the_mode_that_needs_it(monkeypatch):
    def refuse(fd, offset, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    found = machine._decodes(machine._compiler(), "process")
    assert found.status == "problem"
    assert "give the container more memory" in found.remedy
    assert "mode process does not run: shared memory: cannot allocate" in found.what


def test_what_a_section_raises_is_its_problem_and_the_others_go_on(without_running):
    def broken():
        yield Finding("ok", "first")
        raise ImportError("libtorch.so: no such file")

    without_running["CUDA"] = broken
    found = doctor.examine()
    assert list(found) == list(without_running)
    first, second = found["CUDA"]
    assert first.what == "first"
    assert second.status == "problem"
    assert "libtorch.so" in second.what


def test_the_command(run, without_running, monkeypatch):
    result = run("doctor")
    assert result.code == 0
    assert result.out.splitlines()[-1] == "0 problems"
    monkeypatch.setenv("GUIDED_PLUGIN", "[red]")
    result = run("doctor")
    assert result.code == 1
    assert result.out.splitlines()[-1] == "1 problem"
    assert "problem  GUIDED_PLUGIN: " in result.out
    assert "'[red]'" in result.out
    assert "-> set GUIDED_PLUGIN to 0, 1 or a JSON object" in result.out


def test_the_command_as_json(run, without_running):
    result = run("doctor", "--json")
    assert list(result.json) == ["ok", "sections"]
    assert list(result.json["sections"]) == list(without_running)
    (options,) = result.json["sections"]["options"]
    assert list(options) == ["status", "what", "remedy"]
    assert result.json["ok"] == (result.code == 0)


def test_it_starts_without_torch():
    code = "import sys, guided_plugin.cli, guided_plugin.diagnose.doctor; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], timeout=120, check=True)


@pytest.fixture
def answers():
    """A server on this machine, and what its paths answer: body and headers."""
    paths = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body, headers = paths.get(self.path, (None, {}))
            self.send_response(404 if body is None else 200)
            for header in headers.items():
                self.send_header(*header)
            self.end_headers()
            self.wfile.write((body or "").encode())

        def log_message(self, *given):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", paths
        server.shutdown()
        thread.join()


ON = {"version": "9.8", "take_over": True, "off": ""}


def tell(paths, state, version='{"version": "0.32.0"}'):
    header = {} if state is None else {"X-Guided-Plugin": state}
    paths["/version?guided"] = version, header


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_a_server_that_says_it_is_on(run, answers, suffix):
    url, paths = answers
    tell(paths, json.dumps(ON))
    result = run("doctor", "--server", url + suffix, "--json")
    assert result.code == 0
    (found,) = result.json["sections"]["server"]
    assert found["status"] == "ok"
    assert found["what"].startswith("guided-plugin 9.8 is on")
    assert found["what"].endswith("vLLM 0.32.0: take_over on")


NO_SERVER = "does not answer like a vLLM server", "http://HOST:PORT"
OFF = json.dumps({**ON, "off": "the plugin is switched off (unset it)"})


@pytest.mark.parametrize(
    ("told", "says", "remedy"),
    [
        ([None], "vLLM 0.32.0 serves without the plugin", "install guided-plugin"),
        ([OFF], "off (unset it)", "start the"),
        (['{"version": "9.8"}'], "0.32.0, but off: None", "start the server again"),
        *(([state], *NO_SERVER) for state in ("yes", "[3]")),
        *(
            ([json.dumps(ON), version], *NO_SERVER)
            for version in (None, "", "[]", "{}", "3", '"version"')
        ),
    ],
)
def test_a_server_that_does_not(run, answers, told, says, remedy):
    url, paths = answers
    tell(paths, *told)
    result = run("doctor", "--server", url)
    assert result.code == 1
    assert result.out.splitlines()[-1] == "1 problem"
    assert says in result.out
    assert remedy in result.out


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "file:///etc/hostname",
        "http://127.0.0.1:1",
        "http://[",
        "http://a b",
    ],
)
def test_an_address_without_a_server(run, url):
    result = run("doctor", "--server", url)
    assert result.code == 1
    assert f"{url} {NO_SERVER[0]}: " in result.out
    assert "<" not in result.out
