"""transformers' `generate`, unguided and guided, in turns.

    python -m benchmarks.models --device cuda --model DIR --rows 8,64

It runs eager and with a static cache, next to xgrammar's own processor (`xgrammar_ms`).
A folder without weights gives a model with random ones. Prints JSON.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.harness import Json, Options, counts, given, head, median, write
from benchmarks.samples import SCHEMAS, refused_at
from guided_plugin.cli.loading import load_tokenizer
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import RequestError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hosts.transformers.guide import Guide
from guided_plugin.spec import OutputSpec

_WARM_UP = 2
"""Runs: with a static cache the first compiles, the second captures."""
_PROMPT = [1, 2, 3]
_FORWARD: dict[str, Json] = {"eager": {}, "static": {"cache_implementation": "static"}}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print; write where asked."""
    parser = Options(__doc__)
    parser.add("--model", MODEL_DIR, "folder of a model", Path)
    parser.add("--tokenizer", None, "tokenizer folder; the model's if not given", Path)
    parser.add("--rows", [8, 64], "batch sizes, separated by commas", counts)
    parser.several("--schema", ["plain"], SCHEMAS, "what is asked for")
    parser.add("--steps", 64, "steps a run")
    parser.add("--repetitions", 4, "measured runs a figure")
    parser.add("--device", "cpu", "cpu or cuda")
    parser.several("--forward", list(_FORWARD), _FORWARD, "how the model runs")
    parser.out()
    options = parser.parse_args(arguments)
    bench = _Bench(options)
    result = {
        **head("benchmarks.models", given(arguments), options.device),
        "benchmark": "generate",
        "model": options.model.resolve().name,
        "vocabulary": bench.vocabulary.size,
        "steps": options.steps,
        "figures": [],
    }
    legs = itertools.product(options.forward, options.rows, options.schema)
    with Guide(bench.vocabulary, model=bench.model) as guide:
        result["figures"] = [bench.figure(guide, *leg) for leg in legs]
    print(json.dumps(result, indent=1))
    write(result, options.out)


def loaded(folder: Path, device: str) -> Any:
    """The model of a folder; with random weights where it has none."""
    torch.manual_seed(0)
    models: Any = AutoModelForCausalLM
    more: Json = {"dtype": torch.float32 if device == "cpu" else torch.bfloat16}
    with torch.device(device):
        if any(folder.glob("*.safetensors")):
            model = models.from_pretrained(folder, **more)
        else:
            config = AutoConfig.from_pretrained(folder)
            model = models.from_config(config, **more)
    return model.to(device).eval()


class _Bench:
    def __init__(self, options: Any) -> None:
        import xgrammar

        self.options = options
        self.model = loaded(options.model, options.device)
        tokenizer = load_tokenizer(options.tokenizer or options.model)
        stops = self.model.generation_config.eos_token_id
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer, stop_token_ids=stops)
        self.compiler = GrammarCompiler(
            self.vocabulary, config=GuidedConfig(isolate_compiles=False)
        )
        info = xgrammar.TokenizerInfo(
            list(self.vocabulary.text_tokens),
            xgrammar.VocabType.RAW,
            vocab_size=self.model.get_output_embeddings().weight.shape[0],
            stop_token_ids=list(self.vocabulary.stop_token_ids),
        )
        self.xgrammar = xgrammar.GrammarCompiler(info)

    def figure(self, guide: Guide, forward: str, rows: int, name: str) -> Json:
        """Medians, and the ratio of each way to `unguided`, `guided` first."""
        # Another batch size is another graph: without this, compiled ones pile up.
        torch.compiler.reset()
        spec = OutputSpec.json_schema(SCHEMAS[name])
        their = self.xgrammar.compile_json_schema(
            json.dumps(SCHEMAS[name]), any_whitespace=False
        )

        def guided() -> float:
            kwargs = guide.generate_kwargs(spec)
            with contextlib.closing(kwargs.call):
                milliseconds, outputs = self._run(forward, rows, dict(kwargs))
                for error in kwargs.errors.values():
                    raise error
            self._check(spec, outputs)
            return milliseconds

        def xgrammar() -> float:
            from xgrammar.contrib.hf import LogitsProcessor

            # One for each call, as it requires.
            own = {"logits_processor": [LogitsProcessor(their)]}
            return self._run(forward, rows, own)[0]

        ways = {
            "unguided": lambda: self._run(forward, rows, {})[0],
            "guided": guided,
            "xgrammar": xgrammar,
        }
        runs: dict[str, list[float]] = {way: [] for way in ways}
        for repetition in range(-_WARM_UP, self.options.repetitions):
            # The order matters: it is reversed every other time.
            for way in list(ways)[:: -1 if repetition % 2 else 1]:
                milliseconds = ways[way]()
                if repetition >= 0:
                    runs[way].append(round(milliseconds, 4))
        found: Json = {"forward": forward, "rows": rows, "schema": name}
        for way, prefix in (("guided", ""), ("xgrammar", "xgrammar_")):
            pairs = zip(runs[way], runs["unguided"], strict=True)
            found[f"{prefix}ratio"] = median(own / base for own, base in pairs)
        medians = {f"{way}_ms": median(values) for way, values in runs.items()}
        return {**found, **medians, "runs_ms": runs}

    def _run(self, forward: str, rows: int, keywords: Json) -> tuple[float, Tensor]:
        """Milliseconds of a step, and the outputs."""
        inputs = torch.tensor([_PROMPT] * rows, device=self.model.device)
        start = time.perf_counter()
        out = self.model.generate(
            inputs=inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=self.options.steps,
            do_sample=False,
            pad_token_id=self.vocabulary.stop_token_ids[0],
            **_FORWARD[forward],
            **keywords,
        )
        outputs = out[:, len(_PROMPT) :].cpu()
        return (time.perf_counter() - start) * 1e3 / outputs.shape[1], outputs

    def _check(self, spec: OutputSpec, outputs: Tensor) -> None:
        """Raises RequestError if a fresh matcher refuses a token of an output."""
        for row, tokens in enumerate(outputs.tolist()):
            place = refused_at(self.compiler, spec, tokens)
            if place is not None:
                what = f"a fresh matcher refuses token {tokens[place]}"
                raise RequestError(what, where=f"row {row}, token {place}")


if __name__ == "__main__":
    main()
