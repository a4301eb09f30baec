"""The reference loop and transformers' `generate` with what engines and others have:
for maintainers.

    python -m benchmarks.models loop --device cuda --graph --shape qwen3-0.6b --rows 8,64
    python -m benchmarks.models generate --device cuda --shape qwen3-0.6b --rows 8,64

`loop` runs the model as it is, with `--graph` its decode step as one CUDA graph;
`generate` runs eager and with a static cache, next to xgrammar's own processor
(`xgrammar_ms`). Prints JSON.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import Json, Options, counts, given, head, names, write
from benchmarks.turns import SCHEMAS, Plan, bench_loop, check_outputs
from guided_plugin.cli.loading import load_model, load_tokenizer, model_vocabulary
from guided_plugin.demo import MODEL_DIR
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hosts.transformers.guide import Guide
from guided_plugin.spec import OutputSpec

_GRAPH_WARM_UP = 3
_GENERATE_WARM_UP = 2
"""Runs: with a static cache the first compiles, the second captures."""
_PROMPT = [1, 2, 3]
# hidden, layers, intermediate, heads, key-value heads
SHAPES = {
    "qwen3-0.6b": (1024, 28, 3072, 16, 8),
    "qwen3-1.7b": (2048, 28, 6144, 16, 8),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print; write where asked."""
    parser = Options(__doc__)
    parser.add_argument("what", choices=["loop", "generate"])
    parser.add("--model", MODEL_DIR, "folder of a model with its tokenizer", Path)
    shape = "random weights of this shape instead"
    parser.add_argument("--shape", choices=SHAPES, help=shape)
    parser.add("--tokenizer", MODEL_DIR, "tokenizer folder to go with --shape", Path)
    parser.add("--rows", [8, 64], "batch sizes, separated by commas", counts)
    parser.add("--schema", ["plain"], "plain, maxlength", names)
    parser.add("--steps", 64, "steps a run")
    parser.add("--repetitions", 4, "measured runs a figure")
    parser.add("--device", "cpu", "cpu or cuda")
    graph = "loop: run the decode step as one CUDA graph"
    parser.add_argument("--graph", action="store_true", help=graph)
    parser.add("--forward", ["eager", "static"], "generate: how the model runs", names)
    parser.out()
    options = parser.parse_args(arguments)
    model, vocabulary = model_of(options)
    result = {
        **head("benchmarks.models", given(arguments), options.device),
        "benchmark": options.what,
        "model": options.shape or options.model.resolve().name,
        "vocabulary": vocabulary.size,
        "steps": options.steps,
        "graph": options.graph,
        "figures": [],
    }
    plan = partial(
        Plan,
        schemas=options.schema,
        steps=options.steps,
    )
    plan = partial(plan, repetitions=options.repetitions)
    if options.what == "loop":
        length = len(_PROMPT) + options.steps
        for rows in options.rows:
            own = GraphedModel(model, rows, length) if options.graph else model
            result["figures"] += bench_loop(
                own,
                vocabulary,
                plan([rows]),
            )["figures"]
    else:
        for forward in options.forward:
            for one in generated(
                model,
                vocabulary,
                plan(options.rows),
                forward,
            ):
                result["figures"].append({"forward": forward, **one})
    print(json.dumps(result, indent=1))
    write(result, options.out)


def model_of(options: Any) -> tuple[Any, Vocabulary]:
    """The model that was asked for, with its vocabulary."""
    if options.shape is None:
        loaded = load_model(options.model, options.device)
        return loaded, model_vocabulary(load_tokenizer(options.model), loaded)
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(options.tokenizer))
    return random_model(
        options.shape,
        vocabulary.size,
        options.device,
    ), vocabulary


def generated(
    model: Any, vocabulary: Vocabulary, plan: Plan, forward: str
) -> list[Json]:
    """Figures of `generate`: unguided, guided, and guided by xgrammar, in turns."""
    static = {"cache_implementation": "static"} if forward == "static" else {}
    xgrammar = xgrammar_keywords(model, vocabulary, plan.schemas)

    def run(rows: int, keywords: Json) -> tuple[float, Tensor]:
        inputs = torch.tensor([_PROMPT] * rows, device=model.device)
        start = time.perf_counter()
        out = model.generate(
            inputs=inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=plan.steps,
            do_sample=False,
            pad_token_id=vocabulary.stop_token_ids[0],
            **static,
            **keywords,
        )
        outputs = out[:, len(_PROMPT) :].cpu()
        return (time.perf_counter() - start) * 1e3 / outputs.shape[1], outputs

    def case(rows: int, name: str) -> tuple[Any, Callable[[], Json]]:
        # Another batch size is another graph: without this, compiled ones pile up.
        torch.compiler.reset()
        spec = OutputSpec.json_schema(SCHEMAS[name])
        checked: list[Tensor] = []

        def guided() -> float:
            kwargs = guide.generate_kwargs(spec)
            with contextlib.closing(kwargs.call):
                milliseconds, outputs = run(rows, dict(kwargs))
                for error in kwargs.errors.values():
                    raise error
            checked[:] = [outputs]
            return milliseconds

        ways = {
            "unguided": lambda: run(rows, {})[0],
            "guided": guided,
            "xgrammar": lambda: run(rows, xgrammar(name))[0],
        }

        def backend() -> Json:
            return {
                "backend": check_outputs(
                    vocabulary,
                    spec,
                    checked[0].tolist(),
                )
            }

        return ways, backend

    with Guide(vocabulary, model=model) as guide:
        return plan.figures(case, warm_ups=_GENERATE_WARM_UP)


def xgrammar_keywords(
    model: Any, vocabulary: Vocabulary, schemas: Sequence[str]
) -> Callable[[str], Json]:
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
        self._ids = torch.zeros(
            rows,
            1,
            dtype=torch.int64,
            device=device,
        )
        self._positions = torch.zeros(
            rows,
            1,
            dtype=torch.int64,
            device=device,
        )
        # [rows, 1, 1, length]: which positions of the cache a row attends to
        self._visible = torch.zeros(
            rows,
            1,
            1,
            length,
            dtype=torch.bool,
            device=device,
        )
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
        first = torch.zeros(
            rows,
            2,
            dtype=torch.int64,
            device=self.device,
        )
        self._prompt(
            first,
            torch.ones_like(first),
            first,
        )
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
