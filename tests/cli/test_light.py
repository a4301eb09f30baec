"""What the command line imports, and vocabularies that are read without
transformers."""

import os
import re
import subprocess
import sys
import types

import pytest
from command_line import PERSON

import guided_plugin
from guided_plugin.cli.loading import load_tokenizer, load_vocabulary
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.vocabulary import Vocabulary

RUN = """
import sys
from guided_plugin.cli import main
sys.argv = ["guided-plugin", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    print([name for name in {heavy} if name in sys.modules], len(sys.modules), end.code or 0)
"""


def imported(heavy, *arguments):
    """Which heavy modules a command imports, and how many modules in all."""
    code = RUN.format(heavy=heavy)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    names, _, rest = done.stdout.splitlines()[-1].partition("] ")
    count, code = rest.split()
    assert code == "0", done.stdout
    return names + "]", int(count)


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["check", "--help"]])
def test_help_imports_little(arguments):
    names, count = imported(
        ("numpy", "torch", "transformers", "rich.console"), *arguments
    )
    assert names == "[]"
    assert count < 350  # 165 to 279 with typer 0.27; numpy has 150 more


LIGHT = """
import sys
from importlib import metadata
extras = {"torch", "transformers", "tokenizers", "xgrammar", "vllm", "triton"}
sys.modules.update(dict.fromkeys(extras))  # as if they were not installed
find = metadata.Distribution.from_name
metadata.Distribution.from_name = lambda name: find("none" if name in extras else name)
sys.argv = ["guided-plugin", *sys.argv[1:]]
from guided_plugin.cli import main
main()
"""


def light(*arguments):
    """A command where nothing is installed that an extra brings, not in helpers
    either."""
    environment = {**os.environ, "GUIDED_PLUGIN": '{"isolate_compiles": false}'}
    command = [sys.executable, "-c", LIGHT, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=120
    )


@pytest.mark.parametrize("command", ["check", "explain"])
def test_a_schema_needs_what_is_installed_without_an_extra(write, command):
    done = light(command, write("s.json", PERSON))
    assert (done.returncode, done.stderr) == (0, "")


def test_doctor_has_no_problem_with_a_machine_that_only_checks():
    done = light("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert "note     no host is installed: `check` and `explain` work" in done.stdout
    assert "ok       llguidance compiles" in done.stdout


def test_fifty_tools_need_no_more(write):
    tools = [
        {"name": f"tool_{index}", "inputSchema": PERSON | {"title": f"{index}"}}
        for index in range(49)
    ]
    unique = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    tools.append({"name": "bad", "inputSchema": {"not": unique}})
    done = light("check", write("tools.json", {"tools": tools}))
    assert done.returncode == 1
    assert "tool 'bad': #/not/uniqueItems: " in done.stdout
    assert done.stdout.endswith("49 of 50 tools compile\n")


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (["demo"], 2, ["needs torch", "guided-plugin[transformers]"]),
        (["check", "a.ebnf"], 1, ["EBNF: needs xgrammar", "guided-plugin[torch]"]),
    ],
)
def test_what_is_missing_is_told_with_the_extra_to_install(
    write, arguments, code, parts
):
    arguments = [
        write(one, b'root ::= "a"') if one == "a.ebnf" else one for one in arguments
    ]
    done = light(*arguments)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert all(part in done.stdout + done.stderr for part in parts)


def test_names_that_need_a_host_say_what_to_install(monkeypatch):
    name = "guided_plugin.hosts.transformers.guide"
    monkeypatch.delitem(vars(guided_plugin), "Guide", raising=False)
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=re.escape("guided-plugin[transformers]")):
        _ = guided_plugin.Guide
    monkeypatch.setitem(sys.modules, "transformers", types.ModuleType("transformers"))
    monkeypatch.setitem(sys.modules, name, None)  # a module that no extra has
    with pytest.raises(ModuleNotFoundError) as caught:
        _ = guided_plugin.Guide
    assert not isinstance(caught.value, GuidedError)


def test_the_demos_tokenizer_is_read_as_transformers_reads_it():
    ours = load_vocabulary(MODEL_DIR)
    theirs = Vocabulary.from_tokenizer(load_tokenizer(MODEL_DIR))
    assert ours.fingerprint == theirs.fingerprint
    assert (ours.kind, ours.stop_token_ids) == (theirs.kind, theirs.stop_token_ids)
    for text in ('{"name":"Grüße","n":[1, 2]}', "<|eos|> 世界", ""):
        assert ours.encode(text) == theirs.encode(text)
