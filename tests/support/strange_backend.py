"""A backend `strange` that does in a helper process what the grammar says, as the text
of a plugin."""

from guided_plugin import OutputSpec, Vocabulary

VOCABULARY = Vocabulary.from_tokens(
    [*(bytes([byte]) for byte in range(256)), b"</s>"], [256]
)

# Too large to be compiled in this process.
LARGE = {
    "type": "object",
    "properties": {f"p{i}": {"type": "integer", "title": "x" * 20} for i in range(300)},
}

PLUGIN = """
import os, pathlib, signal, time
import guided_plugin
from guided_plugin.grammar.base import Prepared
from guided_plugin.errors import UnsupportedSpecError

class Strange:
    name = "strange"
    def __init__(self, vocabulary, config):
        deaths = pathlib.Path(os.environ.get("STRANGE_DEATHS", "-"))  # named after the host's process
        if deaths.is_dir() and deaths.name != str(os.getpid()):
            for death in deaths.iterdir():
                death.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
    def compile(self, spec):
        raise UnsupportedSpecError("only a helper may compile this")
    def prepare(self, spec):
        what = spec.text
        if "sleep" in what:
            time.sleep(600)
        while "spin" in what:
            pass
        if "kill" in what:
            os.kill(os.getpid(), signal.SIGKILL)
        if "stop" in what:
            os.kill(os.getpid(), signal.SIGSTOP)
        if "memory" in what:
            held = []
            while True:
                held.append(bytearray(1 << 24))
        if "print" in what:
            print("nonsense on stdout", flush=True)
            os.write(1, b"more nonsense")
        if "raise" in what:
            raise ValueError("went wrong")
        raise UnsupportedSpecError(f"refused in process {os.getpid()}")
    def load(self, prepared):
        raise NotImplementedError

class Plugin:
    @guided_plugin.hookimpl
    def register_backends(self, register):
        register("strange", Strange)

plugin = Plugin()
"""


def strange(what):
    # Too long to be compiled in this process.
    return OutputSpec.grammar(
        f"root ::= {what}" + " # padding" * 200, backend="strange"
    )
