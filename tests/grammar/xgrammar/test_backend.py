"""The xgrammar backend gets EBNF alone."""

import pytest

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.spec import OutputSpec


@pytest.mark.parametrize(
    "spec",
    [
        OutputSpec.json_schema({"type": "string"}, backend="xgrammar"),
        OutputSpec.json_object(backend="xgrammar"),
        OutputSpec.regex("a", backend="xgrammar"),
        OutputSpec.choice(["a"], backend="xgrammar"),
        OutputSpec.grammar('start: "a"', "lark", backend="xgrammar"),
        OutputSpec.structural_tag(
            {"format": {"type": "const_string", "value": "a"}}, backend="xgrammar"
        ),
    ],
    ids=lambda spec: spec.kind,
)
def test_other_languages_are_refused(byte_compiler, spec):
    with pytest.raises(UnsupportedSpecError, match="is not enforced by xgrammar") as it:
        byte_compiler.compile(spec)
    assert it.value.where == "backend"
    assert it.value.hint.startswith("leave the backend out: llguidance enforces ")
    assert not byte_compiler.why_quick(spec)
