"""Questions of a frontend to all engines behind it. Imports vLLM lazily.

Behind vLLM's data-parallel front `AsyncLLM.collective_rpc` asks every engine, and returns what the first one
answered. What the others say matters as much: a request may go to any of them.
"""

from __future__ import annotations

import asyncio
from typing import Any

from guided_plugin.hosts.vllm.contract import broken
from guided_plugin.hosts.vllm.parts import Part


async def ask_all(llm: Any, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
    """What the workers of all engines answer to one of the plugin's methods, engine by engine."""
    client = getattr(llm, "engine_core", None)
    engines = getattr(client, "core_engines", ())
    if client is None or len(engines) < 2:
        return list(await llm.collective_rpc(method, args=args))
    changed = broken(Part.ENGINES)
    if changed is not None:
        raise changed
    ask = client._call_utility_async
    # The order of `AsyncMPClient.collective_rpc_async`: method, timeout, arguments.
    answers = await asyncio.gather(
        *(ask("collective_rpc", method, None, args, None, engine=engine) for engine in engines)
    )
    return [answer for workers in answers for answer in workers]
