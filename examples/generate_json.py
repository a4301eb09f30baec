"""Guided JSON next to free text, in one batch, with the demo model.

python examples/generate_json.py
"""

from transformers import AutoModelForCausalLM, AutoTokenizer

import guided_plugin as gp
from guided_plugin.demo import MODEL_DIR


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR)
    compiler = gp.GrammarCompiler(gp.Vocabulary.from_tokenizer(tokenizer))
    loop = gp.DecodeLoop(model, compiler)

    spec = gp.OutputSpec.json_schema(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 30},
                "age": {"type": "integer"},
            },
            "required": ["name", "age"],
        }
    )
    prompt = tokenizer.encode("Person as JSON: ")
    guided, free = loop.run([prompt, prompt], [spec, None], max_new_tokens=100)
    print("guided:", tokenizer.decode(guided.tokens))
    print("free:  ", tokenizer.decode(free.tokens))


if __name__ == "__main__":
    main()
