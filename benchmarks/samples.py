"""What is asked for: schemas that engines always have, and samples of real ones, as
MaskBench has them; texts as tokens, and the check of outputs."""

from __future__ import annotations

import contextlib
import json
import random
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.demo import closed_object
from guided_plugin.errors import GuidedError, VocabularyError
from guided_plugin.grammar.renewal import rebuilds_shared
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec


def endless(properties: dict[str, Any]) -> dict[str, Any]:
    """An array of objects with these properties, longer than any benchmark decodes."""
    return repeated(closed_object(properties))


def repeated(item: Any) -> dict[str, Any]:
    """An array of what a schema describes, as long."""
    return {"type": "array", "items": item, "minItems": 500}


SCHEMAS: dict[str, dict[str, Any]] = {
    "plain": endless(
        {
            "name": {"type": "string"},
            "age": {"type": "integer"},
            "city": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "active": {"type": "boolean"},
        }
    ),
    "maxlength": endless(
        {
            "name": {"type": "string", "maxLength": 40},
            "age": {"type": "integer"},
            "city": {"type": "string", "maxLength": 60},
            "note": {"type": "string", "minLength": 1, "maxLength": 200},
            "active": {"type": "boolean"},
        }
    ),
}
"""`plain`: nothing a backend finds hard. `maxlength`: strings with length bounds, which
many find hard."""


@contextlib.contextmanager
def open_sample(source: Path) -> Iterator[dict[str, Path]]:
    """The .json files of a folder or a tar archive, by name; an archive is unpacked
    while this is open."""
    with contextlib.ExitStack() as stack:
        folder = source
        if source.is_file():
            scratch = tempfile.TemporaryDirectory(prefix="sample-")
            folder = Path(stack.enter_context(scratch))
            with tarfile.open(source) as archive:
                archive.extractall(folder, filter="data")
        found = {
            path.relative_to(folder).as_posix(): path for path in folder.rglob("*.json")
        }
        if not found:
            raise GuidedError(
                "is missing, or contains no .json file",
                where=str(source),
                hint="docs/performance.md describes samples",
            )
        yield dict(sorted(found.items()))


def text_of(data: Any) -> str:
    """An instance as JSON. A lone surrogate has no UTF-8; what Python writes for it is
    its escape."""
    return (
        json.dumps(data, ensure_ascii=False).encode(errors="backslashreplace").decode()
    )


def served_schemas(
    sample: Path, most: int, make: Callable[[Any], Any] = lambda schema: schema
) -> list[dict[str, Any]]:
    """At most so many, in an order that looks random and is always the same. `make` is
    what is done to a schema before it is tried. A spec that guides nothing does not
    count."""
    vocabulary = Vocabulary.from_tokens(
        [*(bytes([byte]) for byte in range(256)), b"</s>"], [256]
    )
    compiler = GrammarCompiler(vocabulary, config=GuidedConfig(isolate_compiles=False))
    found: list[dict[str, Any]] = []
    with open_sample(sample) as files:
        names = sorted(files)
        random.Random(1).shuffle(names)
        for name in names:
            schema = make(json.loads(files[name].read_text())["schema"])
            with contextlib.suppress(GuidedError):
                compiler.compile(OutputSpec.json_schema(schema))
                found.append(schema)
            if len(found) == most:
                break
    return found


def refused_at(
    compiler: GrammarCompiler, spec: OutputSpec, tokens: Iterable[int]
) -> int | None:
    """The index of the first token that a fresh matcher refuses; None if it accepts
    all."""
    grammar = compiler.compile(spec)
    backend = compiler.backend(grammar.backend)
    stops = compiler.vocabulary.stop_token_ids
    tokens = list(tokens)
    for _ in range(2):
        matcher = backend.start(grammar, stops)
        refused = next(
            (place for place, token in enumerate(tokens) if not matcher.accept(token)),
            None,
        )
        # A lexer that it shares with earlier matchers may be exhausted: then the next
        # one has another.
        if refused is None or not rebuilds_shared(matcher):
            break
    return refused


class TextTokens:
    """Encodes texts with the tokenizer, or with the longest tokens that fit where that
    changes the text.

    A tokenizer may normalise a text, or read a part of it as a control token.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def __call__(self, text: str) -> list[int]:
        """The tokens whose bytes are the text's."""
        data = text.encode()
        encode = self._vocabulary.encode
        pieces = self._vocabulary.text_tokens
        if encode is not None:
            tokens = encode(text)
            if b"".join(pieces[token] for token in tokens) == data:
                return tokens
        return self.longest(data)

    def longest(self, data: bytes) -> list[int]:
        """From left to right, each time the longest token that fits."""
        by_bytes = self._by_bytes
        longest = self._longest
        tokens = []
        position = 0
        while position < len(data):
            for size in range(
                min(longest, len(data) - position),
                0,
                -1,
            ):
                token = by_bytes.get(data[position : position + size])
                if token is not None:
                    tokens.append(token)
                    position += size
                    break
            else:
                raise VocabularyError(
                    f"no token spells byte {data[position]:#04x}",
                    hint="the vocabulary lacks single bytes",
                )
        return tokens

    def all_ways(self, text: str, chances: Iterable[random.Random]) -> list[list[int]]:
        """Different tokens of one text: the tokenizer's, the longest, single bytes, and
        some at random."""
        data = text.encode()
        ways = [
            self(text),
            self.longest(data),
            [self._by_bytes[bytes([byte])] for byte in data],
        ]
        ways += [self._at_random(data, chance) for chance in chances]
        return [list(way) for way in dict.fromkeys(map(tuple, ways))]

    def _at_random(self, data: bytes, chance: random.Random) -> list[int]:
        tokens = []
        position = 0
        while position < len(data):
            sizes = range(1, min(self._longest, len(data) - position) + 1)
            fitting = [
                size
                for size in sizes
                if data[position : position + size] in self._by_bytes
            ]
            size = chance.choice(fitting)
            tokens.append(self._by_bytes[data[position : position + size]])
            position += size
        return tokens

    @cached_property
    def _by_bytes(self) -> dict[bytes, int]:
        return {
            piece: token
            for token, piece in enumerate(self._vocabulary.text_tokens)
            if piece
        }

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._by_bytes), default=0)
