"""Small schemas, by family, that together use every keyword of JSON Schema, drafts 4 to
2020-12.

They are in `schema_families.json`. Each has a few instances to start from, valid and
not: what random building would seldom find.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple


class Case(NamedTuple):
    """A schema, and instances to start from."""

    schema: Any
    seeds: list[Any]


_FAMILIES = json.loads(Path(__file__).with_suffix(".json").read_bytes())

CASES: dict[tuple[str, str], Case] = {
    (family, name): Case(**case)
    for family, cases in _FAMILIES.items()
    for name, case in cases.items()
}
"""By family and name."""
