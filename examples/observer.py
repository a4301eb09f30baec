"""A plugin of one's own that observes: requests, steps and what guiding costs, while
the demo model decodes.

python examples/observer.py
"""

from transformers import AutoModelForCausalLM, AutoTokenizer

import guided_plugin as gp
from guided_plugin.demo import DEMOS, MODEL_DIR


class Observer:
    """Its hooks are called once a step or once a request, never once a row."""

    def __init__(self) -> None:
        self.tokens = 0

    @gp.hookimpl
    def request_added(self, request: gp.RequestInfo) -> None:
        print("added:", request.request_id, "by", request.backend)

    @gp.hookimpl
    def post_sampling(self, step: gp.DecodeStep) -> None:
        self.tokens += sum(slot != gp.UNGUIDED for slot in step.slots)

    @gp.hookimpl
    def request_failed(self, request: gp.RequestInfo) -> None:
        print("failed:", request.request_id, request.error)

    @gp.hookimpl
    def request_finished(self, request: gp.RequestInfo) -> None:
        print("finished:", request.request_id)


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR)
    compiler = gp.GrammarCompiler(gp.Vocabulary.from_tokenizer(tokenizer))
    observer = Observer()
    # an installed plugin is found by its entry point
    compiler.plugins.register(observer, "observer")

    loop = gp.DecodeLoop(model, compiler)
    prompts = [tokenizer.encode(demo.prompt) for demo in DEMOS]
    specs = [gp.OutputSpec.json_schema(demo.schema) for demo in DEMOS]
    for output in loop.run(prompts, specs, max_new_tokens=200):
        print(tokenizer.decode(output.tokens))
    print(f"{observer.tokens} tokens sampled in guided rows")
    seconds = loop.pipeline.metrics().main_thread
    print(f"guiding took {seconds * 1e6:.0f} us of a step")


if __name__ == "__main__":
    main()
