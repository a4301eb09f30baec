"""The Unicode properties that regular expressions may name. Depends on nothing."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection

_CATEGORY_NAMES = """
L:Letter LC:Cased_Letter Lu:Uppercase_Letter Ll:Lowercase_Letter Lt:Titlecase_Letter Lm:Modifier_Letter
Lo:Other_Letter M:Mark Mn:Nonspacing_Mark Mc:Spacing_Mark Me:Enclosing_Mark N:Number Nd:Decimal_Number
Nl:Letter_Number No:Other_Number P:Punctuation Pc:Connector_Punctuation Pd:Dash_Punctuation
Ps:Open_Punctuation Pe:Close_Punctuation Pi:Initial_Punctuation Pf:Final_Punctuation Po:Other_Punctuation
S:Symbol Sm:Math_Symbol Sc:Currency_Symbol Sk:Modifier_Symbol So:Other_Symbol Z:Separator
Zs:Space_Separator Zl:Line_Separator Zp:Paragraph_Separator C:Other Cc:Control Cf:Format Co:Private_Use
Cn:Unassigned
"""
_SCRIPT_CODES = """
Adlam:Adlm Ahom:Ahom Anatolian_Hieroglyphs:Hluw Arabic:Arab Armenian:Armn Avestan:Avst Balinese:Bali
Bamum:Bamu Bassa_Vah:Bass Batak:Batk Bengali:Beng Bhaiksuki:Bhks Bopomofo:Bopo Brahmi:Brah Braille:Brai
Buginese:Bugi Buhid:Buhd Canadian_Aboriginal:Cans Carian:Cari Caucasian_Albanian:Aghb Chakma:Cakm
Cham:Cham Cherokee:Cher Chorasmian:Chrs Common:Zyyy Coptic:Copt Cuneiform:Xsux Cypriot:Cprt
Cypro_Minoan:Cpmn Cyrillic:Cyrl Deseret:Dsrt Devanagari:Deva Dives_Akuru:Diak Dogra:Dogr Duployan:Dupl
Egyptian_Hieroglyphs:Egyp Elbasan:Elba Elymaic:Elym Ethiopic:Ethi Garay:Gara Georgian:Geor Glagolitic:Glag
Gothic:Goth Grantha:Gran Greek:Grek Gujarati:Gujr Gunjala_Gondi:Gong Gurmukhi:Guru Gurung_Khema:Gukh
Han:Hani Hangul:Hang Hanifi_Rohingya:Rohg Hanunoo:Hano Hatran:Hatr Hebrew:Hebr Hiragana:Hira
Imperial_Aramaic:Armi Inherited:Zinh Inscriptional_Pahlavi:Phli Inscriptional_Parthian:Prti Javanese:Java
Kaithi:Kthi Kannada:Knda Katakana:Kana Kawi:Kawi Kayah_Li:Kali Kharoshthi:Khar Khitan_Small_Script:Kits
Khmer:Khmr Khojki:Khoj Khudawadi:Sind Kirat_Rai:Krai Lao:Laoo Latin:Latn Lepcha:Lepc Limbu:Limb
Linear_A:Lina Linear_B:Linb Lisu:Lisu Lycian:Lyci Lydian:Lydi Mahajani:Mahj Makasar:Maka Malayalam:Mlym
Mandaic:Mand Manichaean:Mani Marchen:Marc Masaram_Gondi:Gonm Medefaidrin:Medf Meetei_Mayek:Mtei
Mende_Kikakui:Mend Meroitic_Cursive:Merc Meroitic_Hieroglyphs:Mero Miao:Plrd Modi:Modi Mongolian:Mong
Mro:Mroo Multani:Mult Myanmar:Mymr Nabataean:Nbat Nag_Mundari:Nagm Nandinagari:Nand New_Tai_Lue:Talu
Newa:Newa Nko:Nkoo Nushu:Nshu Nyiakeng_Puachue_Hmong:Hmnp Ogham:Ogam Ol_Chiki:Olck Ol_Onal:Onao
Old_Hungarian:Hung Old_Italic:Ital Old_North_Arabian:Narb Old_Permic:Perm Old_Persian:Xpeo
Old_Sogdian:Sogo Old_South_Arabian:Sarb Old_Turkic:Orkh Old_Uyghur:Ougr Oriya:Orya Osage:Osge Osmanya:Osma
Pahawh_Hmong:Hmng Palmyrene:Palm Pau_Cin_Hau:Pauc Phags_Pa:Phag Phoenician:Phnx Psalter_Pahlavi:Phlp
Rejang:Rjng Runic:Runr Samaritan:Samr Saurashtra:Saur Sharada:Shrd Shavian:Shaw Siddham:Sidd
SignWriting:Sgnw Sinhala:Sinh Sogdian:Sogd Sora_Sompeng:Sora Soyombo:Soyo Sundanese:Sund Sunuwar:Sunu
Syloti_Nagri:Sylo Syriac:Syrc Tagalog:Tglg Tagbanwa:Tagb Tai_Le:Tale Tai_Tham:Lana Tai_Viet:Tavt
Takri:Takr Tamil:Taml Tangsa:Tnsa Tangut:Tang Telugu:Telu Thaana:Thaa Thai:Thai Tibetan:Tibt Tifinagh:Tfng
Tirhuta:Tirh Todhri:Todr Toto:Toto Tulu_Tigalari:Tutg Ugaritic:Ugar Vai:Vaii Vithkuqi:Vith Wancho:Wcho
Warang_Citi:Wara Yezidi:Yezi Yi:Yiii Zanabazar_Square:Zanb
"""
_CATEGORIES = dict(pair.split(":") for pair in _CATEGORY_NAMES.split())
_SCRIPTS = dict(pair.split(":") for pair in _SCRIPT_CODES.split())
_SHORT = {long: short for short, long in _CATEGORIES.items()} | {
    "punct": "P",
    "digit": "Nd",
    "cntrl": "Cc",
}
_SCRIPT_NAMES = {name: long for long, code in _SCRIPTS.items() for name in (long, code)}

_OTHERS = """
Alphabetic ASCII_Hex_Digit Bidi_Control Bidi_Mirrored Case_Ignorable Cased Dash Default_Ignorable_Code_Point
Deprecated Diacritic Emoji Emoji_Component Emoji_Modifier Emoji_Modifier_Base Emoji_Presentation
Extended_Pictographic Extender Grapheme_Extend Hex_Digit ID_Continue ID_Start Ideographic Join_Control
Logical_Order_Exception Lowercase Math Noncharacter_Code_Point Radical Regional_Indicator Sentence_Terminal
Soft_Dotted Terminal_Punctuation Unified_Ideograph Uppercase Variation_Selector XID_Continue XID_Start
"""
_BINARY: dict[str, Collection[int]] = {
    **dict.fromkeys(("Any", "ASCII", "Assigned"), (*range(32), 34, 92)),
    **dict.fromkeys(("White_Space", "Pattern_White_Space"), range(9, 14)),
    **dict.fromkeys(("Grapheme_Base", "Pattern_Syntax"), (34, 92)),
    "Quotation_Mark": (34,),
    **dict.fromkeys(_OTHERS.split(), ()),
}
"""Properties that hold or don't, each with the control characters, quotes and
backslashes that have it."""


def canonical_property(name: str) -> str | None:
    """One spelling for each property of ECMA 262; None for what is none."""
    kind, equals, value = name.partition("=")
    if not equals:
        return _category(kind) or (kind if kind in _BINARY else None)
    if kind in ("General_Category", "gc"):
        return _category(value)
    if kind in ("Script", "sc", "Script_Extensions", "scx") and value in _SCRIPT_NAMES:
        return (
            "Script=" if kind in ("Script", "sc") else "Script_Extensions="
        ) + _SCRIPT_NAMES[value]
    return None


def _category(name: str) -> str | None:
    return name if name in _CATEGORIES else _SHORT.get(name)


def has_property(name: str, code: int) -> bool:
    """Whether a control character, a quote or a backslash has a property, named as in a
    pattern: `p{L}`."""
    wanted = name[2:-1]
    if wanted in _CATEGORIES:
        held = _in_category(wanted, code)
    elif wanted in _BINARY:
        held = code in _BINARY[wanted]
    else:
        held = wanted.endswith("=Common")
    return held != (name[0] == "P")


def _in_category(wanted: str, code: int) -> bool:
    category = unicodedata.category(chr(code))
    return (
        category == wanted
        or category[0] == wanted
        or (wanted == "LC" and category in ("Lu", "Ll", "Lt"))
    )
