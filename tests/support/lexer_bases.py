"""What tests of lexers put in place of llguidance."""


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
