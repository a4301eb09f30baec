"""The general categories of Unicode, which regular expressions may name. Depends on
nothing."""

from __future__ import annotations

import unicodedata

_CATEGORY_NAMES = """
L:Letter LC:Cased_Letter Lu:Uppercase_Letter Ll:Lowercase_Letter Lt:Titlecase_Letter Lm:Modifier_Letter
Lo:Other_Letter M:Mark Mn:Nonspacing_Mark Mc:Spacing_Mark Me:Enclosing_Mark N:Number Nd:Decimal_Number
Nl:Letter_Number No:Other_Number P:Punctuation Pc:Connector_Punctuation Pd:Dash_Punctuation
Ps:Open_Punctuation Pe:Close_Punctuation Pi:Initial_Punctuation Pf:Final_Punctuation Po:Other_Punctuation
S:Symbol Sm:Math_Symbol Sc:Currency_Symbol Sk:Modifier_Symbol So:Other_Symbol Z:Separator
Zs:Space_Separator Zl:Line_Separator Zp:Paragraph_Separator C:Other Cc:Control Cf:Format Co:Private_Use
Cn:Unassigned
"""
_CATEGORIES = dict(pair.split(":") for pair in _CATEGORY_NAMES.split())
_SHORT = {long: short for short, long in _CATEGORIES.items()} | {
    "punct": "P",
    "digit": "Nd",
    "cntrl": "Cc",
}


def canonical_property(name: str) -> str | None:
    """One spelling for each category of ECMA 262; None for all other properties."""
    kind, equals, value = name.partition("=")
    if not equals:
        return _category(kind)
    return _category(value) if kind in ("General_Category", "gc") else None


def _category(name: str) -> str | None:
    return name if name in _CATEGORIES else _SHORT.get(name)


def has_property(name: str, code: int) -> bool:
    """Whether a character has a property, named as in a pattern: `p{L}`."""
    wanted = name[2:-1]
    category = unicodedata.category(chr(code))
    held = wanted in (category, category[0]) or (
        wanted == "LC" and category in ("Lu", "Ll", "Lt")
    )
    return held != (name[0] == "P")
