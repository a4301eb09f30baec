"""Fixtures that run commands, with one thread."""

from command_line import run, write

__all__ = ["run", "write"]
