"""vLLM without a server: a spec for each prompt, none for the last.

python examples/vllm_offline.py
"""

import os

# A tiny model on a CPU needs no more; a GPU ignores it.
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")  # the answers are not buried

from vllm import LLM, SamplingParams

from guided_plugin.demo import MODEL_DIR

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 18, "maximum": 90},
    },
    "required": ["name", "age"],
}
SPECS = [
    {"json_schema": PERSON},
    {"regex": "ORD-[0-9]{5}"},
    {"choice": ["yes", "no"]},
    None,
]


def main() -> None:
    llm = LLM(str(MODEL_DIR), enforce_eager=True)
    params = [
        SamplingParams(
            temperature=0, max_tokens=100, extra_args={"guided": spec} if spec else None
        )
        for spec in SPECS
    ]
    answers = llm.generate(["Person as JSON: "] * len(SPECS), params)
    for spec, answer in zip(SPECS, answers, strict=True):
        print("guided:" if spec else "free:", answer.outputs[0].text)


if __name__ == "__main__":  # vLLM's processes import this file again
    main()
