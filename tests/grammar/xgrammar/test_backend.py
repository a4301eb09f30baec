"""The xgrammar backend: what each kind of spec accepts, and what is refused instead of
ignored."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from xgrammar_specs import PERSON, accepts

from guided_plugin.spec import OutputSpec


@pytest.mark.parametrize(
    "text", ["{}", '{"a":1}', '{"a":[1,null,{"b":[[]]}],"c":{"d":"x"}}', '{"":-1.5e+9}']
)
def test_any_object(byte_backend, text):
    assert accepts(byte_backend, OutputSpec.json_object(), text)
    for broken in (
        text[1:],
        text[:-1],
        f"{text},",
        text.replace(":", ":0") if ":" in text else "[]",
    ):
        assert not accepts(byte_backend, OutputSpec.json_object(), broken), broken


class TestChoice:
    TEXTS = (
        "",
        'say "hi"',
        "back\\slash \\n \\u0041",
        "tab\tnewline\nreturn\r",
        "\x00\x01\x1f\x7f",
        "é ß 世界",
        "\N{WAVING HAND SIGN}\U0010ffff",
        "[a-z]* | root ::= x",
    )

    def test_every_text_comes_out_as_it_went_in(self, byte_backend):
        spec = OutputSpec.choice(self.TEXTS)
        assert [
            text for text in self.TEXTS if not accepts(byte_backend, spec, text)
        ] == []

    @pytest.mark.parametrize(
        "text", ["back\\slash \n A", 'say \\"hi\\"', "tab\\t", "x", "é ß 世"]
    )
    def test_escapes_are_not_read_twice(self, byte_backend, text):
        assert not accepts(byte_backend, OutputSpec.choice(self.TEXTS), text)


class TestJson:
    @pytest.mark.parametrize(
        "text",
        [
            '{"name": "a"}',
            '{ "name":"a"}',
            '{"name":"a" }',
            '{"name":"a",\n\t"age":1}',
            '{"name" :"a"}',
        ],
    )
    def test_whitespace_between_tokens_is_for_flexible_only(self, byte_backend, text):
        assert not accepts(
            byte_backend, OutputSpec.json_schema(PERSON, whitespace="compact"), text
        )
        assert accepts(
            byte_backend, OutputSpec.json_schema(PERSON, whitespace="flexible"), text
        )

    @pytest.mark.parametrize(
        "text", ['{"a":[1, 2]}', '{"a":{"b":1, "c":2}}', '{"a":1, "b":2}', '{"a": 1}']
    )
    def test_any_object_is_compact_at_every_depth(self, byte_backend, text):
        compact = OutputSpec.json_object(whitespace="compact")
        assert not accepts(byte_backend, compact, text)
        assert accepts(byte_backend, compact, text.replace(" ", ""))
        assert accepts(
            byte_backend, OutputSpec.json_object(whitespace="flexible"), text
        )

    @pytest.mark.parametrize(
        "text", [b'"\n"', b'"\x00"', b'"\xff"', b'"\\x"', b'"\\u12"', b'"a"b"']
    )
    def test_strings_hold_no_raw_control_characters_bad_escapes_or_bad_utf8(
        self, byte_backend, text
    ):
        assert not accepts(
            byte_backend, OutputSpec.json_schema({"type": "string"}), text
        )


LOADED_BY_FOUR = """
import os
import threading

from guided_plugin.grammar.xgrammar import backend

all_there = threading.Barrier(4)

def load():
    all_there.wait()
    found.append(backend._loaded().checked)

found = []
threads = [threading.Thread(target=load) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(found, os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"))
"""


@pytest.mark.parametrize("before", [None, "0"])
def test_loading_xgrammar_leaves_cuda_to_processes_that_are_forked_later(
    before, tmp_path
):
    """It asks `torch.cuda.is_available`, which takes CUDA from them unless the variable
    is 1: vLLM's engine would not start. Several threads may load it at the same time;
    each puts the environment back."""
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    (tmp_path / "xgrammar.py").write_text(
        f"import os, time\ntime.sleep(0.1)\nchecked = os.environ.get({name!r})\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != name}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    if before is not None:
        environment[name] = before
    done = subprocess.run(
        [sys.executable, "-c", LOADED_BY_FOUR],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stderr, done.stdout.strip()) == ("", f"{['1'] * 4} {before}")
