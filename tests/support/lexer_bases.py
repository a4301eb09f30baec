"""What tests of lexers put in place of llguidance, and their requests."""


class Base:
    """In place of a matcher at the beginning of a grammar."""

    def __init__(self, error=False):
        self.error = error

    def is_error(self):
        return self.error

    def deep_copy(self):
        return self

    def compute_bitmask(self):
        return b""


def add(table, slots, grammar, backend, tokens=()):
    """Requests for a grammar, in these slots of a table, which have some tokens."""
    for slot in slots:
        table.add(slot, str(slot), grammar.spec, grammar, backend, tokens)
