"""The general categories of Unicode, which regular expressions may name. Depends on
nothing."""

from __future__ import annotations

import sys
import unicodedata
from functools import cache

_NAMES = """
L:Letter Lu:Uppercase_Letter Ll:Lowercase_Letter Lt:Titlecase_Letter Lm:Modifier_Letter Lo:Other_Letter
M:Mark Mn:Nonspacing_Mark Mc:Spacing_Mark Me:Enclosing_Mark N:Number Nd:Decimal_Number Nl:Letter_Number
No:Other_Number P:Punctuation Pc:Connector_Punctuation Pd:Dash_Punctuation Ps:Open_Punctuation
Pe:Close_Punctuation Pi:Initial_Punctuation Pf:Final_Punctuation Po:Other_Punctuation S:Symbol
Sm:Math_Symbol Sc:Currency_Symbol Sk:Modifier_Symbol So:Other_Symbol Z:Separator Zs:Space_Separator
Zl:Line_Separator Zp:Paragraph_Separator C:Other Cc:Control Cf:Format Co:Private_Use Cn:Unassigned
"""
CATEGORIES = {
    name: pair.partition(":")[0] for pair in _NAMES.split() for name in pair.split(":")
}
"""The short name of each by both of its names."""


@cache
def characters_of(category: str) -> tuple[tuple[int, int], ...]:
    """The code points of a category, as ranges; half a second for each, once."""
    found: list[tuple[int, int]] = []
    for code in range(sys.maxunicode + 1):
        if not unicodedata.category(chr(code)).startswith(category):
            continue
        if found and found[-1][1] == code - 1:
            found[-1] = found[-1][0], code
        else:
            found.append((code, code))
    return tuple(found)
