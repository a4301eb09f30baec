"""The reference loop and transformers' `generate` with what engines and others have:
for maintainers.

    python -m benchmarks.models loop --device cuda --graph --shape qwen3-0.6b --rows 8,64
    python -m benchmarks.models generate --device cuda --shape qwen3-0.6b --rows 8,64

The steps of a run are timed one by one. `loop --graph`: the model's decode step is one
CUDA graph. `generate` runs eager and with a static cache, next to xgrammar's own
processor (`xgrammar_ms`). Prints JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.generate import FORWARDS, bench_transformers
from benchmarks.loop import bench_loop
from benchmarks.measuring import PROMPT, WARM_UP
from guided_plugin.bench import SCHEMAS, Plan
from guided_plugin.cli.loading import load_model, load_tokenizer, model_vocabulary
from guided_plugin.demo import MODEL_DIR
from guided_plugin.grammar.vocabulary import Vocabulary

_GRAPH_WARM_UP = 3
# hidden, layers, intermediate, heads, key-value heads
SHAPES = {"qwen3-0.6b": (1024, 28, 3072, 16, 8), "qwen3-1.7b": (2048, 28, 6144, 16, 8)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print; write where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["loop", "generate"])
    parser.add_argument(
        "--model",
        type=Path,
        default=MODEL_DIR,
        help="folder of a model with its tokenizer",
    )
    parser.add_argument(
        "--shape", choices=SHAPES, help="random weights of this shape instead"
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        default=MODEL_DIR,
        help="tokenizer folder to go with --shape",
    )
    parser.add_argument(
        "--width",
        type=int,
        default=0,
        help="logits width of --shape; 0: its tokenizer's",
    )
    parser.add_argument(
        "--rows", default="8,64", help="batch sizes, separated by commas"
    )
    parser.add_argument(
        "--schema", default="plain", help="plain, maxlength, separated by commas"
    )
    parser.add_argument("--steps", type=int, default=64, help="measured steps a run")
    parser.add_argument(
        "--repetitions", type=int, default=4, help="measured runs a figure"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument(
        "--graph",
        action="store_true",
        help="loop: run the decode step as one CUDA graph",
    )
    parser.add_argument(
        "--forward", default=",".join(FORWARDS), help="generate: how the model runs"
    )
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    options = parser.parse_args(arguments)
    model, vocabulary, name = model_of(options)
    schemas = options.schema.split(",")
    rows = [int(count) for count in options.rows.split(",")]
    plan = Plan(rows, schemas, options.steps, options.repetitions)
    if options.what == "loop":
        graph = (
            partial(GraphedModel, model, length=PROMPT + WARM_UP + options.steps)
            if options.graph
            else None
        )
        result = bench_loop(model, vocabulary, plan, model_for=graph)
    else:
        others = {"xgrammar": xgrammar_keywords(model, vocabulary, schemas)}
        forwards = options.forward.split(",")
        result = bench_transformers(
            model, vocabulary, plan, forwards=forwards, others=others
        )
    text = json.dumps({**result, "model": name}, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


def model_of(options: argparse.Namespace) -> tuple[Any, Vocabulary, str]:
    """The model that was asked for, with its vocabulary and what the JSON calls it."""
    if options.shape is None:
        loaded = load_model(options.model, options.device)
        name = "demo" if options.model == MODEL_DIR else options.model.resolve().name
        return loaded, model_vocabulary(load_tokenizer(options.model), loaded), name
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(options.tokenizer))
    width = options.width or vocabulary.size
    return random_model(options.shape, width, options.device), vocabulary, options.shape


def xgrammar_keywords(
    model: Any, vocabulary: Vocabulary, schemas: Sequence[str]
) -> Callable[[str], dict[str, Any]]:
    """What `generate` takes to be guided by xgrammar's own processor, with the schemas
    as they are."""
    import xgrammar
    import xgrammar.contrib.hf

    info = xgrammar.TokenizerInfo(
        list(vocabulary.text_tokens),
        xgrammar.VocabType.RAW,
        vocab_size=model.get_output_embeddings().weight.shape[0],
        stop_token_ids=list(vocabulary.stop_token_ids),
    )
    compiler = xgrammar.GrammarCompiler(info)
    grammars = {
        name: compiler.compile_json_schema(
            json.dumps(SCHEMAS[name]), any_whitespace=False
        )
        for name in schemas
    }
    # One for each call, as it requires.
    return lambda name: {
        "logits_processor": [xgrammar.contrib.hf.LogitsProcessor(grammars[name])]
    }


def random_model(shape: str, width: int, device: str) -> Any:
    """A model of a known shape with random weights and any output width."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    hidden, layers, intermediate, heads, kv_heads = SHAPES[shape]
    config = Qwen3Config(
        vocab_size=width,
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=128,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    with torch.device(device):
        model: Any = Qwen3ForCausalLM(config)
    return model.to(dtype).eval()


class GraphedModel:
    """Takes a model's place in a `DecodeLoop`, for batches of one size and length."""

    def __init__(self, model: Any, rows: int, length: int) -> None:
        from transformers import StaticCache

        self._model = model
        self.config = model.config
        self.device = model.device
        self._cache: Any = StaticCache(config=model.config, max_cache_len=length)
        self._length = 0
        device = model.device
        self._ids = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self._positions = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        # [rows, 1, 1, length]: which positions of the cache a row attends to
        self._visible = torch.zeros(rows, 1, 1, length, dtype=torch.bool, device=device)
        self._graph = torch.cuda.CUDAGraph()
        self._logits = self._captured(rows)

    def __call__(
        self,
        *,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        past_key_values: Any = None,
        **options: Any,
    ) -> Any:
        """The model's own call; the cache is this object, and only passed through."""
        if past_key_values is None:
            return self._prompt(input_ids, attention_mask, position_ids)
        self._ids.copy_(input_ids)
        self._positions.copy_(position_ids)
        self._visible[..., self._length].fill_(True)
        self._length += 1
        self._graph.replay()
        return SimpleNamespace(logits=self._logits, past_key_values=self)

    def get_input_embeddings(self) -> Any:
        """The model's own, which say what tokens it has."""
        return self._model.get_input_embeddings()

    def get_output_embeddings(self) -> Any:
        """The model's own, whose width a vocabulary is checked against."""
        return self._model.get_output_embeddings()

    def _prompt(self, ids: Tensor, attention: Tensor, positions: Tensor) -> Any:
        self._rewind()
        self._length = ids.shape[1]
        self._visible.zero_()
        self._visible[:, 0, 0, : self._length] = attention.bool()
        out = self._model(
            input_ids=ids,
            attention_mask=attention,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return SimpleNamespace(logits=out.logits, past_key_values=self)

    def _step(self) -> Tensor:
        out = self._model(
            input_ids=self._ids,
            attention_mask=self._visible,
            position_ids=self._positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits  # type: ignore[no-any-return]

    @torch.no_grad()
    def _captured(self, rows: int) -> Tensor:
        """Capture the step, after a warm-up that writes to the cache; it is rewound
        before each run."""
        first = torch.zeros(rows, 2, dtype=torch.int64, device=self.device)
        self._prompt(first, torch.ones_like(first), first)
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(_GRAPH_WARM_UP):
                self._step()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        with torch.cuda.graph(self._graph):
            return self._step()

    def _rewind(self) -> None:
        for layer in self._cache.layers:
            if layer.is_initialized:
                # In place: the graph was captured with this memory.
                layer.cumulative_length.zero_()


if __name__ == "__main__":
    main()
