"""What lexers learn is bounded over all grammars, and rows stay right."""

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from compilers import shown
from lexer_bases import Base, add

from guided_plugin import GuidedConfig, OutputSpec, Vocabulary
from guided_plugin.grammar import renewal
from guided_plugin.grammar.drafts import fill_with_drafts
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
        syllables = [
            source.choice("bcdfghjklmnprstvwz") + source.choice("aeiou")
            for _ in range(4)
        ]
        word = "".join(syllables)[: source.randint(1, 8)]
        space = " " if source.random() < 0.6 else ""
        tokens[f"{space}{word}".encode()] = None
    return Vocabulary.from_tokens([*tokens, b"</s>"], [len(tokens)], [len(tokens)])


def hostile(number):
    """More states than can ever be learnt: which of the last letters were vowels."""
    return OutputSpec.regex(rf"^[a-z ]*[aeiou][a-z ]{{{150 + number}}}$")


def backend_of(vocabulary, **options):
    return LLGuidanceBackend(vocabulary, GuidedConfig(threads=1, **options))


def run():
    """Random outputs of hostile patterns, in a process of their own: prints by how much
    it grew at most, and how many grammars gave up what they had learnt."""
    vocabulary = words(32_000)
    backend = backend_of(vocabulary, learnt_bytes=LIMIT)
    grammars = [backend.compile(hostile(number)) for number in range(12)]
    # calls of 1 ms took 0.65 s by the clock on two processors at a load of 9
    table = GrammarTable(vocabulary, row_seconds=30.0, row_longest=60.0)
    slots = tuple(range(12))
    for slot in slots:
        add(table, (slot,), grammars[slot], backend)
    source = random.Random(1)
    before = resident_bytes()
    most = 0
    for _ in range(700):
        rows = shown(table, *slots)
        table.accept(slots, list(map(source.choice, rows)))
        most = max(most, resident_bytes() - before)
        for slot in slots:
            ended = table.phase(slot) is not Phase.ACTIVE
            if ended or len(table.tokens(slot)) == 300:
                table.remove(slot)
                add(table, (slot,), grammars[slot], backend)
    assert table.failures == []
    fresh = backend_of(vocabulary)
    direct = GrammarTable(vocabulary)
    for slot in slots:
        add(direct, (slot,), fresh.compile(hostile(slot)), fresh, table.tokens(slot))
    assert shown(table, *slots) == shown(direct, *slots)
    print(most, sum(grammar.handle.lexers._forgot > 0 for grammar in grammars))


@pytest.mark.slow
def test_hostile_patterns_stay_within_the_bound_and_their_rows_are_right():
    """Without a bound they would take 100 MiB by then, and go on."""
    here = Path(__file__)
    folders = [str(here.parent), str(here.parents[2] / "support")]
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]; import test_learnt; test_learnt.run()"
    )
    command = [sys.executable, "-c", script, *folders]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    most, renewed = map(int, done.stdout.split())
    assert most < LIMIT * 1.1
    assert renewed > 0


def test_what_a_lexer_spends_can_be_read():
    vocabulary = words(2_000)
    backend = backend_of(vocabulary)
    grammar = backend.compile(hostile(0))
    lexers = grammar.handle.lexers
    others = backend.compile(OutputSpec.regex("[ab]{9}")).handle.lexers
    fuel_spent(lexers._lexers[0].base)  # learns a little itself
    before = lexers.cost()
    others_before = others.cost()
    table = GrammarTable(vocabulary)
    add(table, (0,), grammar, backend)
    source = random.Random(3)
    for _ in range(100):
        (allowed,) = shown(table, 0)
        table.accept((0,), [source.choice(allowed)])
    assert lexers.cost() > 3 * before > 0
    assert others.cost() == others_before


@pytest.fixture
def pool(monkeypatch):
    """What lexers have learnt, a maker of grammars whose lexers hold what it is told,
    and what else the process holds."""
    costs = {}
    made = LexerPool(1)
    other = [0]

    def grammar(cost):
        first = Base()
        costs[first] = cost
        return Lexers(first, Base, made)

    def resident():
        return other[0] + 1000 * sum(lexers.cost() for lexers in made.members())

    monkeypatch.setattr(Lexers, "cost", lambda self: costs.get(self._lexers[0].base, 1))
    monkeypatch.setattr(module, "_trim", lambda: None)
    monkeypatch.setattr(module, "resident_bytes", resident)
    learnt = Learnt(made, 1_000_000)
    learnt._base = 0
    return learnt, grammar, other


def look(learnt):
    """Have it look at the process, in a thread of its own, as when masks were filled."""
    learnt._next = 0.0
    learnt.filled()
    deadline = time.monotonic() + 10
    while learnt._working and time.monotonic() < deadline:
        time.sleep(0.001)


def forgotten(*grammars):
    return [grammar.cost() == 1 for grammar in grammars]


def test_grammars_without_users_come_first_the_largest_of_them_first(pool):
    learnt, grammar, _ = pool
    grammars = [grammar(cost) for cost in (400, 400, 100, 2)]
    share = grammars[2].take()[1]
    look(learnt)
    assert forgotten(*grammars) == [True, True, False, False]
    assert not share.lexer.outdated


def test_those_in_use_give_up_the_largest_first_and_only_once_at_a_time(pool):
    learnt, grammar, _ = pool
    grammars = [grammar(cost) for cost in (600, 200, 100)]
    shares = [one.take()[1] for one in grammars]
    look(learnt)
    assert forgotten(*grammars) == [True, False, False]
    assert [share.lexer.outdated for share in shares] == [True, False, False]
    assert grammars[0].renewing
    del shares[0]
    assert not grammars[0].renewing


def test_what_is_not_the_lexers_is_left_out_of_the_measure(pool):
    learnt, grammar, other = pool
    one = grammar(10)
    other[0] = 50_000_000
    look(learnt)
    assert forgotten(one) == [False]
    assert learnt.size_bytes <= 10_000


def test_requests_get_their_new_matchers_as_time_allows(monkeypatch):
    vocabulary = words(1_000)
    backend = backend_of(vocabulary)
    grammar = backend.compile(hostile(0))
    table = GrammarTable(vocabulary)
    slots = (0, 1)
    add(table, slots, grammar, backend, list(b"ab"))
    masks = np.zeros((8, vocabulary.words), np.int32)
    grammar.handle.lexers.forget()
    for seconds, renewing in ((0.0, True), (1.0, False)):
        monkeypatch.setattr(renewal, "_MOST", seconds)
        table.renewals._left = seconds
        for _ in range(20):
            fill_with_drafts(table, slots, masks, [list(b"cc")] * 3)
        assert grammar.handle.lexers.renewing == renewing
    assert not any(request.matcher.outdated for request in table.requests.values())
    table.accept(slots, list(b"cd"))
    assert table.failures == []
    assert table.tokens(0) == tuple(b"abc")
