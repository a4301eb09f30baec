"""A model that thinks first: the schema begins after `</think>`, and what comes before
it is free.

python examples/reasoning.py

A server finds the end of the reasoning by its `--reasoning-parser`, and needs no
`start_after`.
"""

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


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR)
    guide = gp.Guide(tokenizer, model=model)

    inputs = tokenizer(
        "Person as JSON: ", return_tensors="pt", return_token_type_ids=False
    )
    length = inputs["input_ids"].shape[1]
    # The demo model, which cannot think, would not end it: near the limit it is ended.
    spec = gp.OutputSpec.json_schema(
        PERSON, start_after="</think>", close_before_length=True
    )
    out = model.generate(**inputs, **guide.generate_kwargs(spec), max_new_tokens=48)

    thought, answer = tokenizer.decode(out[0, length:], skip_special_tokens=True).split(
        "</think>"
    )
    print("thought:", thought)
    print("answer:", answer)
    guide.close()


if __name__ == "__main__":
    main()
