"""Shapes of schemas, written as grammar rules. Touches the algebra, rules and what texts look like.

One rule for each conjunction of schemas that some value must satisfy; scalars become terminals, in which
demands meet as intersections and negations of regular expressions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark import arrays, objects, patterns
from guided_plugin.grammar.llguidance.lark.algebra import Algebra
from guided_plugin.grammar.llguidance.lark.constraints import (
    Array,
    Boolean,
    Constraint,
    Literals,
    Null,
    Number,
    Object,
    String,
)
from guided_plugin.grammar.llguidance.lark.numbers import number_terms, plain
from guided_plugin.grammar.llguidance.lark.rules import (
    Alternative,
    Grammar,
    Reference,
    Repeated,
    Symbol,
    Text,
)
from guided_plugin.grammar.llguidance.lark.terminals import (
    COLON,
    COMMA,
    NULL,
    excluding,
    expression,
    key_text,
    lead,
    matching,
)
from guided_plugin.spec.schema import pointer

__all__ = ["Emitter", "Style"]


@dataclass(frozen=True, slots=True)
class Style:
    """What a schema leaves open."""

    closed: bool
    """Objects have no properties but those that are described, unless the schema opens them."""
    ordered: bool
    """Properties come in the order of the schema, where that order can be kept."""
    fraction_zero: bool
    """Integers may be written with a fraction of zero, as 1.0."""
    impossible_token: int | None = None
    """A token that is never sampled."""


class Emitter:
    """Writes one schema's rules into one grammar."""

    def __init__(self, algebra: Algebra, style: Style) -> None:
        self.algebra = algebra
        self.style = style
        self.grammar = Grammar()
        self._values: dict[Literals, Symbol] = {}
        self._pending: list[tuple[str, Literals]] = []
        self._any: Symbol | None = None

    def root(self, literals: Literals) -> Symbol:
        """The rule of a whole document, everything that it needs included."""
        symbol = self.value(literals)
        while self._pending:
            name, literals = self._pending.pop()
            shape = self.algebra.shape(literals)
            found = [self._constraint(c) for constraints in shape.values() for c in constraints]
            self.grammar.define(name, [Alternative((symbol,)) for symbol in dict.fromkeys(found)])
        return symbol

    def value(self, literals: Literals) -> Symbol:
        """A value that satisfies all of them. Its rule is written later, so recursion is fine."""
        if not literals:
            return self.anything()
        symbol = self._values.get(literals)
        if symbol is None:
            shape = self.algebra.shape(literals)
            if shape["array"] or shape["object"]:
                name = self.grammar.name("v")
                self._pending.append((name, literals))
                symbol = Reference(name)
            else:
                scalars = [self._constraint(c) for constraints in shape.values() for c in constraints]
                symbol = self.grammar.rule(*((scalar,) for scalar in scalars))
            self._values[literals] = symbol
        return symbol

    def anything(self) -> Symbol:
        """Any JSON value."""
        if self._any is None:
            self._any = Reference("any")
            scalars = [self.string(String()), self.boolean(Boolean()), self.number(Number()), NULL]
            more = Repeated((COMMA, self._any), 0, None)
            array = (Text('"["'), Repeated((self._any, more), 0, 1), Text('"]"'))
            member = (self.string(String()), COLON, self._any)
            members = (*member, Repeated((COMMA, *member), 0, None))
            entries = (Text('"{"'), Repeated(members, 0, 1), Text('"}"'))
            compound = [self.grammar.rule(array), self.grammar.rule(entries)]
            self.grammar.define("any", [Alternative((symbol,)) for symbol in [*scalars, *compound]])
        return self._any

    def refuse(self, keyword: str, why: str) -> UnsupportedSpecError:
        """An error about a keyword, with the place of its first use."""
        found = (n for n in self.algebra.document.nodes if keyword in n.keywords)
        node = next(found, None)
        where = pointer((*node.path, keyword)) if node is not None else keyword
        return UnsupportedSpecError(f"{keyword} {why}", where=where)

    # Scalars

    def _constraint(self, constraint: Constraint) -> Symbol:
        match constraint:
            case Null():
                return NULL
            case Boolean():
                return self.boolean(constraint)
            case Number():
                return self.number(constraint)
            case String():
                return self.string(constraint)
            case Array():
                return arrays.array(self, constraint)
            case Object():
                return objects.object_rule(self, constraint)

    def boolean(self, boolean: Boolean) -> Symbol:
        """One of its values."""
        return self.grammar.terminal(" | ".join(f'"{json.dumps(v)}"' for v in sorted(boolean.values)))

    def number(self, number: Number) -> Symbol:
        """A number in a spelling whose range a regular expression can see."""
        terms = number_terms(number, fraction_zero=self.style.fraction_zero)
        if terms is None:
            return self._multiple(number)
        required, excluded = terms
        return self.grammar.terminal(
            " & ".join([*(f"/{term}/" for term in required), *(f"~/{term}/" for term in excluded)])
        )

    def _multiple(self, number: Number) -> Symbol:
        """Multiples of numbers that are no powers of ten: llguidance counts them in its own schemas."""
        if number.no_multiples or number.excluded or number.whole is False:
            raise self.refuse("multipleOf", "under not, or beside values that are excluded")
        schema: dict[str, object] = {"type": "integer" if number.whole else "number"}
        if number.low is not None:
            schema["exclusiveMinimum" if number.low.exclusive else "minimum"] = number.low.value
        if number.high is not None:
            schema["exclusiveMaximum" if number.high.exclusive else "maximum"] = number.high.value
        multiples = sorted(number.multiples, key=float)
        parts = [{**schema, "multipleOf": float(plain(m)) if isinstance(m, float) else m} for m in multiples]
        body = parts[0] if len(parts) == 1 else {"allOf": parts}
        return self.grammar.rule((Text("%json " + json.dumps(body)),), (Text('"-0"'),))

    def string(self, string: String) -> Symbol:
        """A string literal, quotes included."""
        return self.led(self.grammar.terminal(self.string_body(string)), lead(string))

    def led(self, terminal: Text, characters: str | None) -> Symbol:
        """A string literal beside the endless ones that begin with the same characters.

        The endless ones allow nothing new, since what they begin with can always become a string of the
        terminal, and they are never complete: they lead to a token that is never sampled. But they say
        in a way that llguidance sees at once that all these characters may come next. It then adds most
        of the vocabulary as one precomputed piece, where it would walk through all tokens.
        """
        if characters is None or self.style.impossible_token is None:
            return terminal
        never = Text(f"<[{self.style.impossible_token}]>")
        if "never" not in self.grammar.rules:
            ending = [Alternative((never, Reference("never"))), Alternative((never, never))]
            self.grammar.define("never", ending)
        endless = self.grammar.terminal(expression(f'"{characters}*'))
        return self.grammar.rule((terminal,), (endless, Reference("never")))

    def string_body(self, string: String) -> str:
        """The terminal of a string constraint."""
        if string.values is not None:
            return " | ".join(map(key_text, string.values))
        required = [matching(source) for source in sorted(string.patterns)]
        required += [expression(patterns.quoted_format(name)) for name in sorted(string.formats)]
        if string.shortest or string.longest is not None:
            longest = "" if string.longest is None else string.longest
            required.append(expression(f'"{patterns.ANY_CHARACTER}{{{string.shortest},{longest}}}"'))
        if not required:
            required.append(expression(f'"{patterns.ANY_CHARACTER}*"'))
        refused = [matching(source) for source in sorted(string.no_patterns)]
        refused += [expression(patterns.quoted_format(name)) for name in sorted(string.no_formats)]
        return " & ".join([*required, *(f"~{body}" for body in refused), *excluding(string.excluded)])
