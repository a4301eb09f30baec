"""Fixtures that most tests share: a vocabulary small enough to reason about, and the
shipped model."""

import os

# Tests run next to each other, and their models are tiny: more threads than one only
# wait for each other. Set before PyTorch is imported, and inherited by the processes
# that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from compilers import compiler_of
from vocabularies import BYTES

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.demo import MODEL_DIR
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.grammar.xgrammar.backend import XGrammarBackend
from guided_plugin.plugins import Plugins

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def config():
    """Defaults with a fixed number of threads, so that no test depends on the machine's
    processors."""
    return GuidedConfig(threads=2)


@pytest.fixture(scope="session")
def byte_vocabulary():
    return BYTES


@pytest.fixture(params=["inline", "process"])
def mode(request):
    """Both places where grammars can work."""
    return str(request.param)


@pytest.fixture
def plugins():
    """The built-in plugins, without those that happen to be installed on this
    machine."""
    return Plugins(entry_points=False)


@pytest.fixture
def byte_compiler(byte_vocabulary, config, plugins):
    """A compiler of its own for `byte_vocabulary`: nothing cached, no counts."""
    return GrammarCompiler(byte_vocabulary, config=config, plugins=plugins)


@pytest.fixture(scope="module")
def compiler(byte_vocabulary):
    """One that works in this process, for all tests of a file."""
    return compiler_of(byte_vocabulary)


@pytest.fixture(scope="session")
def byte_backend(byte_vocabulary, config):
    """The xgrammar backend for `byte_vocabulary`. Shared: it holds no state of any
    request."""
    return XGrammarBackend(byte_vocabulary, config)


@pytest.fixture(scope="session")
def quiet_transformers():
    """transformers, without progress bars and without a word on stderr."""
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    return transformers


@pytest.fixture(scope="session")
def demo_tokenizer(quiet_transformers):
    """The tokenizer of the shipped model: byte-level BPE."""
    return quiet_transformers.AutoTokenizer.from_pretrained(
        MODEL_DIR, local_files_only=True
    )


@pytest.fixture(scope="session")
def demo_model(quiet_transformers):
    """The shipped model, on the CPU, in float32. Shared: never write to it."""
    import torch

    return (
        quiet_transformers.AutoModelForCausalLM.from_pretrained(
            MODEL_DIR, local_files_only=True, dtype=torch.float32
        )
        .eval()
        .requires_grad_(False)
    )


@pytest.fixture(scope="session")
def demo_vocabulary(demo_tokenizer):
    """The vocabulary of the shipped model's tokenizer."""
    return Vocabulary.from_tokenizer(demo_tokenizer)
