"""Grammar-guided decoding as a plugin: JSON Schema, regex, choice, grammars and
structural tags.

`import guided_plugin` imports neither torch nor anything else of the package: names
load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from guided_plugin._version import __version__

if TYPE_CHECKING:
    from guided_plugin import errors
    from guided_plugin.compiling.compiler import GrammarCompiler, shared_compiler
    from guided_plugin.config import GuidedConfig
    from guided_plugin.diagnose.explain import explain_output
    from guided_plugin.errors import GuidedError
    from guided_plugin.grammar.vocabulary import Vocabulary
    from guided_plugin.hookspecs import hookimpl
    from guided_plugin.hosts.loop import DecodeLoop, Output
    from guided_plugin.hosts.transformers.guide import Guide
    from guided_plugin.pipeline.pipeline import StepPipeline
    from guided_plugin.plugins import Plugins
    from guided_plugin.spec import OutputSpec, TypedSpec
    from guided_plugin.step import UNGUIDED, DecodeStep, RequestInfo
    from guided_plugin.worker.ranks.group import TorchRanks

__all__ = [
    "UNGUIDED",
    "DecodeLoop",
    "DecodeStep",
    "GrammarCompiler",
    "Guide",
    "GuidedConfig",
    "GuidedError",
    "Output",
    "OutputSpec",
    "Plugins",
    "RequestInfo",
    "StepPipeline",
    "TorchRanks",
    "TypedSpec",
    "Vocabulary",
    "__version__",
    "errors",
    "explain_output",
    "hookimpl",
    "shared_compiler",
]

_NAMES = {
    "compiling.compiler": ("GrammarCompiler", "shared_compiler"),
    "config": ("GuidedConfig",),
    "diagnose.explain": ("explain_output",),
    "errors": ("GuidedError",),
    "grammar.vocabulary": ("Vocabulary",),
    "hookspecs": ("hookimpl",),
    "hosts.loop": ("DecodeLoop", "Output"),
    "hosts.transformers.guide": ("Guide",),
    "pipeline.pipeline": ("StepPipeline",),
    "plugins": ("Plugins",),
    "spec": ("OutputSpec", "TypedSpec"),
    "step": ("UNGUIDED", "DecodeStep", "RequestInfo"),
    "worker.ranks.group": ("TorchRanks",),
}
_LAZY = {name: module for module, names in _NAMES.items() for name in names}
"""The module of each name that is imported on first use."""


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module(f"{__name__}.errors")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    except ModuleNotFoundError as error:
        from guided_plugin.errors import MissingPackageError

        raise MissingPackageError.of(error, f"{__name__}.{name}") from error
    globals()[name] = value  # found at once the next time
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
