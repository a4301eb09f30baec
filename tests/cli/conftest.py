"""Fixtures that run commands, with one thread."""

from command_line import one_thread, run, write

__all__ = ["one_thread", "run", "write"]
