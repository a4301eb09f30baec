"""A schema with its grammar and the oracle for it: which texts do they see
differently."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from compilers import unbounded
from instances import laid_out, near, respelt, text_of
from oracle import OracleError, oracle, read_exactly
from stopping import Walker, is_json, special_vocabulary

from benchmarks.samples import TextTokens
from guided_plugin.errors import GuidedError, UnsatisfiableSpecError
from guided_plugin.grammar.renewal import rebuilds_shared
from guided_plugin.spec import OutputSpec

BEGIN = "<f>"
END = "</f>"
_MERGED = rb"""}] }} ]] }]} "}] "]} "}} "] }, ], "}, },{ ],[ "},{" },{" ":{" ":{ ":[" ":[ ","
    ":" [{" [{ [[ {" {} [] {}, [], "" "", "a": "a"," "b": "a" :1 1, 1} 1] true} true, 1,1 e1 .0
    0, }</f> "}</f> ]</f> 1</f> </f> <f>{ <f>{" <f>["""
MERGED = [*_MERGED.split(), b', "', b": ", b" }", b"\n}", b' "']
"""Tokens that end several things at once, or end one and begin another."""
COMPILER = unbounded(special_vocabulary(padded=True, more=MERGED), cache_bytes=0)
WALKER = Walker(COMPILER)
_TEXT_TOKENS = TextTokens(COMPILER.vocabulary)
_STEPS = (0, 4, 12, 60)
"""How many steps a walk takes at random."""
_FINISH = 200
"""How many more it may take to its end."""
_MASKED = 2
"""Of so many valid instances of a schema, masks are looked at too."""


class Mode(NamedTuple):
    """How a schema is asked for."""

    strict: bool = False
    whitespace: str = "compact"
    tag: str = ""
    """`tag`, `triggered_tags`, or empty for the schema itself."""

    def __str__(self):
        strictness = "strict" if self.strict else "standard"
        return f"{strictness}, {self.whitespace}, {self.tag or 'no tag'}"

    def spec(self, schema):
        """What a request would ask for."""
        options = {"strict": self.strict, "whitespace": self.whitespace}
        if not self.tag:
            return OutputSpec.json_schema(schema, **options)
        part = {"type": "tag", "begin": BEGIN, "end": END}
        part["content"] = {"type": "json_schema", "json_schema": schema}
        if self.tag == "triggered_tags":
            part = {"type": self.tag, "triggers": [BEGIN], "tags": [part]}
        return OutputSpec.structural_tag({"format": part}, **options)

    def whole(self, text):
        """Whether a text may be a whole output."""
        return is_whole(text) if self.tag else is_json(text)

    def text(self, instance):
        """The whole output that holds the text of an instance."""
        if self.whitespace == "spaced":
            instance = laid_out(instance, self.whitespace)
        return f"{BEGIN}{instance}{END}" if self.tag else instance

    def instance_in(self, output):
        """The text of the instance in a whole output: in its first tag, if it has
        tags."""
        if not self.tag:
            return output
        rest = output.partition(BEGIN)[2].lstrip()
        return rest[: json.JSONDecoder().raw_decode(rest)[1]]


def is_whole(text):
    """Whether each tag in a text is closed around JSON."""
    rest = text.decode(errors="replace")
    while BEGIN in rest:
        rest = rest.partition(BEGIN)[2].lstrip()
        try:
            _, end = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError):
            return False
        rest = rest[end:].lstrip()
        if not rest.startswith(END):
            return False
        rest = rest[len(END) :]
    return True


_ZEROS = re.compile(r"\.0+(?![0-9])")
"""In a number that is not written out without zeros at the end."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One text that a grammar treats wrongly."""

    kind: str
    """`wrong accept`, `wrong refusal`, `dead end`, `early stop`, `inconsistent`,
    `crash`, or `called unsatisfiable`."""
    text: str
    """A whole output; of a dead end or an early stop, what stands before it."""


@dataclass(slots=True)
class Outcome:
    """What became of one schema."""

    status: str = "checked"
    """`checked`, `refused`, `beyond the oracle` or `crash`."""
    reason: str = ""
    valid: int = 0
    invalid: int = 0
    walks: int = 0
    unfinished: int = 0
    findings: list[Finding] = field(default_factory=list)
    satisfiable: bool = False
    """Of a refused schema: whether an instance is valid."""

    def add(self, kind, text):
        """Note what is wrong."""
        self.findings.append(Finding(kind, text))


class Subject:
    """A schema compiled in one mode, and the oracle for it. Raises GuidedError and
    OracleError."""

    def __init__(self, schema, mode=Mode()):  # noqa: B008
        self.mode = mode
        self.valid = oracle(schema)
        self.distinct = "uniqueItems" in json.dumps(schema)
        """Whether a check of our own reads the tokens too: then each text comes in more
        tokenizations."""
        self.grammar = COMPILER.compile(mode.spec(schema))

    def takes(self, text):
        """Whether a whole output is accepted, in each of the tokenizations that are
        tried."""
        return self.verdicts(text) == {True}

    def verdicts(self, text):
        """Whether tokenizations of a whole output are accepted: all the same, if all is
        well.

        Without those at which the backend met a limit of its own, which its error says.
        """
        return {self._takes(tokens) for tokens in self._tokenizations(text)} - {None}

    def masked(self, text):
        """What the masks say of those tokenizations."""
        return [
            WALKER.walk(
                self.grammar,
                tokens,
                self.mode.whole,
            )
            for tokens in self._tokenizations(text)
        ]

    def _tokenizations(self, text):
        # The same for a text, so that what is found is found again.
        chance = Random(text)
        ways = _TEXT_TOKENS.all_ways(text, [chance, chance])
        return ways if self.distinct else ways[-1:]

    def _takes(self, tokens):
        owner = COMPILER.backend(self.grammar.backend)
        while True:
            matcher = owner.start(self.grammar, COMPILER.vocabulary.stop_token_ids)
            if all(map(matcher.accept, tokens)):
                return matcher.complete
            # else its lexer had learnt all that it may
            if not rebuilds_shared(matcher):
                return None if matcher.limit() else False

    def allows(self, instance):
        """Whether the oracle allows an instance, whichever of two members of one name
        counts."""

        def first(pairs):
            return dict(reversed(pairs))

        readings = (
            read_exactly(instance),
            read_exactly(instance, object_pairs_hook=first),
        )
        return all(map(self.valid, readings))

    def is_laid_out(self, instance):
        """Whether the whitespace of an instance is that of the mode."""
        layout = self.mode.whitespace
        return layout == "flexible" or instance == laid_out(instance, layout)

    def walk(self, source, outcome):
        """One output at random: the instance in it, if it ends and can be read."""
        walk = WALKER.wander(
            self.grammar,
            source,
            source.choice(_STEPS),
            self.mode.whole,
            begin=BEGIN if self.mode.tag == "triggered_tags" else "",
            finish=_FINISH,
            merged=source.choice((0, 0.3, 0.8)),
        )
        outcome.walks += 1
        text = walk.text.decode(errors="replace")
        if walk.stuck:
            outcome.add("dead end", text)
            return None
        if walk.early or walk.leaks:
            outcome.add("early stop", (walk.early + walk.leaks)[0])
            return None
        if not walk.accepted:
            outcome.unfinished += 1
            return None
        instance = self.mode.instance_in(text)
        try:
            if not self.is_laid_out(instance) or not self.allows(instance):
                outcome.add("wrong accept", text)
        except OracleError:
            return None
        return instance

    def compare(self, values, source, outcome):
        """What grammar and oracle say of instances, each text once."""
        seen = set()
        masked = 0
        for value in values:
            try:
                text = text_of(value)
                text.encode()
                spelt = self._spelt(
                    text,
                    value,
                    source,
                )
                if text in seen:
                    continue
                valid = [self.allows(other) for other in spelt]
            except (OverflowError, UnicodeEncodeError, RecursionError, OracleError):
                continue
            seen.add(text)
            outcome.valid += valid[0]
            outcome.invalid += not valid[0]
            for instance, allowed in zip(
                spelt,
                valid,
                strict=True,
            ):
                output = self.mode.text(instance)
                taken = self.verdicts(output)
                # Strict schemas are closed and ordered; other spellings are the
                # grammar's own choice.
                # Items that are compared have one spelling.
                zeros = self.distinct and _ZEROS.search(instance)
                owed = instance is spelt[0] and not self.mode.strict and not zeros
                if not allowed:
                    if True in taken:
                        outcome.add("wrong accept", output)
                elif len(taken) > 1:
                    outcome.add("inconsistent", output)
                elif taken == {False} and owed:
                    outcome.add("wrong refusal", output)
                elif taken == {True} and masked < _MASKED:
                    masked += 1
                    self._judge(output, outcome)

    def _judge(self, output, outcome):
        """Note what masks say wrongly of a text that is accepted."""
        for walk in self.masked(output):
            if walk.early or walk.leaks:
                outcome.add("early stop", (walk.early + walk.leaks)[0])
            elif not walk.accepted and not walk.limited:
                outcome.add("inconsistent", output)

    def _spelt(self, text, value, source):
        """A text and others of its value: with whitespace, and now and then with
        escapes and exponents."""
        texts = [text]
        if self.mode.whitespace == "flexible":
            indent = source.choice((None, 1))
            plain = source.random() < 0.5
            texts.append(
                json.dumps(
                    value,
                    indent=indent,
                    ensure_ascii=plain,
                )
            )
        return texts + (respelt(value) if source.random() < 0.2 else [])


def check(schema, mode, source, *, count=60, walks=5):
    """Everything about one schema: outputs at random, and instances near it."""
    outcome = Outcome()

    def instances(seeds):
        return near(
            schema, seeds, count=count + len(seeds), seed=source.randrange(2**32)
        )

    try:
        try:
            subject = Subject(schema, mode)
        except GuidedError as error:
            outcome.status = "refused"
            outcome.reason = error.what
            valid = oracle(schema)
            found = next(([value] for value in instances([]) if valid(value)), [])
            outcome.satisfiable = bool(found)
            if found and not mode.strict and says_unsatisfiable(error):
                outcome.add("called unsatisfiable", mode.text(text_of(found[0])))
            return outcome
        outputs = [subject.walk(source, outcome) for _ in range(walks)]
        seeds = [json.loads(text) for text in outputs if text is not None]
        subject.compare(
            instances(seeds),
            source,
            outcome,
        )
    except OracleError as error:
        outcome.status, outcome.reason = "beyond the oracle", str(error)
    except Exception as error:
        outcome.status, outcome.reason = "crash", f"{type(error).__name__}: {error}"
        outcome.add("crash", outcome.reason)
    return outcome


def says_unsatisfiable(error):
    """Whether a refusal says that no value is valid, and not that something can't be
    enforced."""
    return isinstance(error, UnsatisfiableSpecError) or "allows nothing" in error.what
