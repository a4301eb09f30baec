"""What followed a key in earlier outputs of a schema: offered where nothing must follow, never a value."""

import json

import pytest
from vocabularies import BYTES

import guided_plugin as gp
from guided_plugin.grammar.earlier import _KEY, EarlierKeys
from guided_plugin.grammar.forced import ForcedTokens
from guided_plugin.grammar.table import GrammarTable

KEYS = "name", "city", "age", "tags", "note"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "city": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "note": {"type": "object", "properties": {"by": {"type": "string"}}},
    },
    "additionalProperties": {"type": "string"},
}


class Run:
    """Outputs of one grammar, one after the other, with what is offered at each place of them."""

    def __init__(self, spec):
        self.compiler = gp.GrammarCompiler(BYTES)
        self.spec, self.grammar = spec, self.compiler.compile(spec)
        self.backend = self.compiler.backend(self.grammar.backend)
        self.forced = ForcedTokens(BYTES)
        self.earlier = EarlierKeys(BYTES, self.forced)
        self.count = self.offered = 0

    def output(self, text, slot=0, learns=lambda at: True):
        """What is offered, by how many bytes of the output were there."""
        table = GrammarTable(BYTES, 1.0, 1.0)
        self.count += 1
        table.add(slot, str(self.count), self.spec, self.grammar, self.backend, ())
        found = {}
        data = text.encode()
        for at, byte in enumerate(data):
            request = table.requests[slot]
            if not self.forced.after(request, 99):
                tokens, followers = self.earlier.after(slot, request, 99)
                assert followers is not None or not tokens
                self.earlier.learn(slot, followers, tokens)
                self.offered += len(tokens)
                if tokens:
                    found[at] = b"".join(BYTES.tokens[token] for token in tokens)
            table.accept((slot,), (byte,))
            if learns(at):
                self.earlier.learn(slot)
        assert not table.failures
        return found


@pytest.fixture(params=["compact", "spaced"])
def run(request):
    return Run(gp.OutputSpec.json_schema(SCHEMA, whitespace=request.param))


def written(run, **values):
    separators = (", ", ": ") if run.spec.whitespace == "spaced" else (",", ":")
    return json.dumps(values, separators=separators)


def test_the_order_of_keys_is_learnt(run):
    values = {"name": "Ada", "city": "London", "age": 36, "tags": ["x", "y"], "note": {"by": "me"}}
    assert run.output(written(run, **values)) == {}
    run.output(written(run, **values))
    text = written(run, name="Grace Hopper", city="New York", age=85, tags=["z"], note={"by": "you"})
    found = run.output(text)
    right = [key for key, offer in found.items() if text.encode()[key:].startswith(offer)]
    offered = b"".join(found[at] for at in right)
    assert all(f'"{key}"'.encode() in offered for key in KEYS)
    # Wrong ones stand behind digits, where a number may go on.
    assert all(text[at - 1].isdigit() for at in set(found) - set(right))


def test_no_value_and_no_name_of_another_output_is_offered(run):
    values = {"name": "secret", "city": "secret", "age": 7, "mine": "secret"}
    seen = [run.output(written(run, **values)) for _ in range(6)]
    assert seen[-1]
    assert not any(b"secret" in offer or b"mine" in offer for found in seen for offer in found.values())


def test_text_that_looks_like_a_key_is_no_key(run):
    values = {"name": 'a", "age": 3', "city": "b"}
    for _ in range(4):
        found = run.output(written(run, **values))
    assert not any(b"age" in offer for offer in found.values())


def test_what_is_seldom_right_is_offered_no_more(run):
    for _ in range(3):
        run.output(written(run, name="a", city="b"))
    offers = [run.output(written(run, name="a", note={"by": "c"})) for _ in range(12)]
    assert any(b"city" in offer for offer in offers[0].values())
    assert not any(b"city" in offer for offer in offers[-1].values())


def test_another_schema_learns_by_itself(run):
    for _ in range(3):
        run.output(written(run, name="a", city="b"))
    run.spec = gp.OutputSpec.json_schema({**SCHEMA, "title": "another"}, whitespace=run.spec.whitespace)
    assert run.output(written(run, name="a", city="b")) == {}


def test_another_form_of_whitespace_learns_by_itself(run):
    form = "spaced" if run.spec.whitespace == "compact" else "compact"
    other = Run(gp.OutputSpec.json_schema(SCHEMA, whitespace=form))
    other.earlier = run.earlier
    for _ in range(4):
        found = [one.output(written(one, name="a", city="b")) for one in (run, other)]
    assert all(found)


def test_a_spec_without_a_schema_has_no_keys():
    run = Run(gp.OutputSpec.regex('(\\{"name":"[a-z]*"(,"city":"[a-z]*")?\\}\n)*'))
    for _ in range(3):
        found = run.output('{"name":"a","city":"b"}\n{"name":"a","city":"b"}\n')
    assert found == {}


def test_a_schema_that_takes_long_to_read_is_not_learnt_from():
    run = Run(gp.OutputSpec.json_schema({**SCHEMA, "title": "x" * (1 << 16)}))
    for _ in range(3):
        found = run.output(written(run, name="a", city="b"))
    assert found == {}


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (gp.OutputSpec.regex("[" * 1500 + "a]"), "a"),  # deeper than JSON is read
        (gp.OutputSpec.json_schema({"type": "boolean", "default": {"properties": {"\ud800": 1}}}), "true"),
    ],
)
def test_names_that_cannot_be_read_are_no_trouble(spec, text):
    assert Run(spec).output(text) == {}


def test_whitespace_takes_no_time():
    assert _KEY.findall(b" " * 9_000) == []  # 0.1 s; where it tries all ways to part it, half an hour


def test_offers_and_what_became_of_them_are_counted(run):
    for _ in range(2):
        run.output(written(run, name="a", city="b"))
    run.output(written(run, name="a", city="b"))
    assert run.earlier.offered == run.offered > 0
    run.output(written(run, name="a"))
    assert 0 < run.earlier.taken <= run.earlier.offered == run.offered


@pytest.mark.parametrize("every", [1, 3, 1000])
def test_offers_are_the_same_however_late_it_learns(run, every):
    known = Run(run.spec)
    for number in range(5):
        text = written(run, name=f"Ada {number}", city="x", age=number, note={"by": "me"})
        found = run.output(text, learns=lambda at: at % every == 0)
        run.earlier.learn(0)
        assert found == known.output(text)
    assert found
    assert run.earlier.offered == known.earlier.offered >= run.earlier.taken
