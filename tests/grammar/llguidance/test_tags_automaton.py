"""Where the automaton of a tag sees the places of an output, the grammar of the tag goes through them."""

from random import Random

import numpy as np
import pytest
from tag_forms import FORMS, VOCABULARY, json_of, tag, triggered

from guided_plugin import GuidedConfig, OutputSpec
from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.backend import LLGuidanceBackend
from guided_plugin.grammar.llguidance.distinct.scanner import Part, Scan, State
from guided_plugin.grammar.llguidance.tags import automaton, json_parts

OPTIONS = {"strict": True, "flexible": False}
CONTROLS = {
    token: VOCABULARY.tokens[token].decode()
    for token in VOCABULARY.special_ids - set(VOCABULARY.stop_token_ids)
}


def beginning(form):
    """A state at the beginning, and which schemas were found."""
    found = []

    def part(schemas, after):
        found.append([schema.schema for schema in schemas])
        return Part(None, None, after)

    start = json_parts({"format": form}, part, **OPTIONS, controls=CONTROLS)
    return State(None, outside=start), found


@pytest.mark.parametrize("name", FORMS)
def test_no_output_leaves_it(name):
    backend = LLGuidanceBackend(VOCABULARY, GuidedConfig(threads=1))
    grammar = backend.compile(OutputSpec.structural_tag({"format": FORMS[name]}))
    row = np.zeros((1, VOCABULARY.words), np.int32)
    for seed in range(12):
        chance, state = Random(f"{name} {seed}"), beginning(FORMS[name])[0]
        matcher = backend.start(grammar, VOCABULARY.stop_token_ids)
        output = []
        for _ in range(80):
            backend.batch([matcher]).fill(row, [0])
            bits = np.unpackbits(row.view(np.uint8), bitorder="little")
            bits[list(VOCABULARY.stop_token_ids)] = 0
            allowed = np.flatnonzero(bits).tolist()
            if not allowed:
                break
            likely = [token for token in allowed if token < 256 and chr(token) in '<>/={}[]"fgab:,1\n']
            token = chance.choice(likely if likely and chance.random() < 0.8 else allowed)
            output.append(VOCABULARY.tokens[token])
            data = VOCABULARY.text_tokens[token]
            scan = Scan(state, lambda *_: None, lambda: None)
            assert scan.feed(data), output
            assert data or scan.outside.control(token) is not None, output
            if not data:
                scan.control(token)
            state = scan.state()
            assert matcher.accept(token)


def test_the_schemas_of_each_place():
    one, two, three = ({"type": "array", "items": {"const": number}} for number in (1, 2, 3))
    form = triggered(
        tag("<a>", json_of(one), ">"), tag("<b>", json_of(two), ">"), tag("<b>", json_of(three), ">")
    )
    _, found = beginning({**form, "triggers": ["<"]})
    assert {str(each) for each in found} == {str([one]), str([two, three])}


def test_a_tag_of_too_many_places_is_refused(monkeypatch):
    monkeypatch.setattr(automaton, "_MAX_MOVES", 20)
    with pytest.raises(UnsupportedSpecError, match="too many parts"):
        beginning(tag("<function>", json_of({"type": "array"}), "</function>"))
