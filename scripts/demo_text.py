"""The text that the demo model is trained on: people, orders and log lines, as JSON and
as prose.

The text is deliberately untidy. The same record turns up as compact JSON, as a Python
dict, with a trailing comment, broken off, or with values of the wrong type, so the
model writes convincing records of which few would satisfy a given schema; compact JSON
is common enough for a schema-guided completion to stay close to what the model has
seen.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

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
COUNTRIES = words(
    "Portugal, Germany, Spain, France, Italy, Norway, Canada, Peru, Kenya, Japan"
)
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
SERVICES = words(
    "billing, checkout, search, auth, inventory, mailer, gateway, payments"
)
# Level -> the messages it is used with, and the statuses that go with them.
LOG_EVENTS: dict[str, tuple[list[str], list[int]]] = {
    "DEBUG": (
        words("cache miss, retrying lookup, session opened, query plan cached"),
        [200, 202],
    ),
    "INFO": (
        words(
            "request completed, user signed in, order accepted, email sent, payment captured"
        ),
        [200, 201, 204],
    ),
    "WARN": (
        words(
            "slow response from database, rate limit almost reached, invalid token, stale cache entry"
        ),
        [400, 401, 404, 429],
    ),
    "ERROR": (
        words(
            "connection refused by upstream, database timed out, disk is full, payment declined"
        ),
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
    name = record["name"]
    first = record["name"].split()[0]
    news = (
        "reads the newsletter"
        if record["newsletter"]
        else "does not want the newsletter"
    )
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
    "items": lambda items, rng: rng.choice(
        (len(items), [item["product"] for item in items])
    ),
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
    "note": lambda rng: rng.choice(
        ("leave at the door", "gift wrap please", "call first")
    ),
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
    """One kind of record, and the ways in which it is introduced, told and got
    wrong."""

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
        (
            "price to be confirmed",
            "paid in cash",
            "see invoice",
            "was cheaper last week",
        ),
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
# People come most often, because only practice teaches the model to build an address
# from a name.
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
        f"{style.quote}{key}{style.quote}{style.colon}{spell(value, style)}"
        for key, value in record.items()
    ]


def disturb(record: Record, topic: Topic, rng: random.Random) -> Record:
    """The record of an untidy source: keys missing, added, moved or of another type."""
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

    Every break comes right after a comma between fields, never inside a string: there a
    grammar can steer the model back, whereas inside a string any drift would be legal
    JSON.
    """
    style = rng.choices(STYLES, STYLE_WEIGHTS)[0]
    fields = spell_fields(record, style)
    fate = rng.random()
    if fate < 0.14:
        kept = fields[: rng.randint(1, len(fields) - 1)]
        ending = rng.choice(
            (
                "... and so on.",
                " the rest is missing.",
                " etc.}",
                " (the line ends here)",
            )
        )
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
