"""Write docs/vllm-compared.md: the same texts, matched by this package and by vLLM's
own backends.

The specs of compare_vllm.jsonl go through vLLM's check of requests and its classes of backends, on the CPU and
without an engine, with the options of a server that sets none. Needs vLLM's interpreter
(`make compare`). A test fails when the page differs.

python scripts/compare_vllm.py
"""

from __future__ import annotations

import json
import logging
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]
os.environ["LLGUIDANCE_LOG_LEVEL"] = "0"  # matchers that refuse a text say nothing

from oracle import oracle  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402
from vllm import SamplingParams, __version__  # noqa: E402
from vllm.config import StructuredOutputsConfig  # noqa: E402
from vllm.exceptions import VLLMValidationError  # noqa: E402
from vllm.sampling_params import StructuredOutputsParams  # noqa: E402
from vllm.v1.structured_output.backend_guidance import GuidanceBackend  # noqa: E402
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend  # noqa: E402
from vllm.v1.structured_output.request import get_structured_output_key  # noqa: E402

from guided_plugin import GuidedConfig, OutputSpec  # noqa: E402
from guided_plugin.compiling.compiler import GrammarCompiler  # noqa: E402
from guided_plugin.demo import MODEL_DIR  # noqa: E402
from guided_plugin.errors import GuidedError  # noqa: E402
from guided_plugin.grammar.vocabulary import Vocabulary  # noqa: E402

TARGET = ROOT / "docs" / "vllm-compared.md"
SPECS = Path(__file__).with_suffix(".jsonl")
"""A line for each spec: its group in the page, what a request asks for, and texts."""
HEADING = "# Next to vLLM's own, spec by spec"
Takes = Callable[[str], bool]


class Ours:
    """This package with `take_over`, as a server without further options has it."""

    def __init__(self) -> None:
        self.vocabulary = Vocabulary.from_tokenizer(
            AutoTokenizer.from_pretrained(MODEL_DIR)
        )
        self.compiler = GrammarCompiler(
            self.vocabulary, config=GuidedConfig(isolate_compiles=False)
        )

    def spec(self, asked: dict[str, Any]) -> Takes | None:
        try:
            grammar = self.compiler.compile(OutputSpec.parse(asked))
        except GuidedError:
            return None

        def takes(text: str) -> bool:
            backend = self.compiler.backend(grammar.backend)
            matcher = backend.start(grammar, self.vocabulary.stop_token_ids)
            return (not text or matcher.accept_text(text.encode())) and matcher.complete

        return takes


class Theirs:
    """One of vLLM's own backends."""

    def __init__(self, name: str) -> None:
        self.config = StructuredOutputsConfig(backend=name)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(MODEL_DIR)
        make: Any = {"guidance": GuidanceBackend, "xgrammar": XgrammarBackend}[name]
        engine = SimpleNamespace(
            structured_outputs_config=self.config,
            model_config=None,
            speculative_config=None,
        )
        self.backend = make(
            engine,
            self.tokenizer,
            len(self.tokenizer),
        )

    def spec(self, asked: dict[str, Any]) -> Takes | None:
        params = SamplingParams(structured_outputs=StructuredOutputsParams(**asked))
        try:
            model: Any = SimpleNamespace(is_diffusion=False)
            params._validate_structured_outputs(
                model,
                self.config,
                self.tokenizer,
            )
        except (VLLMValidationError, ValueError):
            return None
        kind, text = get_structured_output_key(params.structured_outputs)

        def takes(output: str) -> bool:
            grammar = self.backend.compile_grammar(kind, text)
            tokens = self.tokenizer.encode(output, add_special_tokens=False)
            stop = self.tokenizer.eos_token_id
            return (
                grammar.accept_tokens("one", [*tokens, stop])
                and grammar.is_terminated()
            )

        return takes


def compared() -> Iterator[tuple[str, dict[str, Any], str, str, list[str]]]:
    """Of each text: the group and the spec, whether it is valid, what each makes of
    it."""
    sides = [
        Ours(),
        Theirs("guidance"),
        Theirs("xgrammar"),
    ]
    for line in map(json.loads, SPECS.read_text().splitlines()):
        asked = line["spec"]
        judge = oracle(asked["json"]) if "json" in asked else None
        takes = [side.spec(asked) for side in sides]
        for text in line["texts"]:
            valid = "" if judge is None else "yes" if _is_valid(judge, text) else "no"
            found = [
                "400" if one is None else "takes" if one(text) else "-" for one in takes
            ]
            yield line["group"], asked, text, valid, found


def _is_valid(judge: Callable[[Any], bool], text: str) -> bool:
    try:
        return judge(json.loads(text))
    except ValueError:
        return False


def render() -> str:
    """The page."""
    logging.disable(logging.CRITICAL)
    found = list(compared())
    logging.disable(logging.NOTSET)
    rows = [one for one in found if len(set(one[-1])) > 1]
    invalid = [
        sum(valid == "no" and each[side] == "takes" for *_, valid, each in found)
        for side in range(3)
    ]
    specs = {json.dumps(asked) for _, asked, *_ in found}
    release = __version__.partition("+")[0]
    intro = f"""
        Generated by `make compare`: texts, matched by this package with its defaults, and by the check of
        requests and the backends `guidance` and `xgrammar` of vLLM {release} with those of a server. (Its
        `auto` is `xgrammar`, and `guidance` where that refuses a spec.) A text is taken, it is not (-), or
        its spec is refused (400). `valid` is the verdict of jsonschema-rs. {len(rows)} of {len(found)} texts
        for {len(specs)} specs differ: all of these are below. Taken, though not valid, are {invalid[0]} here,
        {invalid[1]} by `guidance` and {invalid[2]} by `xgrammar`."""
    lines = [
        HEADING,
        "",
        textwrap.fill(" ".join(intro.split()), 120),
    ]
    # Texts of one spec on which the verdicts are the same are one line.
    merged: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for group, asked, text, valid, verdicts in rows:
        line = (_shown(asked), valid, *verdicts)
        merged.setdefault(group, {}).setdefault(line, []).append(_code(text))
    for group, table in merged.items():
        lines += [
            "",
            f"## {group}",
            "",
            "| spec | text | valid | here | guidance | xgrammar |",
            "|---" * 6 + "|",
        ]
        before = ""
        for (spec, *verdicts), given in table.items():
            cells = [
                "" if spec == before else spec,
                " ".join(given),
                *verdicts,
            ]
            before = spec
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _shown(asked: dict[str, Any]) -> str:
    tag = asked.get("structural_tag")
    spec = {"structural_tag": json.loads(tag)} if tag else asked.get("json", asked)
    return _code(json.dumps(spec, ensure_ascii=False))


def _code(text: str) -> str:
    """A text as code in a table; control characters as escapes."""
    visible = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode()
        for each in text
    )
    marks = "``" if "`" in visible else "`"
    return f"{marks}{visible}{marks}".replace("|", "\\|") if visible else "(empty)"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
    print(f"wrote {TARGET}")
