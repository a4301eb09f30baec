"""Prompts: the same for all ways of a task, so that only the constraint differs."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.answers.tasks import Task
from benchmarks.harness import Json

CALL = "<tool_call>"
"""How a call begins in the chat templates that are known to hold tools."""
_ONE = (
    'Answer with JSON only: the call, an object with the keys "name" and "arguments".'
)
_MANY = 'Answer with JSON only: a list of all calls, each an object with the keys "name" and "arguments".'


def prompt_text(tokenizer: Any, task: Task) -> str:
    """Return the text that the model continues.

    A template that has tools gets them, and the answer begins behind `<tool_call>`.
    Otherwise the functions are part of the question, as they are where a list of calls
    is asked for.
    """
    if task.prompt is not None:
        return task.prompt
    template = tokenizer.chat_template or ""
    if task.tools and not task.many and CALL in template:
        text = _applied(
            tokenizer,
            task.messages,
            tools=task.tools,
        )
        return f"{text}{CALL}\n"
    messages = _with_functions(task) if task.tools else task.messages
    if not template:
        question = "\n\n".join(message["content"] for message in messages)
        return f"{question}\n\nAnswer:\n"
    return _applied(tokenizer, messages)


def _applied(tokenizer: Any, messages: list[Json], **more: Any) -> str:
    text = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, **more
    )
    return str(text)


def _with_functions(task: Task) -> list[Json]:
    """Return the messages with the functions before the first, and what to answer
    behind the last."""
    functions = "\n".join(json.dumps(tool["function"]) for tool in task.tools)
    messages = [dict(message) for message in task.messages]
    messages[0]["content"] = (
        f"You can call these functions:\n{functions}\n\n{messages[0]['content']}"
    )
    messages[-1]["content"] += f"\n\n{_MANY if task.many else _ONE}"
    return messages


def prompt_tokens(tokenizer: Any, task: Task) -> list[int]:
    """Return the tokens of the prompt.

    A chat template writes its own first token. Where there is none, a text begins with
    the tokenizer's `bos`: tokenizers that were read from GGUF do not write it, and
    Gemma repeats itself without it.
    """
    text = prompt_text(tokenizer, task)
    templated = task.prompt is None and bool(tokenizer.chat_template)
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=not templated)
    first = tokenizer.bos_token_id
    if tokenizer.chat_template or first is None or tokens[:1] == [first]:
        return tokens
    return [first, *tokens]
