"""The official JSON Schema Test Suite: nothing stops early, and wrong answers can only
become fewer."""

import functools
import itertools

import pytest
from compilers import unbounded
from official_suite import ARCHIVE, DRAFTS, score
from stopping import special_vocabulary

pytestmark = pytest.mark.skipif(
    not ARCHIVE.is_file(),
    reason="the JSON Schema Test Suite is not in ../shared/jsonschema-suite",
)

# By draft: invalid instances accepted, valid ones refused, and schemas refused at
# admission. These are the figures of today; where one falls, lower it here.
MOST = {
    "draft4": (0, 0, 20),
    "draft6": (0, 0, 38),
    "draft7": (0, 0, 42),
    "draft2019-09": (0, 1, 144),
    "draft2020-12": (0, 1, 160),
}

# Each text of two or three characters that stand between values, and longer ones:
# tokens which end several values and begin others.
CROSSING = [
    bytes(some)
    for size in (2, 3)
    for some in itertools.product(b'"[]{},:', repeat=size)
]
CROSSING += rb"""
    "},{" ":[{" ":{" "}],[" }]},{ 1,2 1] 1} ,1 ,2 :1 1, true] null, "foo": "foo" "a" foo" bar"," ":1
""".split()


@functools.cache
def vocabulary():
    return special_vocabulary(padded=True, more=CROSSING)


def assert_sound(found):
    assert found["compiled"]
    for name in ("early stops", "leaks", "faults", "dead ends", "disagreements"):
        assert found[name] == [], name


@pytest.mark.parametrize("draft", DRAFTS)
def test_each_draft(draft):
    found = score(draft, unbounded(vocabulary()))
    assert_sound(found)
    wrong_accepts, wrong_refusals, refused = MOST[draft]
    assert len(found["wrong accepts"]) <= wrong_accepts, found["wrong accepts"]
    assert len(found["valid refused"]) <= wrong_refusals, found["valid refused"]
    assert len(found["refused"]) <= refused, found["refused"]


@pytest.fixture(scope="module")
def qwen():
    pytest.importorskip("tiktoken")
    from real_vocabularies import VOCABULARIES

    return unbounded(VOCABULARIES["qwen"]()[0])


@pytest.mark.parametrize("draft", ["draft7", "draft2020-12"])
def test_a_sample_with_a_real_vocabulary(qwen, draft):
    found = score(draft, qwen, every=6)
    assert_sound(found)
    assert len(found["wrong accepts"]) <= MOST[draft][0], found["wrong accepts"]
