"""Guided output from transformers: generate, parsed objects, and the text-generation
pipeline.

python examples/transformers_generate.py
"""

from pydantic import BaseModel, Field
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

import guided_plugin as gp
from guided_plugin.demo import MODEL_DIR


class User(BaseModel):
    name: str = Field(max_length=30)
    age: int = Field(ge=0, le=150)


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR)
    guide = gp.Guide(tokenizer, model=model)

    inputs = tokenizer(
        "Person as JSON: ", return_tensors="pt", return_token_type_ids=False
    )
    out = model.generate(
        **inputs,
        **guide.generate_kwargs(gp.OutputSpec.json_schema(User)),
        max_new_tokens=100,
    )
    print(
        "guided:",
        tokenizer.decode(
            out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True
        ),
    )

    prompts = ["Person as JSON: ", "Person as JSON: ", "Yes or no? "]
    specs = [User, None, gp.OutputSpec.choice(["yes", "no"])]
    for output in guide.generate(model, prompts, specs, max_new_tokens=100):
        print(repr(output.parsed if output.parsed is not None else output.text))

    # A pipeline calls generate once a batch, each time with the same arguments.
    pipe = pipeline("text-generation", model=model, tokenizer=tokenizer)
    for made in pipe(
        ["Person as JSON: "] * 2,
        return_full_text=False,
        max_new_tokens=100,
        do_sample=True,
        **guide.generate_kwargs(User, reuse=True),
    ):
        print("pipeline:", User.model_validate_json(made[0]["generated_text"]))
    guide.close()


if __name__ == "__main__":
    main()
