"""A plugin of one's own: counts guided tokens and reports failures, while the demo model decodes.

python examples/count_tokens.py
"""

from transformers import AutoModelForCausalLM, AutoTokenizer

import guided_plugin as gp
from guided_plugin.demo import DEMOS, MODEL_DIR


class TokenCounter:
    """Is called in every step and for every failure."""

    def __init__(self) -> None:
        self.tokens = 0

    @gp.hookimpl
    def post_sampling(self, step: gp.DecodeStep) -> None:
        self.tokens += sum(slot != gp.UNGUIDED for slot in step.slots)

    @gp.hookimpl
    def request_failed(self, request: gp.RequestInfo) -> None:
        print("failed:", request.error)


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR)
    compiler = gp.GrammarCompiler(gp.Vocabulary.from_tokenizer(tokenizer))
    counter = TokenCounter()
    compiler.plugins.register(counter, "token-counter")

    loop = gp.DecodeLoop(model, compiler)
    prompts = [tokenizer.encode(demo.prompt) for demo in DEMOS]
    specs = [gp.OutputSpec.json_schema(demo.schema) for demo in DEMOS]
    for output in loop.run(prompts, specs, max_new_tokens=200):
        print(tokenizer.decode(output.tokens))
    print(f"{counter.tokens} tokens sampled in guided rows")


if __name__ == "__main__":
    main()
