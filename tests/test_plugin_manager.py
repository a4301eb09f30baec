"""Plugins: loading, naming the broken ones, configuration, imports and public names."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

import guided_plugin as gp
from guided_plugin import errors, plugins
from guided_plugin.errors import PluginError


def entry_point(name, load):
    return SimpleNamespace(
        name=name, load=load, dist=SimpleNamespace(name="third-party", version="1.2")
    )


def test_built_ins_are_ordinary_plugins():
    loaded = gp.Plugins(entry_points=False)
    assert set(loaded.names()) == set(plugins.BUILTIN_PLUGINS)
    assert set(loaded.backends) == {"xgrammar", "llguidance"}


def test_third_parties_register_through_entry_points(monkeypatch):
    class Plugin:
        @gp.hookimpl
        def register_backends(self, register):
            register("own", None)

    monkeypatch.setattr(
        plugins, "entry_points", lambda group: [entry_point("mine", Plugin)]
    )
    loaded = gp.Plugins()
    assert "mine" in loaded.names()
    assert list(loaded.backends)[-1] == "own"
    assert loaded.local == set()
    assert "mine" not in gp.Plugins(disabled=["mine"]).names()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("rewrite-lengths", "known: .*xgrammar.*remove"),
        ("xgramar", "did you mean 'xgrammar'"),
    ],
)
def test_to_disable_what_is_no_plugin_is_an_error(name, hint):
    with pytest.raises(
        PluginError, match=f"disabled_plugins: no plugin named '{name}'.*{hint}"
    ):
        gp.Plugins(disabled=[name])


def test_a_broken_third_party_is_named_with_a_way_out(monkeypatch):
    def fail():
        raise ImportError("no module named torchvision")

    monkeypatch.setattr(
        plugins, "entry_points", lambda group: [entry_point("broken", fail)]
    )
    with pytest.raises(
        PluginError,
        match=r"'broken' of third-party 1\.2.*torchvision.*disabled_plugins",
    ):
        gp.Plugins()


def test_an_unknown_hook_is_an_error_of_its_plugin():
    class Plugin:
        @gp.hookimpl
        def post_samplign(self, step):
            pass

    with pytest.raises(PluginError, match=r"'typo'.*post_samplign"):
        gp.Plugins(entry_points=False).register(Plugin(), "typo")


def test_a_hook_that_raises_is_named():
    class Plugin:
        @gp.hookimpl
        def post_sampling(self, step):
            raise ZeroDivisionError("oops")

    class Refuses:
        @gp.hookimpl
        def after_stop_criteria(self, step):
            raise errors.RequestError("mine")

    loaded = gp.Plugins(entry_points=False)
    loaded.register(Plugin(), "clumsy")
    loaded.register(Refuses(), "refuses")
    with pytest.raises(PluginError, match=r"'clumsy': post_sampling failed: .*oops"):
        loaded.post_sampling(gp.DecodeStep(0, []))
    with pytest.raises(errors.RequestError, match="mine"):
        loaded.after_stop_criteria(gp.DecodeStep(0, []))


@pytest.mark.parametrize("hook", ["post_sampling", "after_stop_criteria"])
def test_hosts_can_ask_whether_a_plugin_listens_to_steps(hook):
    class Other:
        @gp.hookimpl
        def request_failed(self, request):
            pass

    listener = type("Listener", (), {hook: gp.hookimpl(lambda self, step: None)})()
    loaded = gp.Plugins(entry_points=False)
    loaded.register(Other())
    assert not loaded.listens_to_steps
    loaded.register(listener)
    assert loaded.listens_to_steps
    loaded.unregister(listener)
    assert not loaded.listens_to_steps


def test_setup_hooks_that_fail_or_collide_are_named():
    class Fails:
        @gp.hookimpl
        def register_backends(self, register):
            raise OSError("disk")

    class Twice:
        @gp.hookimpl
        def register_backends(self, register):
            register("xgrammar", None)

    loaded = gp.Plugins(entry_points=False)
    with pytest.raises(PluginError, match=r"'fails'.*disk"):
        loaded.register(Fails(), "fails")
    with pytest.raises(PluginError, match=r"'twice'.*'xgrammar' is registered already"):
        loaded.register(Twice(), "twice")
    with pytest.raises(PluginError, match="can't be registered"):
        loaded.register(Twice(), "twice")


def test_what_a_disabled_plugin_offered_is_missed_by_name():
    with pytest.raises(PluginError, match="disabled plugins: xgrammar"):
        gp.Plugins(disabled=["xgrammar"], entry_points=False).backend("xgrammar")
    with pytest.raises(PluginError, match="did you mean 'xgrammar'"):
        gp.Plugins(entry_points=False).backend("xgramar")


def test_importing_the_package_imports_nothing_else():
    code = (
        "import sys; before = set(sys.modules); import guided_plugin; "
        "print(*sorted(m for m in set(sys.modules) - before if not m.startswith('_')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    ours = [name for name in done.stdout.split() if name.startswith("guided_plugin")]
    assert ours == ["guided_plugin", "guided_plugin._version"]
    assert not {"torch", "xgrammar", "numpy", "transformers"} & set(done.stdout.split())


def test_names_of_the_package_are_found_once_and_listed():
    assert gp.OutputSpec is vars(gp)["OutputSpec"]  # kept after its first use
    assert set(gp.__all__) <= set(dir(gp))
    code = "import guided_plugin; guided_plugin.errors.GuidedError; print(guided_plugin.UNGUIDED)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(gp.UNGUIDED)


PUBLIC = """
UNGUIDED DecodeLoop DecodeStep GrammarCompiler Guide GuidedConfig GuidedError Output OutputSpec Plugins
RequestInfo StepPipeline TorchRanks TypedSpec Vocabulary __version__
errors explain_output hookimpl shared_compiler
"""


def test_public_names():
    assert sorted(gp.__all__) == sorted(PUBLIC.split())
    assert all(getattr(gp, name) is not None for name in gp.__all__)
    with pytest.raises(AttributeError):
        gp.nothing  # noqa: B018
