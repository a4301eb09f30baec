"""Loads plugins and holds what they register. Depends on hookspecs and errors.

Built-ins are ordinary plugins of the same hooks. Third parties register through the
entry-point group `guided_plugin`. A broken or disabled plugin is always named.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from guided_plugin import hookspecs
from guided_plugin.errors import GuidedError, PluginError, did_you_mean

if TYPE_CHECKING:
    from guided_plugin.grammar.base import BackendFactory
    from guided_plugin.step import ProcessorFactory

ENTRY_POINT_GROUP = "guided_plugin"

BUILTIN_PLUGINS = {
    "xgrammar": "guided_plugin.grammar.xgrammar.backend",
    "llguidance": "guided_plugin.grammar.llguidance.backend",
}

T = TypeVar("T")


def _hook(name: str, argument: str) -> Callable[[Plugins, Any], None]:
    """A method that calls a hook with one call of pluggy. A failure names the plugins
    that implement it."""

    def call(self: Plugins, value: Any) -> None:
        hook = getattr(self._manager.hook, name)
        try:
            hook(**{argument: value})
        except GuidedError:
            raise
        except Exception as error:
            names = ", ".join(one.plugin_name for one in hook.get_hookimpls())
            raise PluginError(f"{name} failed: {error!r}", **_blame(names)) from error

    return call


class Plugins:
    """The plugins of one host: what they registered, and the step hooks, ready to
    call."""

    def __init__(
        self, *, disabled: Iterable[str] = (), entry_points: bool = True
    ) -> None:
        self.disabled = frozenset(disabled)
        self.entry_points = entry_points
        """True if third parties were looked for: a grammar worker loads the same
        plugins."""
        self.local: set[str] = set()
        """Backends of plugins that were added as objects: no other process has
        them."""
        self.listens_to_steps = False
        """True if any plugin listens to `post_sampling` or `after_stop_criteria`: where
        it is False, a host makes no `DecodeStep` and calls neither."""
        self.backends: dict[str, BackendFactory] = {}
        self.logits_processors: dict[str, ProcessorFactory] = {}
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        for name, module in BUILTIN_PLUGINS.items():
            if name not in self.disabled:
                self._add(importlib.import_module(module), name)
        if entry_points:
            self._load_entry_points()

    def register(self, plugin: object, name: str | None = None) -> None:
        """Add a plugin object or module."""
        before = set(self.backends)
        self._add(plugin, name)
        self.local |= self.backends.keys() - before

    def _add(self, plugin: object, name: str | None) -> None:
        try:
            taken = self._manager.register(plugin, name)
        except (ValueError, pluggy.PluginValidationError) as error:
            raise PluginError(
                f"can't be registered: {error}", where=f"plugin {name or plugin!r}"
            ) from error
        self._look_for_listeners()
        self._check_pending()
        for hook in _SETUP_HOOKS:
            self._collect(hook, getattr(self, hook.removeprefix("register_")), taken)

    def unregister(self, plugin: object) -> None:
        """Remove a plugin's hooks; what it registered at setup stays."""
        self._manager.unregister(plugin)
        self._look_for_listeners()

    def backend(self, name: str) -> BackendFactory:
        """The factory of a backend, or an error that lists the known ones."""
        return self._named("backend", name, self.backends)

    def logits_processor(self, name: str, *others: str) -> ProcessorFactory:
        """The factory of a logits processor, or an error that lists the known ones;
        `others`: the host's."""
        return self._named("logits processor", name, self.logits_processors, *others)

    def names(self) -> list[str]:
        """The registered plugins, by name."""
        return sorted(name for name, _ in self._manager.list_name_plugin())

    post_sampling = _hook("post_sampling", "step")
    after_stop_criteria = _hook("after_stop_criteria", "step")
    request_added = _hook("request_added", "request")
    request_finished = _hook("request_finished", "request")
    request_failed = _hook("request_failed", "request")

    def _look_for_listeners(self) -> None:
        hook = self._manager.hook
        self.listens_to_steps = bool(
            hook.post_sampling.get_hookimpls()
            or hook.after_stop_criteria.get_hookimpls()
        )

    def _load_entry_points(self) -> None:
        points = list(entry_points(group=ENTRY_POINT_GROUP))
        known = {*BUILTIN_PLUGINS, *(point.name for point in points)}
        for name in sorted(self.disabled - known):
            hint = f"{did_you_mean(name, known)}; remove a name that no plugin has"
            raise PluginError(
                f"no plugin named {name!r}", where="disabled_plugins", hint=hint
            )
        for point in points:
            if point.name not in self.disabled:
                self._add(_load(point), point.name)

    def _check_pending(self) -> None:
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            name = self._manager.get_name(error.plugin)
            raise PluginError(
                f"implements an {error}; guided_plugin.hookspecs has all hooks",
                **_blame(name),
            ) from error

    def _collect(self, hook: str, into: dict[str, Any], plugin: str | None) -> None:
        def register(name: str, value: Any) -> None:
            if name in into:
                raise PluginError(
                    f"{hook}: {name!r} is registered already", **_blame(plugin)
                )
            into[name] = value

        for implementation in getattr(self._manager.hook, hook).get_hookimpls():
            if implementation.plugin_name == plugin:
                try:
                    implementation.function(register)
                except GuidedError:
                    raise
                except Exception as error:
                    raise PluginError(
                        f"{hook} failed: {error!r}", **_blame(plugin)
                    ) from error

    def _named(self, what: str, name: str, known: dict[str, T], *others: str) -> T:
        if name in known:
            return known[name]
        hint = did_you_mean(name, {*known, *others})
        if self.disabled:
            hint += "; disabled plugins: " + ", ".join(sorted(self.disabled))
        raise PluginError(f"no {what} named {name!r}", where=what, hint=hint)


_SETUP_HOOKS: tuple[str, ...] = (
    "register_backends",
    "register_logits_processors",
)


def _blame(plugin: str | None, source: str = "") -> dict[str, str]:
    """Return the place of an error and its remedy, if a plugin is broken."""
    hint = f'leave it out with GUIDED_PLUGIN=\'{{"disabled_plugins": ["{plugin}"]}}\''
    return {"where": f"plugin {plugin!r}{source}", "hint": hint}


def _load(point: EntryPoint) -> object:
    load: Callable[[], object] = point.load
    try:
        return load()
    except Exception as error:
        source = (
            f" of {point.dist.name} {point.dist.version}"
            if point.dist is not None
            else ""
        )
        raise PluginError(
            f"can't be loaded: {error!r}", **_blame(point.name, source)
        ) from error
