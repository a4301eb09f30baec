"""A model that thinks first: the schema begins after `</think>`, and what comes before
it is free.

python examples/reasoning.py

A server finds the end of the reasoning by its `--reasoning-parser`, and needs no
`start_after`.
"""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor

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


class ThinkingBudget(LogitsProcessor):
    """Ends the reasoning after so many tokens. The demo model, which can't think, would
    not end it."""

    def __init__(self, prompt: int, tokens: int, end: list[int]) -> None:
        self.start, self.end = prompt + tokens, end

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        position = input_ids.shape[1] - self.start
        if 0 <= position < len(self.end):
            scores = torch.full_like(scores, -torch.inf)
            scores[:, self.end[position]] = 0.0
        return scores


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR)
    guide = gp.Guide(tokenizer, model=model)

    inputs = tokenizer(
        "Person as JSON: ", return_tensors="pt", return_token_type_ids=False
    )
    length = inputs["input_ids"].shape[1]
    budget = ThinkingBudget(length, 12, tokenizer.encode("</think>"))
    spec = gp.OutputSpec.json_schema(PERSON, start_after="</think>")
    guided = guide.generate_kwargs(spec, logits_processor=[budget])
    out = model.generate(**inputs, **guided, max_new_tokens=200)

    thought, answer = tokenizer.decode(out[0, length:], skip_special_tokens=True).split(
        "</think>"
    )
    print("thought:", thought)
    print("answer:", answer)
    guide.close()


if __name__ == "__main__":
    main()
