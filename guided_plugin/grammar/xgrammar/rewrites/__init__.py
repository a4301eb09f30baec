"""Rewrites of JSON Schemas into the form that xgrammar enforces; each keeps the set of valid values.

xgrammar reads one group of keywords a schema and drops the others. llguidance needs no rewrites: what it
doesn't take becomes one grammar as a whole.
"""

from guided_plugin.grammar.xgrammar.rewrites.annotations import drop_annotations
from guided_plugin.grammar.xgrammar.rewrites.conjunctions import merge_conjunctions
from guided_plugin.grammar.xgrammar.rewrites.numbers import integer_bounds
from guided_plugin.grammar.xgrammar.rewrites.one_of import open_exclusive
from guided_plugin.grammar.xgrammar.rewrites.strings import (
    formats_to_pattern,
    lengths_to_pattern,
    names_are_strings,
)
from guided_plugin.grammar.xgrammar.rewrites.traversal import Rewrite, rewritten
from guided_plugin.grammar.xgrammar.rewrites.values import fold_values

__all__ = ["REWRITES", "rewritten"]

REWRITES: tuple[Rewrite, ...] = (
    drop_annotations,
    open_exclusive,
    # Distributes alternatives, so before values are folded into each of them.
    merge_conjunctions,
    fold_values,
    names_are_strings,
    integer_bounds,
    # Patterns can't be merged, so after the merges.
    formats_to_pattern,
    lengths_to_pattern,
)
