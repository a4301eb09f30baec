"""What the first guided requests would wait for, made while a server starts. Depends on the compiler.

A process of a server calls `get_ready` in a thread of its own: reading a vocabulary, importing a backend and
starting helper processes take seconds together.
"""

from __future__ import annotations

import logging

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import GuidedError
from guided_plugin.ipc import processors

_log = logging.getLogger(__name__)

_PROCESSORS_PER_HELPER = 2
"""A server starts with a helper for so many processors, up to `compile_processes`."""


def get_ready(compiler: GrammarCompiler, *, helpers: bool = True) -> None:
    """Make the backends of schemas in this process and, with `helpers`, in helper processes; returns when all
    are there. What fails is left to the first spec that needs it, which gets the error."""
    if helpers:
        compiler.start(max(1, processors.count() // _PROCESSORS_PER_HELPER), every_backend=True)
    for name in compiler.usual_backends():
        try:
            compiler.warm_up(name)
        except GuidedError as error:
            _log.warning("backend %r could not get ready: %s", name, error)
    compiler.wait_started()
