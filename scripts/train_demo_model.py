"""Train the tiny language model that the demo ships.

The script makes its own text (`demo_text.py`), trains a byte-level BPE tokenizer and a
small Llama-style model on it, and writes both to one folder:

    python scripts/train_demo_model.py
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import math
import platform
import random
import shlex
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch
import transformers
from demo_text import corpus
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

BOS = "<|bos|>"
EOS = "<|eos|>"
PAD = "<|pad|>"
SPECIAL_TOKENS = (BOS, EOS, PAD)
CONTEXT = 512
IGNORED_LABEL = -100
BATCHES_SORTED_TOGETHER = 50
HELD_OUT_SEED_OFFSET = 1_000_003
DEFAULT_OUT = (
    Path(__file__).resolve().parent.parent / "guided_plugin" / "demo" / "model"
)


def train_tokenizer(documents: Iterable[str], vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    # A space joins only a following word, never punctuation: a prompt that ends in a
    # space then tokenizes exactly as it does in training, where "{" follows. A colon or
    # comma ends its token, so compact and spaced JSON share every token but the spaces,
    # and a grammar that forbids those does not lead the model astray. Digits stay
    # single tokens.
    pattern = Regex(r" ?\p{L}+|\p{N}|[^\s\p{L}\p{N}:,]*[:,]|[^\s\p{L}\p{N}:,]+|\s")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, token_id(tokenizer, BOS))]
    )
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer has no token {token!r}")
    return found


def save_tokenizer(tokenizer: Tokenizer, out: Path) -> None:
    compact = json.dumps(
        json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")
    )
    (out / "tokenizer.json").write_text(compact, encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
    }
    (out / "tokenizer_config.json").write_text(
        json.dumps(settings, indent=2) + "\n", encoding="utf-8"
    )


@dataclass(frozen=True)
class Plan:
    """How much to train."""

    steps: int
    batch: int
    tokenizer_documents: int
    vocab_size: int
    held_out_batches: int
    learning_rate: float = 3e-3


FULL = Plan(
    steps=2000, batch=16, tokenizer_documents=8000, vocab_size=1344, held_out_batches=8
)
QUICK = Plan(
    steps=3, batch=8, tokenizer_documents=200, vocab_size=512, held_out_batches=1
)


def build_model(tokenizer: Tokenizer) -> LlamaForCausalLM:
    # A head size of 64 is one that every common attention kernel has.
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=160,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=token_id(tokenizer, BOS),
        eos_token_id=token_id(tokenizer, EOS),
        pad_token_id=token_id(tokenizer, PAD),
    )
    return LlamaForCausalLM(config)


def batches(seed: int, tokenizer: Tokenizer, size: int) -> Iterator[torch.Tensor]:
    """Batches of one document a row, so that, as in use, a record never sees a
    stranger's.

    Documents of like length go together, which keeps the padding small.
    """
    source = corpus(seed)
    rng = random.Random(seed)
    eos = token_id(tokenizer, EOS)
    while True:
        encoded = tokenizer.encode_batch(
            list(itertools.islice(source, size * BATCHES_SORTED_TOGETHER))
        )
        rows = sorted(([*encoding.ids, eos][:CONTEXT] for encoding in encoded), key=len)
        groups = [rows[at : at + size] for at in range(0, len(rows), size)]
        rng.shuffle(groups)
        for group in groups:
            yield padded(group, token_id(tokenizer, PAD))


def padded(rows: list[list[int]], pad: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [pad] * (width - len(row)) for row in rows])


def batch_loss(model: LlamaForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    labels = ids.masked_fill(ids == model.config.pad_token_id, IGNORED_LABEL)
    loss: torch.Tensor | None = model(
        input_ids=ids, labels=labels, use_cache=False
    ).loss
    if loss is None:
        raise RuntimeError("the model returned no loss for a batch with labels")
    return loss


@torch.inference_mode()
def mean_loss(
    model: LlamaForCausalLM, tokenizer: Tokenizer, seed: int, count: int, size: int = 32
) -> float:
    """Mean loss per token, in nats, on text made from ``seed``."""
    model.eval()
    source = itertools.islice(batches(seed, tokenizer, size), count)
    losses = [batch_loss(model, ids.to(model.device)).item() for ids in source]
    return sum(losses) / len(losses)


def rate_at(step: int, steps: int) -> float:
    """Share of the peak learning rate: a short linear rise, then a cosine down to a
    twentieth."""
    rise = max(1, steps // 20)
    if step < rise:
        return (step + 1) / rise
    progress = (step - rise) / max(1, steps - rise)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress))


def optimise(
    model: LlamaForCausalLM, source: Iterator[torch.Tensor], plan: Plan
) -> float:
    """Train in place; returns the last running training loss."""
    optimizer = torch.optim.AdamW(
        model.parameters(), plan.learning_rate, betas=(0.9, 0.98), weight_decay=0.05
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: rate_at(step, plan.steps)
    )
    model.train()
    running = float("nan")
    for step, ids in enumerate(itertools.islice(source, plan.steps), 1):
        loss = batch_loss(model, ids.to(model.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        value = loss.item()
        running = value if math.isnan(running) else 0.95 * running + 0.05 * value
        if step % 50 == 0:
            print(f"{step} of {plan.steps} steps, loss {running:.3f}", flush=True)
    return running


CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---

# guided-plugin demo model

A Llama-style language model of {parameters:,} parameters with a byte-level BPE tokenizer of
{vocab:,} tokens. It exists to show guided decoding next to unguided decoding on a machine without a
GPU or a network; it knows nothing beyond that.

It was trained on text that the training script makes itself: people, orders and log lines, as JSON
in several styles and as prose. No other data went in. All names, addresses and orders are invented,
and the e-mail addresses are under `example.com`, `example.net` and `example.org`.

| | |
|---|---|
| Command | `{command}` |
| Seed | {seed} |
| Steps | {steps} of {batch} documents |
| Device | {device}, {threads} CPU threads |
| Date | {date} |
| Training time | {minutes:.1f} min |
| Final training loss | {train_loss:.4f} nats per token (running mean) |
| Held-out loss | {held_out_loss:.4f} nats per token, on text from another seed |
| Versions | Python {python}, torch {torch}, transformers {transformers}, tokenizers {tokenizers} |
| Licence | Apache-2.0 |

| File | Bytes |
|---|---:|
{files}

On a CPU the same seed, thread count and versions give the same weights.
"""


@dataclass(frozen=True)
class Outcome:
    """What a run of the training came to."""

    train_loss: float
    held_out_loss: float
    seconds: float


def save_model(model: LlamaForCausalLM, out: Path) -> None:
    model.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
    )
    transformers.utils.logging.disable_progress_bar()
    model.cpu().to(torch.bfloat16).save_pretrained(out)
    # Some versions write the weights readable by their owner only, which a wheel would
    # carry along.
    (out / "model.safetensors").chmod(0o644)


def write_card(
    model: LlamaForCausalLM, args: argparse.Namespace, plan: Plan, outcome: Outcome
) -> None:
    out: Path = args.out
    files = sorted(
        path for path in out.iterdir() if path.suffix in (".json", ".safetensors")
    )
    card = CARD.format(
        parameters=model.num_parameters(),
        vocab=model.config.vocab_size,
        command=args.command,
        seed=args.seed,
        steps=plan.steps,
        batch=plan.batch,
        device=args.device,
        threads=args.threads,
        date=datetime.date.today().isoformat(),
        minutes=outcome.seconds / 60,
        train_loss=outcome.train_loss,
        held_out_loss=outcome.held_out_loss,
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=transformers.__version__,
        tokenizers=tokenizers.__version__,
        files="\n".join(
            f"| `{path.name}` | {path.stat().st_size:,} |" for path in files
        ),
    )
    (out / "README.md").write_text(card, encoding="utf-8")


def run(args: argparse.Namespace) -> Outcome:
    plan = plan_from(args)
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    sample = itertools.islice(corpus(args.seed), plan.tokenizer_documents)
    tokenizer = train_tokenizer(sample, plan.vocab_size)
    model = build_model(tokenizer).to(args.device)
    print(
        f"{model.num_parameters():,} parameters, {tokenizer.get_vocab_size():,} tokens"
    )
    train_loss = optimise(model, batches(args.seed, tokenizer, plan.batch), plan)
    held_out_seed = args.seed + HELD_OUT_SEED_OFFSET
    held_out_loss = mean_loss(model, tokenizer, held_out_seed, plan.held_out_batches)
    outcome = Outcome(train_loss, held_out_loss, time.monotonic() - started)
    save_tokenizer(tokenizer, args.out)
    save_model(model, args.out)
    write_card(model, args, plan, outcome)
    return outcome


def plan_from(args: argparse.Namespace) -> Plan:
    plan = QUICK if args.quick else FULL
    return plan if args.steps is None else Plan(**{**vars(plan), "steps": args.steps})


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train the tiny language model that the demo ships."
    )
    parser.add_argument(
        "--steps", type=positive, help=f"optimiser steps (default: {FULL.steps})"
    )
    parser.add_argument(
        "--seed", type=int, default=7, help="seed of text and weights (default: 7)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=DEFAULT_OUT,
        help="output folder (default: the package)",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--threads", type=positive, default=2, help="CPU threads (default: 2)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few steps only, to try the script out"
    )
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: this torch finds no CUDA device")
    args.command = shlex.join(["python", "scripts/train_demo_model.py", *argv])
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(sys.argv[1:] if argv is None else argv)
    outcome = run(args)
    print(
        f"training loss {outcome.train_loss:.4f}, held-out loss {outcome.held_out_loss:.4f},"
        f" {outcome.seconds:.0f} s; written to {args.out}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
