"""A child of MaskBench: one file at a time, each token's mask timed. Started by maskbench.py."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from guided_plugin.bench.maskbench import read_file
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GrammarError, GuidedError
from guided_plugin.grammar import frames
from guided_plugin.grammar.base import Backend, Grammar, MaskArray
from guided_plugin.grammar.compiler import GrammarCompiler
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

__all__ = ["main"]


def main(tokenizer: str, backend: str) -> None:
    """Serve until the other end of standard input closes."""
    from transformers import AutoTokenizer

    answers = os.dup(1)
    os.dup2(2, 1)
    loaded = AutoTokenizer.from_pretrained(tokenizer)
    vocabulary = Vocabulary.from_tokenizer(loaded)
    bench = _Bench(vocabulary, loaded, backend)
    bench.warm_up()
    frames.send(answers, "ready")
    while True:
        frames.send(answers, bench.run(frames.receive(0)))


class _Bench:
    def __init__(self, vocabulary: Vocabulary, tokenizer: Any, backend: str) -> None:
        self._vocabulary = vocabulary
        self._tokenizer = tokenizer
        # One thread: the figures are of one mask at a time.
        self._compiler = GrammarCompiler(vocabulary, config=GuidedConfig(backend=backend, threads=1))
        self._mask: MaskArray = np.zeros((1, vocabulary.words), np.int32)
        self._bits = [1 << (i % 32) for i in range(32)]

    def warm_up(self) -> None:
        """Everything that is made once for all specs: a helper process with both backends in it."""
        large = {"enum": [f"value number {i}" for i in range(1000)]}
        for schema in (large, {"type": "object"}):
            for name in ("auto", "xgrammar"):
                spec = OutputSpec.json_schema(schema, backend=name)
                try:
                    self._compiler.compile(spec)
                except GuidedError:
                    continue

    def run(self, path: Path) -> dict[str, Any]:
        """Compile the schema of a file and match its instances."""
        start = time.perf_counter()
        try:
            schema, instances = read_file(path)
        except (ValueError, KeyError, TypeError, OSError) as error:
            return {"status": "malformed", "error": str(error)[:300]}
        result: dict[str, Any] = {"status": "pass", "instances": len(instances)}
        try:
            self._judge(schema, instances, result)
        except (GrammarError, GuidedError) as error:
            result |= {"status": "refused", "error": str(error)[:500], "kind": type(error).__name__}
        result["seconds"] = round(time.perf_counter() - start, 4)
        return result

    def _judge(self, schema: Any, instances: list[tuple[bool, str]], result: dict[str, Any]) -> None:
        start = time.perf_counter_ns()
        spec = OutputSpec.json_schema(schema, strict=False, whitespace="flexible")
        grammar = self._compiler.compile(spec)
        backend = self._compiler.backend(grammar.backend)
        matcher = backend.start(grammar, self._vocabulary.stop_token_ids)
        backend.batch([matcher]).fill(self._mask, [0])
        result["first_mask_ms"] = round((time.perf_counter_ns() - start) / 1e6, 3)
        result |= {"backend": grammar.backend, "reason": grammar.reason}
        times: list[float] = []
        wrong = []
        for index, (valid, text) in enumerate(instances):
            accepted = self._accepts(backend, grammar, text, times)
            if accepted != valid:
                wrong.append((index, "wrong_accept" if accepted else "wrong_refuse"))
        result["mask_us"] = times
        if wrong:
            result["wrong"] = wrong
            accepts = any(kind == "wrong_accept" for _, kind in wrong)
            result["status"] = "wrong_accept" if accepts else "wrong_refuse"

    def _accepts(self, backend: Backend, grammar: Grammar, text: str, times: list[float]) -> bool:
        """Whether a text's tokens are all allowed, and then a stop token."""
        matcher = backend.start(grammar, self._vocabulary.stop_token_ids)
        batch = backend.batch([matcher])
        mask, row, clock = self._mask, [0], time.perf_counter_ns
        for token in self._tokens(text):
            start = clock()
            batch.fill(mask, row)
            times.append(round((clock() - start) / 1e3, 1))
            if not int(mask[0, token // 32]) >> (token % 32) & 1:
                return False
            if not batch.accept([token])[0]:
                return False
        start = clock()
        batch.fill(mask, row)
        times.append(round((clock() - start) / 1e3, 1))
        return any(int(mask[0, t // 32]) >> (t % 32) & 1 for t in self._vocabulary.stop_token_ids)

    def _tokens(self, text: str) -> list[int]:
        """The tokenizer's own tokens, where they spell the text; else one for each byte."""
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        data = text.encode(errors="surrogatepass")
        if b"".join(self._vocabulary.text_tokens[token] for token in tokens) == data:
            return tokens
        by_bytes = {token: i for i, token in enumerate(self._vocabulary.text_tokens) if len(token) == 1}
        return [by_bytes[data[i : i + 1]] for i in range(len(data))]


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2])
    except frames.PeerGone:
        sys.exit(0)
