"""Whether vLLM answers the same with `jump_forward` and without it.

    python -m benchmarks.replay.exact --sample SAMPLE --requests 2000 --draws 4000 --out FILE.json.gz

Two engines with the same model, each in a process of its own. Greedy: each request asks
for a schema of the sample, and the tokens of both engines are compared. `again` is the
engine without drafts, asked in the reverse order: where that differs, arithmetic in
other batches differs (`VLLM_BATCH_INVARIANT=1` avoids it). Drawn: outputs of a choice
whose texts have several spellings each, against the model's own probabilities under the
masks; chi-square, as so many standard deviations of a normal distribution. Exit code 1:
more outputs differ than `again`, or a deviation above 4.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.engines import run_child
from benchmarks.measuring import question_in
from benchmarks.replay.__main__ import WAYS, write
from benchmarks.samples import served_schemas
from guided_plugin.bench import environment
from guided_plugin.cli.loading import load_vocabulary
from guided_plugin.cli.results import check_out, progress, show_table
from guided_plugin.demo import MODEL_DIR
from guided_plugin.hosts.vllm.common import GUIDED, METRICS

_TEXTS = ("name", "namely", "nature")
"""Their first bytes are forced."""
_PROMPT = [5, 6, 7]
_WAYS = ("guided", "jump")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if len(given) == 2 and not given[0].startswith("-"):
        return _child(*map(Path, given))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=str(MODEL_DIR), help="folder of a model")
    parser.add_argument(
        "--sample",
        type=Path,
        required=True,
        help="a folder or a tar archive of MaskBench",
    )
    parser.add_argument("--requests", type=int, default=2000, help="greedy ones")
    parser.add_argument("--schemas", type=int, default=200, help="so many of them")
    parser.add_argument(
        "--draws", type=int, default=4000, help="outputs at temperature 1"
    )
    parser.add_argument("--tokens", type=int, default=64, help="of an output at most")
    parser.add_argument(
        "--engine",
        type=json.loads,
        default={},
        help="more arguments of the engine, as JSON",
    )
    parser.add_argument(
        "--limit", type=float, default=300.0, help="seconds of an engine"
    )
    parser.add_argument("--device", default="cuda", help="cpu or cuda")
    parser.add_argument(
        "--out", type=Path, help="also write the JSON here, compressed: FILE.json.gz"
    )
    options = parser.parse_args(given)
    check_out(options.out, "--out")
    asked = {
        name: getattr(options, name)
        for name in ("model", "requests", "draws", "tokens", "engine")
    }
    asked["schemas"] = served_schemas(options.sample, options.schemas)
    answers = {}
    with progress("exact", len(_WAYS)) as advance:
        for way in _WAYS:
            runner = str(int(options.device != "cpu"))
            chosen = {
                "VLLM_USE_V2_MODEL_RUNNER": runner,
                "GUIDED_PLUGIN": json.dumps(WAYS[way]),
            }
            where = f"benchmarks.replay.exact, {way}"
            answers[way] = run_child(
                "benchmarks.replay.exact", asked, chosen, options.limit, where
            )
            advance(f"exact, {way}")
    result = _compared(answers, _probabilities(options.model))
    known = environment(options.device)
    invariant = os.environ.get("VLLM_BATCH_INVARIANT", "0")
    command = "python -m benchmarks.replay.exact " + shlex.join(given)
    head = {
        "command": command,
        "date": known["date"],
        "benchmark": "exact",
        "environment": known,
    }
    write(
        {
            **head,
            "batch_invariant": invariant,
            "schemas": len(asked["schemas"]),
            **result,
        },
        options.out,
    )
    show_table(
        [result], tuple((name, f"{{{name}}}") for name in result if name != "worker")
    )
    deviations = (result["deviation_guided"], result["deviation_jump"])
    return int(
        result["different"] > result["different_again"] or max(map(abs, deviations)) > 4
    )


def _compared(answers: dict[str, Any], expected: dict[str, float]) -> dict[str, Any]:
    plain = answers["guided"]
    jump = answers["jump"]
    return {
        "greedy": len(plain["greedy"]),
        "tokens": sum(map(len, plain["greedy"])),
        "different": sum(
            one != other
            for one, other in zip(plain["greedy"], jump["greedy"], strict=True)
        ),
        "different_again": sum(
            one != other
            for one, other in zip(plain["greedy"], plain["again"], strict=True)
        ),
        "taken": jump["worker"]["taken"],
        "spellings": len(expected),
        **{
            f"deviation_{way}": round(_deviation(answers[way]["drawn"], expected), 2)
            for way in _WAYS
        },
        "worker": jump["worker"],
    }


def _deviation(counts: dict[str, int], expected: dict[str, float]) -> float:
    """By Wilson and Hilferty; what is expected less than five times counts as one kind
    of output."""
    if not set(counts) <= set(expected):
        return float("inf")
    total = sum(counts.values())
    due = {key: share * total for key, share in expected.items() if share * total >= 5}
    pairs = [(counts.get(key, 0), number) for key, number in due.items()]
    rest = total - sum(due.values())
    if rest >= 5:
        pairs.append((total - sum(count for count, _ in pairs), rest))
    statistic = sum((count - number) ** 2 / number for count, number in pairs)
    freedom = len(pairs) - 1
    variance = 2 / (9 * freedom)
    return float(((statistic / freedom) ** (1 / 3) - 1 + variance) / variance**0.5)


def _probabilities(model_dir: str) -> dict[str, float]:
    """Of each output of the choice: the model's, over the tokens with which a text can
    go on."""
    import torch
    from transformers import AutoModelForCausalLM

    # As the engine has it.
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16)
    model = model.float().eval()
    vocabulary = load_vocabulary(Path(model_dir))
    found = {}
    texts = [text.encode() for text in _TEXTS]
    stop = vocabulary.stop_token_ids[0]
    usable = [
        (number, token) for number, token in enumerate(vocabulary.text_tokens) if token
    ]

    @torch.inference_mode()
    def follow(tokens: list[int], text: bytes, chance: float) -> None:
        allowed = [
            (i, t)
            for i, t in usable
            if any(each.startswith(text + t) for each in texts)
        ]
        numbers = [i for i, _ in allowed] + [stop] * (text in texts)
        logits = (
            model(input_ids=torch.tensor([[*_PROMPT, *tokens]])).logits[0, -1].double()
        )
        for number, share in zip(
            numbers, logits[numbers].softmax(0).tolist(), strict=True
        ):
            if number == stop:
                found[json.dumps([*tokens, stop])] = chance * share
            else:
                follow([*tokens, number], text + dict(allowed)[number], chance * share)

    follow([], b"", 1.0)
    return found


def _child(question: Path, answer: Path) -> int:
    from vllm import LLM, SamplingParams

    options = question_in(question)
    # Of a small model as many blocks as memory holds would be millions of Python
    # objects.
    engine = {"max_num_seqs": 64, "num_gpu_blocks_override": 4096, **options["engine"]}
    llm: Any = LLM(options["model"], enable_prefix_caching=False, **engine)

    def params(spec: dict[str, Any], **changes: Any) -> Any:
        return SamplingParams(
            max_tokens=options["tokens"],
            detokenize=False,
            extra_args={GUIDED: spec},
            **changes,
        )

    def outputs(prompts: list[list[int]], asked: list[Any]) -> list[list[int]]:
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        found = llm.generate(given, asked, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in found]

    schemas = options["schemas"]
    count = options["requests"]
    greedy = [
        params({"json_schema": schemas[i % len(schemas)]}, temperature=0.0)
        for i in range(count)
    ]
    prompts = [[2 + i % 200, 2 + i // 200] for i in range(count)]
    drawn = [
        params({"choice": list(_TEXTS)}, temperature=1.0, seed=i)
        for i in range(options["draws"])
    ]
    result = {
        "greedy": outputs(prompts, greedy),
        "again": outputs(prompts[::-1], greedy[::-1])[::-1],
        "drawn": collections.Counter(
            map(json.dumps, outputs([_PROMPT] * len(drawn), drawn))
        ),
        "worker": llm.collective_rpc(METRICS)[0][0]["worker"],
    }
    answer.write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
