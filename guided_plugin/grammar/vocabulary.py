"""`Vocabulary`: the bytes of every token of a tokenizer, and which tokens end an
output. Depends on triggers.

Reads Hugging Face tokenizers (byte-level BPE, byte-fallback SentencePiece) and tiktoken
encodings once and keeps plain bytes, so that every backend has the same vocabulary.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from guided_plugin.errors import RequestError, VocabularyError, shown
from guided_plugin.spec.triggers import Trigger

TokenKind = Literal["byte_level", "byte_fallback", "raw"]

_END = "<|endoftext|>"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of one tokenizer, as bytes, by id."""

    tokens: tuple[bytes, ...] = field(repr=False)
    """Bytes of token i; empty where the id is unused."""
    stop_token_ids: tuple[int, ...]
    """Tokens that end an output."""
    special_ids: frozenset[int] = frozenset()
    """Control tokens, stop tokens among them: part of no text, so no grammar allows
    them unless it names them."""
    kind: TokenKind = "raw"
    encode: Callable[[str], list[int]] | None = field(
        default=None, compare=False, repr=False
    )
    """Text to token ids without control tokens, in a process that has the tokenizer."""

    def __post_init__(self) -> None:
        if not self.tokens:
            raise VocabularyError("the vocabulary is empty")
        if not self.stop_token_ids:
            raise VocabularyError(
                "the vocabulary has no stop token",
                hint="pass stop_token_ids or set the tokenizer's eos_token",
            )
        for token in self.stop_token_ids:
            if not 0 <= token < len(self.tokens):
                raise VocabularyError(
                    f"stop token {token} is outside the vocabulary of {len(self.tokens)} tokens",
                    hint="the stop tokens must come from this tokenizer",
                )
        special_ids = self.special_ids.union(self.stop_token_ids)
        object.__setattr__(self, "special_ids", special_ids)

    def __getstate__(self) -> dict[str, Any]:
        # Plain data for other processes: neither the encoder (it needs the tokenizer)
        # nor cached properties.
        kept = dict(self.__dict__, encode=None)
        for cached in ("fingerprint", "text_tokens"):
            kept.pop(cached, None)
        return kept

    @property
    def size(self) -> int:
        """The number of ids. A model's logits may be wider (padding), see
        `check_width`."""
        return len(self.tokens)

    @property
    def words(self) -> int:
        """32-bit words of a mask row."""
        return (len(self.tokens) + 31) // 32

    @cached_property
    def fingerprint(self) -> str:
        """Equal for equal vocabularies; names them in caches and logs."""
        told = (self.tokens, sorted(self.special_ids), self.stop_token_ids)
        return hashlib.blake2b(repr(told).encode(), digest_size=16).hexdigest()

    @cached_property
    def text_tokens(self) -> tuple[bytes, ...]:
        """`tokens` with the control tokens empty: what a grammar over text may use."""
        return tuple(
            b"" if i in self.special_ids else token
            for i, token in enumerate(self.tokens)
        )

    def check_width(self, width: int) -> None:
        """Refuse logits that are too narrow for this vocabulary; wider ones are
        padding."""
        # Some checkpoints leave control tokens (image markers) out of the output layer:
        # no grammar allows those, so they may stick out. Anything else may be needed.
        outside = [
            i
            for i in range(width, self.size)
            if self.tokens[i] and i not in self.special_ids
        ]
        if outside or any(token >= width for token in self.stop_token_ids):
            raise VocabularyError(
                f"the model's logits have {width} columns, its tokenizer has {self.size} tokens",
                hint="model and tokenizer don't match, or the embeddings were not resized",
            )

    def check_stops(
        self,
        tokens: Iterable[int],
        *,
        where: str = "",
        text: bool = True,
        named: Container[int] = (),
    ) -> None:
        """Refuse stop tokens that don't exist, and those that would cut an output off
        in the middle: control tokens that its grammar has named, and, without `text`,
        those that are text."""
        for token in tokens:
            if not 0 <= token < self.size:
                what = "is outside the vocabulary"
                hint = f"the vocabulary has {self.size} tokens"
            elif not text and token not in self.special_ids:
                what = f"is text: {shown(self.tokens[token])}"
                hint = "only control tokens may end a guided output; let its grammar say where it ends"
            elif token in named:
                name = shown(self.tokens[token])
                what = (
                    f"is named in the grammar, and would end the output there: {name}"
                )
                hint = "leave it out of the grammar or of the stop tokens"
            else:
                continue
            raise RequestError(f"stop token {token} {what}", where=where, hint=hint)

    def usable_stops(self, tokens: Iterable[int] | None) -> tuple[int, ...]:
        """Return the stop tokens of a request that exist; the vocabulary's where it
        names none."""
        own = tuple(token for token in tokens or () if 0 <= token < self.size)
        return own or self.stop_token_ids

    def sequence(self, tokens_or_text: Sequence[int] | str) -> tuple[int, ...]:
        """Token ids as given, or those of a text: a control token by its name, else as
        encoded."""
        if not isinstance(tokens_or_text, str):
            return tuple(tokens_or_text)
        wanted = tokens_or_text.encode()
        for token in self.special_ids:
            if self.tokens[token] == wanted:
                return (token,)
        if self.encode is None:
            raise VocabularyError(
                "the vocabulary has no encoder for text", hint="give token ids"
            )
        return tuple(self.encode(tokens_or_text))

    def triggers(self, given: Iterable[Trigger] | None) -> tuple[Trigger, ...]:
        """Return the triggers as token ids, without empty ones. Raises RequestError for
        one that can never occur."""
        found: list[Trigger] = []
        for trigger in given or ():
            tokens = self.sequence(trigger.tokens)
            largest = max(tokens, default=-1)
            if largest >= self.size:
                raise RequestError(
                    f"token {largest} is outside the vocabulary",
                    where="start_after",
                    hint=f"the vocabulary has {self.size} tokens",
                )
            if tokens:
                found.append(Trigger(tokens, trigger.kept))
        return tuple(found)

    @classmethod
    def from_tokens(
        cls,
        tokens: Iterable[bytes],
        stop_token_ids: Iterable[int],
        special_ids: Iterable[int] = (),
    ) -> Vocabulary:
        """From the bytes of each token."""
        return cls(tuple(tokens), tuple(stop_token_ids), frozenset(special_ids))

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Any, *, stop_token_ids: int | Iterable[int] | None = None
    ) -> Vocabulary:
        """From a Hugging Face tokenizer or a tiktoken encoding.

        Stop tokens default to the tokenizer's end-of-sequence token. Pass the model's
        (`generation_config.eos_token_id`) where it has several.
        """
        if isinstance(stop_token_ids, int):
            stop_token_ids = (stop_token_ids,)
        stops = tuple(stop_token_ids or ())
        if hasattr(tokenizer, "decode_single_token_bytes"):
            return _from_tiktoken(tokenizer, stops)
        if hasattr(getattr(tokenizer, "tokenizer", None), "decode_single_token_bytes"):
            return _from_tiktoken(tokenizer.tokenizer, stops or _eos(tokenizer))
        if hasattr(tokenizer, "get_vocab"):
            return _from_hugging_face(tokenizer, stops or _eos(tokenizer))
        raise VocabularyError(
            f"{type(tokenizer).__name__} is not a tokenizer that this package can read",
            hint="pass a transformers tokenizer, a tiktoken Encoding, or use Vocabulary.from_tokens",
        )


def _eos(tokenizer: Any) -> tuple[int, ...]:
    eos = getattr(tokenizer, "eos_token_id", None)
    return () if eos is None else (int(eos),)


def _from_tiktoken(encoding: Any, stops: tuple[int, ...]) -> Vocabulary:
    names = encoding.special_tokens_set
    special = {encoding.encode_single_token(name) for name in names}
    tokens = [b""] * encoding.n_vocab
    for token in range(encoding.n_vocab):
        try:
            tokens[token] = encoding.decode_single_token_bytes(token)
        except KeyError:
            continue  # a gap in the numbering
    if not stops and _END in names:
        stops = (encoding.encode_single_token(_END),)

    def encode(text: str) -> list[int]:
        return list(encoding.encode(text, disallowed_special=()))

    return Vocabulary(tuple(tokens), stops, frozenset(special), "raw", encode)


def _from_hugging_face(tokenizer: Any, stops: tuple[int, ...]) -> Vocabulary:
    by_token: dict[str, int] = tokenizer.get_vocab()
    if not by_token:
        raise VocabularyError(
            "the tokenizer has no tokens", where=type(tokenizer).__name__
        )
    kind = _kind(tokenizer, by_token)
    added = dict(getattr(tokenizer, "added_tokens_decoder", {}))
    special = {
        token for token, entry in added.items() if getattr(entry, "special", False)
    }
    special |= set(getattr(tokenizer, "all_special_ids", ()))
    to_bytes = _byte_level if kind == "byte_level" else _byte_fallback
    tokens = [b""] * (max(by_token.values()) + 1)
    for text, token in by_token.items():
        # Added tokens are written as they are, not in the vocabulary's alphabet.
        if token in added:
            tokens[token] = text.encode(errors="surrogatepass")
        else:
            tokens[token] = to_bytes(text)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    # vLLM adds a token for `prompt_embeds` to the tokenizer, which `get_vocab` does not
    # list.
    return Vocabulary(
        tuple(tokens),
        stops,
        frozenset(special.intersection(range(len(tokens)))),
        kind,
        encode,
    )


def _kind(tokenizer: Any, by_token: dict[str, int]) -> TokenKind:
    """Return the way the vocabulary spells bytes. Its own tokens are better evidence
    than its class or decoder."""
    if sum(f"<0x{byte:02X}>" in by_token for byte in range(256)) >= 128:
        return "byte_fallback"
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    described = str(backend.to_str()) if hasattr(backend, "to_str") else ""
    singles = len(_BYTE_ALPHABET.keys() & by_token.keys())
    if singles >= 250 or '"ByteLevel"' in described:
        return "byte_level"
    if '"Metaspace"' in described or any(text.startswith("▁") for text in by_token):
        return "byte_fallback"
    raise VocabularyError(
        "can't tell how its tokens map to bytes: neither byte-level BPE nor SentencePiece",
        where=type(tokenizer).__name__,
        hint="build the vocabulary with Vocabulary.from_tokens",
    )


_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = sorted(set(range(256)).difference(_PRINTABLE))
_BYTE_ALPHABET = {chr(byte): byte for byte in _PRINTABLE}
"""GPT-2's spelling of bytes: printable Latin-1 as it is, the rest from U+0100 on."""
_BYTE_ALPHABET |= {chr(256 + place): byte for place, byte in enumerate(_OTHERS)}


def _byte_level(text: str) -> bytes:
    try:
        return bytes(_BYTE_ALPHABET[character] for character in text)
    except KeyError:
        return text.encode()


def _byte_fallback(text: str) -> bytes:
    piece = _BYTE_PIECE.fullmatch(text)
    return bytes([int(piece[1], 16)]) if piece else text.replace("▁", " ").encode()
