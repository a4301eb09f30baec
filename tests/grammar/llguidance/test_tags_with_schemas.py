"""Schemas inside structural tags and outside mean the same: the official test suite,
both ways."""

import pytest
from instances import laid_out
from official_suite import ARCHIVE, DRAFTS, groups
from stopping import Walker, special_vocabulary

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec

pytestmark = pytest.mark.skipif(
    not ARCHIVE.is_file(),
    reason="the JSON Schema Test Suite is not in ../shared/jsonschema-suite",
)

BEGIN = "so <f>"
END = "</f>."


def tag_with(schema, **options):
    tag = {"type": "tag", "begin": "<f>", "end": "</f>"}
    content = {"type": "json_schema", "json_schema": schema}
    form = {
        "type": "triggered_tags",
        "triggers": ["<f>"],
        "tags": [{**tag, "content": content}],
    }
    return OutputSpec.structural_tag({"format": form}, **options)


@pytest.fixture(scope="module")
def compiler():
    config = GuidedConfig(threads=1, isolate_compiles=False, backend="llguidance")
    return GrammarCompiler(
        special_vocabulary(padded=True),
        config=config,
        plugins=Plugins(entry_points=False),
    )


def compiled(compiler, make, schema, **options):
    try:
        return compiler.compile(make(schema, **options))
    except GuidedError as error:
        return error


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("whitespace", ["compact", "spaced", "flexible"])
def test_the_same_verdicts_inside_and_outside(compiler, draft, whitespace):
    walker = Walker(compiler)
    seen = set()
    start = len(whitespace) + len(draft)
    for group in list(groups(draft))[start::12]:
        options = {"strict": False, "whitespace": whitespace}
        outside = compiled(compiler, OutputSpec.json_schema, group.schema, **options)
        inside = compiled(compiler, tag_with, group.schema, **options)
        if isinstance(outside, GuidedError):
            assert isinstance(inside, GuidedError), group.name
            assert inside.what == outside.what
            assert inside.where.startswith("#/format/tags/0/content/json_schema")
            continue
        assert not isinstance(inside, GuidedError), f"{group.name}: {inside}"
        for compact, _ in group.tests:
            text = laid_out(compact, whitespace)
            verdict = walker.walk(outside, text).accepted
            walk = walker.walk(inside, BEGIN + text + END, whole=lambda _: True)
            assert (walk.accepted, walk.early, walk.leaks) == (verdict, [], []), (
                group.name,
                text,
            )
            seen.add(verdict)
    assert seen == {True, False}
