"""Types and values as messages name them. Depends on errors."""

from __future__ import annotations

from typing import Any

from guided_plugin.errors import printable


def name_of(of: Any) -> str:
    """A type or function, as messages name it: `list[User]`, `User`, `weather`."""
    text = getattr(of, "__name__", "") if isinstance(of, type) or callable(of) else ""
    if not text or getattr(of, "__args__", None):
        text = repr(of).replace("typing.", "")
    return printable(text, 120)
