"""Whether outputs end valid within their limit: random models and random walks over a
sample of real schemas.

    python -m benchmarks.closing SAMPLE --tokenizer DIR [--every N] [--first K] [--out FILE]

Each schema that compiles is asked for with five limits of 16 to 256 tokens, by two
models: `random` samples any token that the mask allows; `gumbel` the likeliest under
random logits at temperature 1, and it dislikes to stop. Each output is judged by
jsonschema-rs, from its text alone. Exit code 1: one is not valid.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jsonschema_rs
import numpy as np

from benchmarks.harness import Options, given, head, write
from benchmarks.samples import open_sample
from guided_plugin.cli.loading import load_tokenizer
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.table import GrammarTable
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

LIMITS = (16, 32, 64, 128, 256)
MODELS = ("random", "gumbel")
_SCALE = 2.0
"""Of the logits of `gumbel`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = Options(__doc__)
    parser.sample()
    parser.add("--first", 0, "of them, from the one with this index on")
    options = parser.parse_args(arguments)
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(options.tokenizer))
    walks = Walks(vocabulary)
    with open_sample(options.source) as files:
        for name in sorted(files)[options.first :: options.every]:
            walks.take(name, json.loads(files[name].read_text())["schema"])
    result = {
        **head("benchmarks.closing", given(arguments)),
        "counts": walks.counts,
        "bad": walks.bad,
        "told": walks.told,
    }
    print(json.dumps(result, indent=1))
    write(result, options.out)
    return int(bool(walks.bad))


class Walks:
    """Outputs of all schemas, and what became of them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        config = GuidedConfig(
            isolate_compiles=False, close_before_length=True, threads=1
        )
        self._compiler = GrammarCompiler(vocabulary, config=config)
        self._vocabulary = vocabulary
        self._rng = np.random.default_rng(1)
        self.counts: Counter[str] = Counter()
        self.bad: list[list[Any]] = []
        self.told: list[list[Any]] = []
        """Outputs that were told to be unprotected, and why."""

    def take(self, name: str, schema: Any) -> None:
        """Walk through one schema, with each limit and model."""
        try:
            spec = OutputSpec.json_schema(schema)
            least = self._compiler.compile(spec).admission().least
        except GuidedError as error:
            endless = "no end" in error.what
            self.counts["no end was found" if endless else "refused schemas"] += 1
            if endless:
                self.bad.append([name, error.what])
            return
        self.counts["schemas"] += 1
        judges = _judge(schema)
        for limit in LIMITS:
            for model in MODELS:
                if limit < least:
                    self.counts["too little room"] += 1
                    continue
                verdict, told = self._output(spec, limit, model, judges)
                self.counts[verdict] += 1
                if told:
                    self.told.append([name, limit, model, told])
                if verdict not in ("valid", "not judged"):
                    self.bad.append([name, limit, model, verdict])

    def _output(
        self, spec: OutputSpec, limit: int, model: str, judges: list[Any]
    ) -> tuple[str, str]:
        """What became of one output, and why it was not protected if it was not."""
        vocabulary = self._vocabulary
        grammar = self._compiler.compile(spec)
        backend = self._compiler.backend(grammar.backend)
        table = GrammarTable(vocabulary)
        table.add(
            0,
            "one",
            spec.within(limit),
            grammar,
            backend,
        )
        mask = np.zeros((1, vocabulary.words), np.int32)
        tokens: list[int] = []
        while not tokens or tokens[-1] not in vocabulary.stop_token_ids:
            if len(tokens) == limit:
                return "cut by length", table.unprotected.get(0, "")
            table.fill((0,), mask)
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits)
            if not len(allowed):
                return "nothing allowed", ""
            tokens.append(self._sampled(model, allowed))
            table.accept((0,), tokens[-1:])
        text = b"".join(vocabulary.tokens[token] for token in tokens[:-1])
        try:
            value = json.loads(text, parse_float=_finite)
        except ValueError:
            return "not JSON", ""
        verdict = "not judged"
        if judges:
            taken = any(judge.is_valid(value) for judge in judges)
            verdict = "valid" if taken else "invalid"
        return verdict, table.unprotected.get(0, "")

    def _sampled(self, model: str, allowed: Any) -> int:
        if model == "random":
            return int(self._rng.choice(allowed))
        logits = _SCALE * self._rng.standard_normal(len(allowed))
        logits += self._rng.gumbel(size=len(allowed))
        logits[np.isin(allowed, self._vocabulary.stop_token_ids)] -= 10
        return int(allowed[logits.argmax()])


def _judge(schema: Any) -> list[Any]:
    """One validator for each reading of `format`: drafts leave open whether it is a
    demand, and under `oneOf` either may refuse what the other takes."""
    try:
        return [
            jsonschema_rs.validator_for(schema, validate_formats=asked)
            for asked in (False, True)
        ]
    except (ValueError, jsonschema_rs.ReferencingError):
        return []  # what it can't read is counted


def _finite(text: str) -> float:
    """A number that doubles don't reach is one all the same; jsonschema-rs takes no
    infinity."""
    return max(-sys.float_info.max, min(sys.float_info.max, float(text)))


if __name__ == "__main__":
    sys.exit(main())
