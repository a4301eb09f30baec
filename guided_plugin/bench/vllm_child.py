"""One vLLM engine of `bench vllm`, in a process of its own: one runner, with or without the plugin.

    python -m guided_plugin.bench.vllm_child OPTIONS.json RESULT.json

Imports vLLM. What decides on the runner and the plugin is in the environment that the parent sets.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from guided_plugin.bench.environment import environment
from guided_plugin.bench.schemas import SCHEMAS
from guided_plugin.config import GuidedConfig
from guided_plugin.grammar.compiler import GrammarCompiler
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hosts.vllm_common import METRICS
from guided_plugin.spec import OutputSpec

__all__ = ["main"]

_FIRST_TOKENS = 10


def main(options_path: str, result_path: str) -> None:
    """Measure what the options ask for."""
    options = json.loads(Path(options_path).read_text())
    bench = _Bench(options)
    figures = []
    for rows in options["rows"]:
        for way in options["ways"]:
            for schema in ["none"] if way == "unguided" else options["schemas"]:
                figures.append(bench.figure(rows, way, schema))
                print(json.dumps(figures[-1]), flush=True)
    result = {
        "environment": environment(options["device"]),
        "figures": figures,
        "first_token_ms": bench.first_tokens(),
    }
    if options["plugin"]:
        result["metrics"] = bench.llm.collective_rpc(METRICS)
    Path(result_path).write_text(json.dumps(result))


class _Bench:
    def __init__(self, options: dict[str, Any]) -> None:
        from vllm import LLM

        self.options = options
        arguments = dict(options["engine"])
        if options["plugin"]:
            from guided_plugin.vllm import GuidedLogitsProcessor

            arguments["logits_processors"] = [GuidedLogitsProcessor]
        self.llm: Any = LLM(
            options["model"],
            tokenizer=options["tokenizer"],
            max_num_seqs=max(options["rows"]),
            max_model_len=options["steps"] + 64,
            enable_prefix_caching=False,
            **arguments,
        )
        self.vocabulary = Vocabulary.from_tokenizer(self.llm.get_tokenizer())
        self.compiler = GrammarCompiler(self.vocabulary, config=GuidedConfig(isolate_compiles=False))
        self.random = random.Random(1)

    def figure(self, rows: int, way: str, schema: str) -> dict[str, Any]:
        """Milliseconds a step: the median over the repetitions after the first."""
        steps = self.options["steps"]
        params = self._params(way, schema, max_tokens=steps, ignore_eos=True, temperature=1.0)
        times, outputs = [], []
        for _ in range(self.options["repetitions"] + 1):
            prompts = [self._prompt() for _ in range(rows)]
            start = time.perf_counter()
            outputs = self.llm.generate(prompts, params, use_tqdm=False)
            times.append((time.perf_counter() - start) / steps * 1e3)
        guided = way in ("extra_args", "take_over")
        wrong = sum(not self._allowed(schema, output) for output in outputs) if guided else 0
        median = statistics.median(times[1:])
        return {
            "rows": rows,
            "way": way,
            "schema": schema,
            "ms_per_step": round(median, 4),
            "tokens_per_second": round(rows / median * 1e3),
            "all_ms": [round(value, 4) for value in times],
            "wrong_outputs": wrong,
        }

    def first_tokens(self) -> dict[str, float]:
        """Milliseconds until a lone request has its first token: unguided, and with schemas never seen."""
        times: dict[str, list[float]] = {}
        for way in self.options["ways"]:
            for number in range(_FIRST_TOKENS):
                schema = {
                    "type": "object",
                    "properties": {f"{way}_{number}_{i}": {"type": "string"} for i in range(8)},
                }
                params = self._params(way, schema, max_tokens=1, temperature=1.0)
                start = time.perf_counter()
                self.llm.generate([self._prompt()], params, use_tqdm=False)
                times.setdefault(way, []).append((time.perf_counter() - start) * 1e3)
        return {way: round(statistics.median(values), 3) for way, values in times.items()}

    def _params(self, way: str, schema: Any, **options: Any) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        document = SCHEMAS[schema] if isinstance(schema, str) and schema in SCHEMAS else schema
        if way == "unguided":
            return SamplingParams(**options)
        if way == "extra_args":
            return SamplingParams(extra_args={"guided": {"json_schema": document}}, **options)
        # Compact for both, so that the same language is measured.
        outputs = StructuredOutputsParams(json=document, disable_any_whitespace=True)
        return SamplingParams(structured_outputs=outputs, **options)

    def _prompt(self) -> dict[str, list[int]]:
        return {"prompt_token_ids": [self.random.randrange(100, 1000) for _ in range(8)]}

    def _allowed(self, schema: str, output: Any) -> bool:
        grammar = self.compiler.compile(OutputSpec.json_schema(SCHEMAS[schema]))
        matcher = self.compiler.backend(grammar.backend).start(grammar, self.vocabulary.stop_token_ids)
        return all(matcher.accept(token) for token in output.outputs[0].token_ids)


if __name__ == "__main__":
    main(*sys.argv[1:3])
