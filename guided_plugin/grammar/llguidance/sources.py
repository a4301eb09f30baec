"""A spec as text for llguidance: always Lark.

JSON Schemas are lowered: llguidance's own reading of them means something else in too many places (patterns,
formats, numbers, the order of properties). Structural tags become one grammar with their schemas.
Depends on spec, lark and tags. Nothing here compiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark import HEADER, schema_to_lark
from guided_plugin.grammar.llguidance.lark.patterns import whole_text
from guided_plugin.grammar.llguidance.lark.rules import literal
from guided_plugin.grammar.llguidance.tags import tag_to_lark
from guided_plugin.spec import OutputSpec


def source_text(
    spec: OutputSpec,
    *,
    unenforced: Iterable[str],
    impossible_token: int | None,
    controls: Mapping[int, str] | None = None,
) -> str:
    """The grammar of a spec; raises a GrammarError where Lark doesn't express it.

    `controls`: names of the control tokens that a structural tag may name, by id.
    """
    if spec.kind in ("json_schema", "json_object"):
        return schema_to_lark(
            spec.document() if spec.kind == "json_schema" else {"type": "object"},
            strict=spec.strict and spec.kind == "json_schema",
            flexible=spec.whitespace == "flexible",
            unenforced=unenforced,
            impossible_token=impossible_token,
        )
    if spec.kind == "regex":
        return f"{HEADER}start: TEXT\nTEXT: {_regex(spec.text)}"
    if spec.kind == "choice":
        return f"{HEADER}start: {' | '.join(map(literal, spec.document()))}"
    if spec.kind == "grammar" and spec.syntax == "lark":
        return spec.text if "%llguidance" in spec.text else HEADER + spec.text
    if spec.kind == "structural_tag":
        return tag_to_lark(
            spec.document(),
            strict=spec.strict,
            flexible=spec.whitespace == "flexible",
            controls=controls or {},
            unenforced=unenforced,
            impossible_token=impossible_token,
        )
    raise UnsupportedSpecError(
        "EBNF grammars are not supported by llguidance",
        where=spec.kind,
        hint="use the backend xgrammar, or write it as Lark",
    )


def _regex(source: str) -> str:
    try:
        return whole_text(source)
    except UnsupportedSpecError as error:
        raise UnsupportedSpecError(error.what, where="regex", hint=error.hint) from None
