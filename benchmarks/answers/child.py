"""One vLLM engine of `benchmarks.answers`, in a process of its own.

    python -m benchmarks.answers.child OPTIONS.json RESULT.json

The result is written again after each way, so that a time limit costs what was not
measured yet. The parent chooses the plugin's options by environment variables. Imports
vLLM.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.answers.ways import Way
from benchmarks.engine_child import answer
from benchmarks.measuring import question_in
from guided_plugin.bench import environment


def main(options_path: str, result_path: str) -> None:
    """Answer every kind of task in every way."""
    options = question_in(options_path)
    bench = Bench(options)
    result: dict[str, Any] = {
        "environment": environment(options["device"]),
        "cases": [],
    }
    for kind, tasks in itertools.groupby(options["tasks"], lambda task: task["kind"]):
        known = list(tasks)
        for way in map(Way.named, options["ways"]):
            if way.asks(kind):
                result["cases"].append(
                    {"kind": kind, "way": way.name, **bench.answers(way, known)}
                )
                answer(result, result_path)


class Bench:
    """An engine that is asked all tasks of a way in one call."""

    def __init__(self, options: dict[str, Any]) -> None:
        from vllm import LLM

        arguments = dict(options["engine"])
        if options["plugin"]:
            from guided_plugin.vllm import GuidedLogitsProcessor

            arguments["logits_processors"] = [GuidedLogitsProcessor]
        self.llm: Any = LLM(options["model"], **arguments)
        self._refused: dict[int, str] = {}
        """Reasons, by the number of the request in a call."""
        self.stepped: list[float] = []
        """When the engine gave outputs."""
        self._leave_out_refused()
        self._tell_answers(Path(options["answered"]))

    def _leave_out_refused(self) -> None:
        """Make `LLM` leave out a request that is refused: it would give up all others
        of the call."""
        from vllm.exceptions import VLLMValidationError

        add = self.llm._add_request
        self._added = 0

        def added(*args: Any, **kwargs: Any) -> str:
            number = self._added
            self._added += 1
            try:
                return str(add(*args, **kwargs))
            except (ValueError, VLLMValidationError) as error:
                self._refused[number] = str(error)
                return f"refused {number}"

        self.llm._add_request = added

    def _tell_answers(self, path: Path) -> None:
        """Make the engine add a byte to a file for each answer."""
        step = self.llm.llm_engine.step

        def stepped() -> Any:
            outputs = step()
            self.stepped.append(time.monotonic())
            with path.open("a") as told:
                told.write("." * sum(output.finished for output in outputs))
            return outputs

        self.llm.llm_engine.step = stepped

    def answers(
        self, way: Way, tasks: list[dict[str, Any]], **more: Any
    ) -> dict[str, Any]:
        """Return the outputs of all tasks, answered in one call, and the seconds that
        it took. `more`: of `SamplingParams`."""
        from vllm import SamplingParams, TokensPrompt

        self._added = 0
        self._refused = {}
        prompts = [TokensPrompt(prompt_token_ids=task["tokens"]) for task in tasks]
        params = [
            SamplingParams(
                temperature=0.0,
                max_tokens=task["max_tokens"],
                **_constraint(way, task),
                **more,
            )
            for task in tasks
        ]
        start = time.monotonic()
        outputs = iter(self.llm.generate(prompts, params, use_tqdm=False))
        seconds = time.monotonic() - start
        told = [
            _refusal(self._refused[number])
            if number in self._refused
            else _told(next(outputs))
            for number in range(len(tasks))
        ]
        return {"seconds": seconds, "outputs": told}


def _constraint(way: Way, task: dict[str, Any]) -> dict[str, Any]:
    from vllm.sampling_params import StructuredOutputsParams

    asked = way.constraint(task["schema"], task["tools"])
    if "json" in asked:
        return {"structured_outputs": StructuredOutputsParams(json=asked["json"])}
    return {"extra_args": asked} if asked else {}


def _told(output: Any) -> dict[str, Any]:
    own = output.outputs[0]
    reason = str(own.stop_reason) if own.finish_reason == "error" else None
    return {
        "text": own.text,
        "tokens": len(own.token_ids),
        "finish": own.finish_reason,
        "reason": reason,
    }


def _refusal(reason: str) -> dict[str, Any]:
    return {"text": "", "tokens": 0, "finish": "refused", "reason": reason}


if __name__ == "__main__":
    main(*sys.argv[1:3])
