"""Fixtures that run commands, with one thread."""

from command_line import run, standard_input, write

__all__ = ["run", "standard_input", "write"]
