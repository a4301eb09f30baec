"""A worker in a thread, for the tests of its loop; pipelines whose workers do what they
are told."""

import gc
import pathlib
import sys
import threading

import pytest
from vocabularies import BYTES
from worker_engine import Engine

import guided_plugin as gp
from guided_plugin.compiling.chooser import Chooser


@pytest.fixture
def make_engine():
    made = []
    interval = sys.getswitchinterval()

    def make(**options):
        made.append(Engine(**options))
        return made[-1]

    yield make
    for engine in made:
        engine.end()
        engine.client.end()
    sys.setswitchinterval(interval)
    gc.unfreeze()


@pytest.fixture
def engine(make_engine):
    return make_engine()


@pytest.fixture
def go_on(monkeypatch):
    """Until this is set, specs that say they are slow don't get compiled."""
    compile = gp.GrammarCompiler.compile
    go_on = threading.Event()

    def slow(self, spec, **options):
        if "slow" in spec.text:
            go_on.wait(20)
        return compile(self, spec, **options)

    monkeypatch.setattr(gp.GrammarCompiler, "compile", slow)
    return go_on


@pytest.fixture(scope="module")
def templates():
    """Templates with the backend `faulty`, by configuration. To start one takes
    seconds, so a module's tests share them; what a compiler remembers is not shared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(
            str(pathlib.Path(__file__).parents[1] / "support" / "faults")
        )
        owners = {}
        yield (
            lambda config: (
                owners.setdefault(
                    config, gp.GrammarCompiler(BYTES, config=config)
                ).template
            )
        )
        for owner in owners.values():
            owner.close()


@pytest.fixture
def make(templates):
    """Makes pipelines whose workers know the backend `faulty`; ends them."""
    made = []

    def make(slots=8, *, own_template=False, ranks=None, **config):
        config = gp.GuidedConfig(**{"threads": 2, "worker_step_ms": 60_000, **config})
        plugins = gp.Plugins()
        built = (
            None
            if own_template
            else (Chooser(BYTES, config, plugins), templates(config))
        )
        compiler = gp.GrammarCompiler(
            BYTES, config=config, plugins=plugins, built=built
        )
        pipe = gp.StepPipeline(compiler, max_slots=slots, mode="process", ranks=ranks)
        made.append(pipe)
        return pipe

    yield make
    for pipe in made:
        pipe.close()
