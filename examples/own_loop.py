"""A decode loop of one's own: five calls a step on a `StepPipeline`. One row is guided,
the other is free.

python examples/own_loop.py
"""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import guided_plugin as gp
from guided_plugin.demo import MODEL_DIR

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 18, "maximum": 90},
    },
    "required": ["name", "age"],
}


@torch.inference_mode()
def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR)
    compiler = gp.GrammarCompiler(gp.Vocabulary.from_tokenizer(tokenizer))
    with gp.StepPipeline(compiler, max_slots=2, device=model.device) as pipeline:
        slot = pipeline.add_request("person", gp.OutputSpec.json_schema(PERSON))
        inputs = torch.tensor([tokenizer.encode("Person as JSON: ")] * 2)
        cache, texts = None, [[], []]
        for _ in range(200):
            pipeline.plan([slot, gp.UNGUIDED])  # the slot of each row
            # The cache is the fourth argument. Its name depends on transformers' version.
            out = model(inputs, None, None, cache, use_cache=True)
            logits, cache = out[0][:, -1].float(), out[1]
            pipeline.fill_mask()  # on a GPU: while the forward pass runs
            pipeline.apply_mask(logits)  # in place
            tokens = logits.argmax(-1)
            pipeline.schedule_update(tokens)  # right after sampling
            inputs = tokens[:, None]
            for text, token in zip(texts, tokens.tolist(), strict=True):
                text.append(token)
            pipeline.finish_update()
            if texts[0][-1] == tokenizer.eos_token_id:
                break
        error = pipeline.remove_request("person").error
    if error is not None:  # what the row holds is no guided output then
        raise error
    for name, text in zip(("guided:", "free:  "), texts, strict=True):
        print(name, tokenizer.decode(text, skip_special_tokens=True))


if __name__ == "__main__":
    main()
