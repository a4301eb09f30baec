"""Fixtures that run commands."""

from command_line import run, write

__all__ = ["run", "write"]
