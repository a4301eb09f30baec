"""What lexers learn is bounded over all grammars, and rows stay right."""

import random
import subprocess
import sys
import time

import numpy as np
import pytest
from lexer_bases import Base

from guided_plugin import GuidedConfig, OutputSpec, Vocabulary
from guided_plugin.grammar import renewal
from guided_plugin.grammar.llguidance import learnt as module
from guided_plugin.grammar.llguidance.backend import LLGuidanceBackend
from guided_plugin.grammar.llguidance.learnt import Learnt, resident_bytes
from guided_plugin.grammar.llguidance.lexers import LexerPool, Lexers, fuel_spent
from guided_plugin.grammar.table import GrammarTable, Phase

LIMIT = 64 << 20


def words(count):
    """A vocabulary like one of a language: syllables, many with a space before them."""
    source = random.Random(0)
    tokens = {bytes([byte]): None for byte in range(256)}
    while len(tokens) < count:
        syllables = (
            source.choice("bcdfghjklmnprstvwz") + source.choice("aeiou")
            for _ in range(9)
        )
        word = (
            " " * (source.random() < 0.6) + "".join(syllables)[: source.randint(1, 8)]
        )
        tokens[word.encode()] = None
    return Vocabulary.from_tokens([*tokens, b"</s>"], [len(tokens)], [len(tokens)])


def hostile(number):
    """More states than can ever be learnt: which of the last letters were vowels."""
    return OutputSpec.regex(rf"^[a-z ]*[aeiou][a-z ]{{{150 + number}}}$")


def allowed(row):
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


def run(backend, vocabulary, steps, count=12):
    """Random outputs of hostile patterns; the most that the process grew, and the
    outputs."""
    grammars = [backend.compile(hostile(number)) for number in range(count)]
    table = GrammarTable(vocabulary)
    source = random.Random(1)
    slots = tuple(range(count))
    mask = np.zeros((count, vocabulary.words), np.int32)
    outputs = [[] for _ in slots]
    for slot in slots:
        table.add(slot, str(slot), grammars[slot].spec, grammars[slot], backend)
    before = resident_bytes()
    most = 0
    for step in range(steps):
        table.fill(slots, mask)
        tokens = [source.choice(allowed(row)) for row in mask]
        table.accept(slots, tokens)
        most = max(most, resident_bytes() - before)
        for slot, token in zip(slots, tokens, strict=True):
            outputs[slot].append(token)
            if table.phase(slot) is not Phase.ACTIVE or len(outputs[slot]) == 300:
                table.remove(slot)
                table.add(
                    slot, f"{slot} {step}", grammars[slot].spec, grammars[slot], backend
                )
                outputs[slot] = []
    table.fill(slots, mask)
    assert table.failures == []
    renewed = sum(grammar.handle.lexers._forgot > 0 for grammar in grammars)
    return most, renewed, outputs, mask


GROWTH = """
import sys
sys.path[:0] = sys.argv[1:]
import test_learnt
test_learnt.run_and_check()
"""


def run_and_check():
    vocabulary = words(32_000)
    backend = LLGuidanceBackend(vocabulary, GuidedConfig(threads=1, learnt_bytes=LIMIT))
    most, renewed, outputs, mask = run(backend, vocabulary, 700)
    fresh = LLGuidanceBackend(vocabulary, GuidedConfig(threads=1))
    for number, output in enumerate(outputs):
        matcher = fresh.start(fresh.compile(hostile(number)), vocabulary.stop_token_ids)
        assert all(map(matcher.accept, output))
        row = np.zeros((1, vocabulary.words), np.int32)
        fresh.batch([matcher]).fill(row, [0])
        assert np.array_equal(row[0], mask[number])
    print(most, renewed)


@pytest.mark.slow
def test_hostile_patterns_stay_within_the_bound_and_their_rows_are_right():
    """Without a bound they would take 100 MiB by then, and go on."""
    from pathlib import Path

    here = Path(__file__)
    folders = [str(here.parent), str(here.parents[2] / "support")]
    command = [sys.executable, "-c", GROWTH, *folders]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    most, renewed = map(int, done.stdout.split())
    assert most < LIMIT * 1.1
    assert renewed > 0


def test_what_a_lexer_spends_can_be_read():
    vocabulary = words(2_000)
    backend = LLGuidanceBackend(vocabulary, GuidedConfig(threads=1))
    grammar = backend.compile(hostile(0))
    plain = backend.compile(OutputSpec.regex("[ab]{9}"))
    lexers = grammar.handle.lexers
    others = plain.handle.lexers
    fuel_spent(lexers._lexers[0].base)  # learns a little itself
    before = lexers.cost()
    other = others.cost()
    assert lexers.cost() == before > 0
    matcher = backend.start(grammar, vocabulary.stop_token_ids)
    source = random.Random(3)
    row = np.zeros((1, vocabulary.words), np.int32)
    for _ in range(100):
        backend.batch([matcher]).fill(row, [0])
        assert matcher.accept(source.choice(allowed(row[0])))
    assert lexers.cost() > 3 * before
    assert others.cost() == other


@pytest.fixture
def pool(monkeypatch):
    """Grammars whose lexers hold what `costs` says, in a process that holds nothing
    else."""
    costs = {}

    class Told(Base):
        def __init__(self, name=None):
            super().__init__()
            self.name = name

    monkeypatch.setattr(Lexers, "cost", lambda self: costs.get(self._lexers[0].base, 1))
    monkeypatch.setattr(module, "_trim", lambda: None)
    made = LexerPool(1)

    def grammar(cost):
        first = Told()
        costs[first] = cost
        return Lexers(first, lambda: Told("new"), made)

    grown = {"other": 0}

    def resident():
        return grown["other"] + 1000 * sum(one.cost() for one in made.members())

    monkeypatch.setattr(module, "resident_bytes", resident)
    return made, grammar, grown


def forgotten(*grammars):
    return [grammar._lexers[0].base.name == "new" for grammar in grammars]


def test_grammars_without_users_come_first_and_those_unused_for_longest(pool):
    made, grammar, _ = pool
    learnt = Learnt(made, 1_000_000)
    learnt._base = 0
    old = grammar(400)
    young = grammar(400)
    used = grammar(100)
    small = grammar(2)
    share = used.take()[1]
    old.used = 1.0
    young.used = 2.0
    small.used = 0.5
    learnt._reduce()
    assert forgotten(old, young, used, small) == [1, 1, 0, 0]
    assert not share.lexer.outdated


def test_those_in_use_give_up_the_largest_first_and_only_once_at_a_time(pool):
    made, grammar, _ = pool
    learnt = Learnt(made, 1_000_000)
    learnt._base = 0
    large = grammar(600)
    middle = grammar(200)
    low = grammar(100)
    shares = [one.take()[1] for one in (large, middle, low)]
    learnt._reduce()
    assert forgotten(large, middle, low) == [1, 0, 0]
    assert [share.lexer.outdated for share in shares] == [True, False, False]
    assert large.renewing
    assert (large.users, middle.users) == (1, 1)
    del shares[0]
    assert (large.users, large.renewing) == (0, False)


def test_what_is_not_the_lexers_is_left_out_of_the_measure(pool):
    made, grammar, grown = pool
    learnt = Learnt(made, 1_000_000)
    learnt._base = 0
    one = grammar(10)
    grown["other"] = 50_000_000
    learnt._reduce()
    assert forgotten(one) == [0]
    assert learnt.size_bytes <= 10_000


def test_looks_are_rare_and_work_is_done_elsewhere(pool, monkeypatch):
    made, grammar, grown = pool
    learnt = Learnt(made, 1_000_000)
    one = grammar(1)
    learnt.filled()
    grown["other"] = 0
    calls = []
    monkeypatch.setattr(learnt, "_reduce", lambda: calls.append(1))
    monkeypatch.setattr(module, "resident_bytes", lambda: 10_000_000)
    learnt.filled()
    assert not calls
    learnt._next = 0.0
    learnt.filled()
    deadline = time.monotonic() + 10
    while learnt._working and time.monotonic() < deadline:
        time.sleep(0.001)
    assert calls == [1]
    assert forgotten(one) == [0]


def test_requests_get_their_new_matchers_as_time_allows(monkeypatch):
    vocabulary = words(1_000)
    backend = LLGuidanceBackend(vocabulary, GuidedConfig(threads=1))
    grammar = backend.compile(hostile(0))
    table = GrammarTable(vocabulary)
    slots = (0, 1)
    for slot in slots:
        table.add(slot, str(slot), grammar.spec, grammar, backend)
    table.accept(slots, [ord("a"), ord("b")])
    grammar.handle.lexers.forget()
    mask = np.zeros((2, vocabulary.words), np.int32)
    monkeypatch.setattr(renewal, "_MOST", 0.0)  # no time at all
    table.renewals._left = 0.0
    for _ in range(20):
        table.fill(slots, mask)
    assert grammar.handle.lexers.renewing
    monkeypatch.undo()
    table.renewals._left = 1.0
    for _ in range(20):
        table.fill(slots, mask)
    assert not grammar.handle.lexers.renewing
    assert [request.matcher.outdated for request in table.requests.values()] == [
        False,
        False,
    ]
    table.accept(slots, [ord("c"), ord("d")])
    assert table.failures == []
    assert table.tokens(0) == (ord("a"), ord("c"))
