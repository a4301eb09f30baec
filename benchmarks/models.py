"""transformers' `generate`, unguided and guided, in turns.

    python -m benchmarks.models --device cuda --shape qwen3-0.6b --rows 8,64

It runs eager and with a static cache, next to xgrammar's own processor (`xgrammar_ms`).
Prints JSON.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.harness import Json, Options, counts, given, head, names, write
from benchmarks.turns import SCHEMAS, Plan, check_outputs
from guided_plugin.cli.loading import load_tokenizer
from guided_plugin.demo import MODEL_DIR
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hosts.transformers.guide import Guide
from guided_plugin.spec import OutputSpec

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
    parser.add("--model", MODEL_DIR, "folder of a model with its tokenizer", Path)
    shape = "random weights of this shape instead"
    parser.add_argument("--shape", choices=SHAPES, help=shape)
    parser.add("--tokenizer", MODEL_DIR, "tokenizer folder to go with --shape", Path)
    parser.add("--rows", [8, 64], "batch sizes, separated by commas", counts)
    parser.add("--schema", ["plain"], "plain, maxlength", names)
    parser.add("--steps", 64, "steps a run")
    parser.add("--repetitions", 4, "measured runs a figure")
    parser.add("--device", "cpu", "cpu or cuda")
    parser.add("--forward", ["eager", "static"], "how the model runs", names)
    parser.out()
    options = parser.parse_args(arguments)
    model, vocabulary = model_of(options)
    result = {
        **head("benchmarks.models", given(arguments), options.device),
        "benchmark": "generate",
        "model": options.shape or options.model.resolve().name,
        "vocabulary": vocabulary.size,
        "steps": options.steps,
        "figures": [],
    }
    plan = Plan(
        options.rows,
        options.schema,
        steps=options.steps,
        repetitions=options.repetitions,
    )
    for forward in options.forward:
        figures = generated(model, vocabulary, plan, forward)
        result["figures"] += [{"forward": forward, **one} for one in figures]
    print(json.dumps(result, indent=1))
    write(result, options.out)


def model_of(options: Any) -> tuple[Any, Vocabulary]:
    """The model that was asked for, with its vocabulary."""
    if options.shape is None:
        loaded = AutoModelForCausalLM.from_pretrained(
            options.model,
            local_files_only=True,
            dtype=torch.float32 if options.device == "cpu" else torch.bfloat16,
        )
        vocabulary = Vocabulary.from_tokenizer(
            load_tokenizer(options.model),
            stop_token_ids=loaded.generation_config.eos_token_id,
        )
        return loaded.to(options.device).eval(), vocabulary
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


if __name__ == "__main__":
    main()
