"""Random regular expressions, written twice: for ECMA 262, and with the same meaning for Python's `re`."""

import itertools

__all__ = ["TEXTS", "random_pattern"]

TEXTS = ["".join(text) for length in range(5) for text in itertools.product('ab"', repeat=length)]
TEXTS += ["c", "ac", "ca", "\n", "a\n", "\\a", "aaaaa", "aaaaaa", "ababab"]
ATOMS = [
    *(("a", "a"), ("b", "b"), ("[ab]", "[ab]"), ("[^a]", "[^a]"), (".", "[^\n\r\u2028\u2029]")),
    *(("^", r"\A"), ("$", r"\Z"), ("c", "c"), ('"', '"')),
]


def random_pattern(chance, depth, looks):
    """A pattern for ECMA, and the same for Python."""

    def part():
        return random_pattern(chance, depth - 1, looks)

    kind = chance.random()
    if depth == 0 or kind < 0.3:
        return chance.choice(ATOMS)
    if kind < 0.5:
        pieces = ["", part(), part()]
    elif kind < 0.65:
        pieces = ["(?:", part(), "|", part(), ")"]
    elif kind < 0.85:
        pieces = ["(?:", part(), ")", chance.choice(["*", "+", "?", "{2}", "{1,2}", "{0,2}", "{2,}"])]
    elif kind < 0.93 and looks:
        pieces = [chance.choice(["(?=", "(?!"]), part(), ")"]
    else:
        pieces = [part(), part(), part()]
    return tuple("".join(p if isinstance(p, str) else p[side] for p in pieces) for side in (0, 1))
