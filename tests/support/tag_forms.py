"""Structural tags of every form, with texts that take them apart, from
`tag_forms.json`. There U+0001 stands for the control token."""

import json
from pathlib import Path
from random import Random

from compilers import start

from guided_plugin.grammar.vocabulary import Vocabulary

CALL = "<|call|>"
VOCABULARY = Vocabulary.from_tokens(
    [*(bytes([byte]) for byte in range(256)), b"</s>", CALL.encode(), b"<|other|>"],
    [256],
    [257, 258],
)


def json_of(schema, **options):
    """A schema inside a tag."""
    return {"type": "json_schema", "json_schema": schema, **options}


def tag(begin, content, end):
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def triggered(*tags, triggers=("<f=",), **options):
    return {
        "type": "triggered_tags",
        "triggers": list(triggers),
        "tags": list(tags),
        **options,
    }


_TABLES = json.loads(Path(__file__).with_suffix(".json").read_bytes())
FORMS = _TABLES["forms"]
PIECES = _TABLES["pieces"]
"""What texts are made of."""


def tokens_of(text):
    return [257 if byte == 1 else byte for byte in text.encode()]


def follows(compiler, grammar, text):
    """Whether a grammar takes a text as a beginning, and as a whole."""
    matcher = start(compiler, grammar)
    if not all(matcher.accept(token) for token in tokens_of(text)):
        return False, False
    return True, matcher.complete


def grown(compiler, grammars, name, count):
    """Texts that grow by pieces while any of two grammars takes them, with what both
    say."""
    chance = Random(name)
    found = []
    pool = [""]
    while len(found) < count:
        base = chance.choice(pool[-40:] if chance.random() < 0.7 else pool)
        text = base + chance.choice(PIECES)
        if len(text) > 90:
            continue
        ours, theirs = (follows(compiler, grammar, text) for grammar in grammars)
        found.append((text, ours, theirs))
        if ours[0] or theirs[0]:
            pool.append(text)
    return found
