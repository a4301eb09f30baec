"""Train the tiny language model that the demo ships.

The script makes its own text (people, orders and log lines, as JSON and as prose), trains a
byte-level BPE tokenizer and a small Llama-style model on it, and writes both to one folder:

    python scripts/train_demo_model.py

The text is deliberately untidy. The same record turns up as compact JSON, as a Python dict, with a
trailing comment, broken off, or with values of the wrong type, so the model writes convincing
records of which few would satisfy a given schema; compact JSON is common enough for a schema-guided
completion to stay close to what the model has seen.
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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
SPECIAL_TOKENS = (BOS, EOS, PAD)
CONTEXT = 512
IGNORED_LABEL = -100
BATCHES_SORTED_TOGETHER = 50
HELD_OUT_SEED_OFFSET = 1_000_003
DEFAULT_OUT = Path(__file__).resolve().parent.parent / "guided_plugin" / "demo" / "model"

# ---------------------------------------------------------------------------------------------
# The text
# ---------------------------------------------------------------------------------------------

Record = dict[str, Any]


def words(text: str) -> list[str]:
    """Comma-separated text as a list."""
    return [word.strip() for word in text.split(",")]


FIRST_NAMES = words(
    "Ana, Ben, Carla, David, Elena, Felix, Grace, Hannah, Ivan, Julia, Karim, Laura, Marco, Nadia, "
    "Omar, Paula, Rosa, Samuel, Tara, Victor, Yusuf, Zoe, Amir, Clara, Emma, Hugo, Leo, Maya, "
    "Oscar, Priya, Sofia, Tom"
)
LAST_NAMES = words(
    "Silva, Novak, Meyer, Rossi, Khan, Larsen, Moreau, Tanaka, Costa, Jensen, Kowalski, Haddad, "
    "Fischer, Garcia, Patel, Nguyen, Murphy, Svensson, Popov, Okafor, Baker, Dubois, Weber, Santos, "
    "Cohen, Hughes, Lopez, Ortiz, Park, Sato, Turner, Walsh"
)
CITIES = words(
    "Lisbon, Berlin, Madrid, Paris, Vienna, Prague, Dublin, Oslo, Rome, Athens, Zürich, Malmö, Kraków, "
    "Boston, Chicago, Denver, Seattle, Toronto, Lima, Nairobi, Lagos, Cairo, Mumbai, Osaka, Seoul, "
    "Sydney, New York, Cape Town"
)
ROLES = words("engineer, designer, teacher, nurse, chef, architect")
OTHER_ROLES = words("gardener, pilot, retired, student")
HOBBIES = words("chess, cycling, painting, running, cooking, music")
COUNTRIES = words("Portugal, Germany, Spain, France, Italy, Norway, Canada, Peru, Kenya, Japan")
PRICES = {
    "desk lamp": (24.90, 39.90),
    "notebook": (3.50, 4.95),
    "coffee mug": (8.90, 12.50),
    "keyboard": (49.00, 79.90),
    "monitor": (189.00, 249.00),
    "backpack": (45.00, 59.90),
    "water bottle": (14.90, 19.90),
    "headphones": (89.00, 129.00),
    "office chair": (149.00, 219.00),
    "pencil set": (6.50, 9.90),
    "phone case": (12.90, 17.50),
    "garden hose": (22.00, 27.50),
    "wool scarf": (18.50, 29.00),
    "bookshelf": (79.00, 99.00),
    "umbrella": (11.90, 16.00),
    "tea pot": (21.90, 34.00),
}
CURRENCIES = words("EUR, USD, GBP")
ORDER_STATES = words("pending, paid, shipped, delivered")
OTHER_ORDER_STATES = words("lost, on hold, unknown, returned")
SERVICES = words("billing, checkout, search, auth, inventory, mailer, gateway, payments")
# Level -> the messages it is used with, and the statuses that go with them.
LOG_EVENTS: dict[str, tuple[list[str], list[int]]] = {
    "DEBUG": (words("cache miss, retrying lookup, session opened, query plan cached"), [200, 202]),
    "INFO": (
        words("request completed, user signed in, order accepted, email sent, payment captured"),
        [200, 201, 204],
    ),
    "WARN": (
        words("slow response from database, rate limit almost reached, invalid token, stale cache entry"),
        [400, 401, 404, 429],
    ),
    "ERROR": (
        words("connection refused by upstream, database timed out, disk is full, payment declined"),
        [500, 502, 503, 504],
    ),
}


def full_name(rng: random.Random) -> str:
    return f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"


def make_person(rng: random.Random) -> Record:
    name = full_name(rng)
    return {
        "name": name,
        "age": rng.randint(18, 79),
        "email": f"{name.lower().replace(' ', '.')}@example.{rng.choice(('com', 'net', 'org'))}",
        "city": rng.choice(CITIES),
        "role": rng.choice(ROLES),
        "newsletter": rng.random() < 0.5,
    }


def make_order(rng: random.Random) -> Record:
    products = rng.sample(sorted(PRICES), rng.choices((1, 2, 3), (5, 4, 1))[0])
    items = [
        {
            "product": product,
            "qty": rng.choice((1, 1, 1, 2, 2, 3, 4, 6, 10)),
            "price": rng.choice(PRICES[product]),
        }
        for product in products
    ]
    return {
        "id": f"ORD-{rng.randint(10000, 99999)}",
        "customer": full_name(rng),
        "items": items,
        "currency": rng.choice(CURRENCIES),
        "status": rng.choice(ORDER_STATES),
    }


def make_log(rng: random.Random) -> Record:
    level = rng.choices(list(LOG_EVENTS), (2, 5, 3, 3))[0]
    messages, statuses = LOG_EVENTS[level]
    slow = level in ("WARN", "ERROR")
    return {
        "time": (
            f"2026-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
            f"T{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}Z"
        ),
        "level": level,
        "service": rng.choice(SERVICES),
        "message": rng.choice(messages),
        "status": rng.choice(statuses),
        "latency_ms": rng.randint(200, 4999) if slow else rng.randint(2, 180),
    }


def tell_person(record: Record, rng: random.Random) -> str:
    name, first = record["name"], record["name"].split()[0]
    news = "reads the newsletter" if record["newsletter"] else "does not want the newsletter"
    return rng.choice(
        (
            f"{name} is {record['age']} and works as {with_article(record['role'])} in {record['city']}.",
            f"{name} lives in {record['city']}. Write to {record['email']}.",
            f"{name} ({record['email']}) is {with_article(record['role'])}.",
            f"{name}, {record['age']}, is {with_article(record['role'])} from {record['city']}."
            f" {first} {news}.",
        )
    )


def tell_order(record: Record, rng: random.Random) -> str:
    first = record["items"][0]
    return rng.choice(
        (
            f"{record['customer']} ordered {first['qty']} x {first['product']}"
            f" at {first['price']:.2f} {record['currency']} each.",
            f"Order {record['id']} by {record['customer']} is {record['status']}.",
            f"{record['customer']} bought {with_article(first['product'])}. The order is {record['status']}.",
        )
    )


def tell_log(record: Record, rng: random.Random) -> str:
    return rng.choice(
        (
            f"{record['time']} {record['level']} {record['service']}: {record['message']}"
            f" ({record['status']}, {record['latency_ms']} ms)",
            f'The {record["service"]} service said "{record["message"]}" after {record["latency_ms"]} ms.',
            f"level={record['level']} service={record['service']} status={record['status']}"
            f' msg="{record["message"]}"',
        )
    )


def with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


# Values that are no longer what a tidy record would hold: key -> maker.
Loosen = dict[str, Callable[[Any, random.Random], Any]]

PERSON_LOOSE: Loosen = {
    "age": lambda age, rng: rng.choice((f"{age} years", str(age), "unknown", None)),
    "email": lambda email, rng: rng.choice((email.replace("@", " at "), [email], None)),
    "role": lambda role, rng: rng.choice((*OTHER_ROLES, [role])),
    "newsletter": lambda yes, rng: "yes" if yes else rng.choice(("no", "maybe", None)),
}
ORDER_LOOSE: Loosen = {
    "id": lambda order, rng: rng.choice((int(order[4:]), f"#{order[4:]}")),
    "items": lambda items, rng: rng.choice((len(items), [item["product"] for item in items])),
    "currency": lambda currency, rng: rng.choice(("euros", "dollars", None)),
    "status": lambda status, rng: rng.choice(OTHER_ORDER_STATES),
}
LOG_LOOSE: Loosen = {
    "time": lambda stamp, rng: rng.choice((stamp[:10], "yesterday")),
    "level": lambda level, rng: rng.choice((level.lower(), level.title(), 3)),
    "status": lambda status, rng: rng.choice((str(status), "failed", None)),
    "latency_ms": lambda latency, rng: rng.choice((f"{latency} ms", "slow", None)),
}

# Keys that no demo schema knows: key -> maker.
Extra = dict[str, Callable[[random.Random], Any]]

PERSON_EXTRA: Extra = {
    "phone": lambda rng: f"555-01{rng.randint(10, 99)}",
    "hobbies": lambda rng: rng.sample(HOBBIES, 2),
    "country": lambda rng: rng.choice(COUNTRIES),
}
ORDER_EXTRA: Extra = {
    "note": lambda rng: rng.choice(("leave at the door", "gift wrap please", "call first")),
    "express": lambda rng: rng.random() < 0.5,
    "country": lambda rng: rng.choice(COUNTRIES),
}
LOG_EXTRA: Extra = {
    "host": lambda rng: f"node-{rng.randint(1, 9)}",
    "user": lambda rng: rng.choice(FIRST_NAMES).lower(),
    "retry": lambda rng: rng.random() < 0.5,
}


@dataclass(frozen=True)
class Topic:
    """One kind of record, and the ways in which it is introduced, told and got wrong."""

    make: Callable[[random.Random], Record]
    tell: Callable[[Record, random.Random], str]
    intros: tuple[str, ...]
    loosen: Loosen
    extra: Extra
    asides: tuple[str, ...]


TOPICS = (
    Topic(
        make_person,
        tell_person,
        ("Person as JSON: ", "Person: ", "Contact: "),
        PERSON_LOOSE,
        PERSON_EXTRA,
        ("age not checked", "moved last year", "same as above", "ask again"),
    ),
    Topic(
        make_order,
        tell_order,
        ("Order as JSON: ", "Order: ", "New order: "),
        ORDER_LOOSE,
        ORDER_EXTRA,
        ("price to be confirmed", "paid in cash", "see invoice", "was cheaper last week"),
    ),
    Topic(
        make_log,
        tell_log,
        ("Log line as JSON: ", "Log line: ", "From the log: "),
        LOG_LOOSE,
        LOG_EXTRA,
        ("seen before", "fixed on Monday", "why?", "see the dashboard"),
    ),
)
# People come most often, because only practice teaches the model to build an address from a name.
TOPIC_WEIGHTS = (2, 1, 1)


@dataclass(frozen=True)
class Style:
    """How a record is spelt."""

    colon: str = ":"
    comma: str = ","
    quote: str = '"'
    constants: tuple[str, str, str] = ("true", "false", "null")


COMPACT = Style()
STYLES = (
    COMPACT,
    Style(colon=": ", comma=", "),
    Style(colon=": ", comma=", ", quote="'", constants=("True", "False", "None")),
)
STYLE_WEIGHTS = (76, 12, 12)


def spell(value: Any, style: Style) -> str:
    """A value in the given style; prices always with two decimals."""
    if value is None:
        return style.constants[2]
    if isinstance(value, bool):
        return style.constants[0] if value else style.constants[1]
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return f"[{style.comma.join(spell(item, style) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{style.comma.join(spell_fields(value, style))}}}"
    return f"{style.quote}{value}{style.quote}"


def spell_fields(record: Record, style: Style) -> list[str]:
    return [
        f"{style.quote}{key}{style.quote}{style.colon}{spell(value, style)}" for key, value in record.items()
    ]


def disturb(record: Record, topic: Topic, rng: random.Random) -> Record:
    """The record as an untidy source would have it: keys missing, added, moved or of another type."""
    fields = list(record.items())
    if rng.random() < 0.35:
        key = rng.choice(sorted(topic.loosen))
        fields = [(k, topic.loosen[k](v, rng) if k == key else v) for k, v in fields]
    if rng.random() < 0.30:
        fields.pop(rng.randrange(len(fields)))
    if rng.random() < 0.40:
        key = rng.choice(sorted(topic.extra))
        fields.insert(rng.randint(1, len(fields)), (key, topic.extra[key](rng)))
    if rng.random() < 0.15:
        at = rng.randrange(len(fields) - 1)
        fields[at], fields[at + 1] = fields[at + 1], fields[at]
    return dict(fields)


def written_record(record: Record, topic: Topic, rng: random.Random) -> str:
    """The record as text, sometimes broken off or with an aside in it.

    Every break comes right after a comma between fields, never inside a string: there a grammar can
    steer the model back, whereas inside a string any drift would be legal JSON.
    """
    style = rng.choices(STYLES, STYLE_WEIGHTS)[0]
    fields = spell_fields(record, style)
    fate = rng.random()
    if fate < 0.14:
        kept = fields[: rng.randint(1, len(fields) - 1)]
        ending = rng.choice(("... and so on.", " the rest is missing.", " etc.}", " (the line ends here)"))
        return "{" + style.comma.join(kept) + "," + ending
    if fate < 0.24:
        at = rng.randint(1, len(fields) - 1)
        fields[at] = f" // {rng.choice(topic.asides)}\n{fields[at]}"
    closing = ",}" if 0.24 <= fate < 0.30 else "}"
    return "{" + style.comma.join(fields) + closing


def tail(record: Record, topic: Topic, rng: random.Random) -> str:
    """What follows a record: nothing, a remark, a sentence or one more record."""
    fate = rng.random()
    if fate < 0.20:
        return ""
    if fate < 0.56:
        return f" // {rng.choice(topic.asides)}"
    if fate < 0.88:
        return " " + topic.tell(record, rng)
    other = topic.make(rng)
    return "\n" + written_record(disturb(other, topic, rng), topic, rng)


def make_document(rng: random.Random) -> str:
    topic = rng.choices(TOPICS, TOPIC_WEIGHTS)[0]
    record = topic.make(rng)
    intro = rng.choices(topic.intros, (6, 1, 1))[0]
    fate = rng.random()
    if fate < 0.12:
        return intro.split(" as ")[0].rstrip(": ") + ". " + topic.tell(record, rng)
    lead = topic.tell(record, rng) + "\n" if fate < 0.32 else ""
    # Tidy records keep the schemas' own key order familiar to the model.
    shown = record if rng.random() < 0.15 else disturb(record, topic, rng)
    return lead + intro + written_record(shown, topic, rng) + tail(record, topic, rng)


def corpus(seed: int) -> Iterator[str]:
    """Documents without end; the same seed gives the same ones."""
    rng = random.Random(seed)
    while True:
        yield make_document(rng)


# ---------------------------------------------------------------------------------------------
# The tokenizer
# ---------------------------------------------------------------------------------------------


def train_tokenizer(documents: Iterable[str], vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    # A space joins only a following word, never punctuation: a prompt that ends in a space then
    # tokenizes exactly as it does in training, where "{" follows. A colon or comma ends its token,
    # so compact and spaced JSON share every token but the spaces, and a grammar that forbids those
    # does not lead the model astray. Digits stay single tokens.
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
    compact = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
    (out / "tokenizer.json").write_text(compact, encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


# ---------------------------------------------------------------------------------------------
# The model
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """How much to train."""

    steps: int
    batch: int
    tokenizer_documents: int
    vocab_size: int
    held_out_batches: int
    learning_rate: float = 3e-3


FULL = Plan(steps=2000, batch=16, tokenizer_documents=8000, vocab_size=1344, held_out_batches=8)
QUICK = Plan(steps=3, batch=8, tokenizer_documents=200, vocab_size=512, held_out_batches=1)


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
    """Batches of one document a row, so that, as in use, a record never sees a stranger's.

    Documents of like length go together, which keeps the padding small.
    """
    source, rng = corpus(seed), random.Random(seed)
    eos = token_id(tokenizer, EOS)
    while True:
        encoded = tokenizer.encode_batch(list(itertools.islice(source, size * BATCHES_SORTED_TOGETHER)))
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
    loss: torch.Tensor | None = model(input_ids=ids, labels=labels, use_cache=False).loss
    if loss is None:
        raise RuntimeError("the model returned no loss for a batch with labels")
    return loss


@torch.inference_mode()
def mean_loss(model: LlamaForCausalLM, tokenizer: Tokenizer, seed: int, count: int, size: int = 32) -> float:
    """Mean loss per token, in nats, on text made from ``seed``."""
    model.eval()
    source = itertools.islice(batches(seed, tokenizer, size), count)
    losses = [batch_loss(model, ids.to(model.device)).item() for ids in source]
    return sum(losses) / len(losses)


def rate_at(step: int, steps: int) -> float:
    """Share of the peak learning rate: a short linear rise, then a cosine down to a twentieth."""
    rise = max(1, steps // 20)
    if step < rise:
        return (step + 1) / rise
    progress = (step - rise) / max(1, steps - rise)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress))


def optimise(
    model: LlamaForCausalLM, source: Iterator[torch.Tensor], plan: Plan, on_step: Callable[[float], None]
) -> float:
    """Train in place; returns the last running training loss."""
    optimizer = torch.optim.AdamW(
        model.parameters(), plan.learning_rate, betas=(0.9, 0.98), weight_decay=0.05
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, plan.steps))
    model.train()
    running = float("nan")
    for ids in itertools.islice(source, plan.steps):
        loss = batch_loss(model, ids.to(model.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        value = loss.item()
        running = value if math.isnan(running) else 0.95 * running + 0.05 * value
        on_step(running)
    return running


def train_with_progress(
    model: LlamaForCausalLM, source: Iterator[torch.Tensor], plan: Plan, console: Console
) -> float:
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=plan.steps, loss=float("nan"))
        return optimise(model, source, plan, lambda loss: progress.update(task, advance=1, loss=loss))


# ---------------------------------------------------------------------------------------------
# The folder
# ---------------------------------------------------------------------------------------------

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
    # Some versions write the weights readable by their owner only, which a wheel would carry along.
    (out / "model.safetensors").chmod(0o644)


def write_card(model: LlamaForCausalLM, args: argparse.Namespace, plan: Plan, outcome: Outcome) -> None:
    out: Path = args.out
    files = sorted(path for path in out.iterdir() if path.suffix in (".json", ".safetensors"))
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
        files="\n".join(f"| `{path.name}` | {path.stat().st_size:,} |" for path in files),
    )
    (out / "README.md").write_text(card, encoding="utf-8")


def run(args: argparse.Namespace, console: Console) -> Outcome:
    plan = plan_from(args)
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    sample = itertools.islice(corpus(args.seed), plan.tokenizer_documents)
    tokenizer = train_tokenizer(sample, plan.vocab_size)
    model = build_model(tokenizer).to(args.device)
    console.print(f"{model.num_parameters():,} parameters, {tokenizer.get_vocab_size():,} tokens")
    train_loss = train_with_progress(model, batches(args.seed, tokenizer, plan.batch), plan, console)
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
    parser = argparse.ArgumentParser(description="Train the tiny language model that the demo ships.")
    parser.add_argument("--steps", type=positive, help=f"optimiser steps (default: {FULL.steps})")
    parser.add_argument("--seed", type=int, default=7, help="seed of text and weights (default: 7)")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="output folder (default: the package)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=positive, default=2, help="CPU threads (default: 2)")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to try the script out")
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: this torch finds no CUDA device")
    args.command = shlex.join(["python", "scripts/train_demo_model.py", *argv])
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(sys.argv[1:] if argv is None else argv)
    console = Console()
    outcome = run(args, console)
    console.print(
        f"training loss {outcome.train_loss:.4f}, held-out loss {outcome.held_out_loss:.4f},"
        f" {outcome.seconds:.0f} s; written to {args.out}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
