"""`guided-plugin doctor --server URL`: is the plugin on in a vLLM server that runs?
Asks the server alone."""

from __future__ import annotations

import json
import urllib.request
from http.client import HTTPException

from guided_plugin.diagnose.machine import Finding
from guided_plugin.errors import printable
from guided_plugin.hosts.vllm.headers import STATE, STATE_QUERY

SECONDS = 30.0
"""The most seconds that an answer may take: engines answer between two steps. Chosen,
not measured."""


def ask(url: str) -> Finding:
    """The verdict on the server at an address."""
    address = url.rstrip("/").removesuffix("/v1")
    try:
        if not address.startswith(("http://", "https://")):
            raise ValueError("it does not begin with http:// or https://")
        with urllib.request.urlopen(
            f"{address}/version?{STATE_QUERY}", timeout=SECONDS
        ) as answer:
            told = answer.headers.get(STATE)
            vllm = printable(f"vLLM {json.loads(answer.read(1 << 16))['version']}", 80)
        state = dict(json.loads(told or "{}"))
    except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
        # a URLError prints as `<urlopen error ...>`
        why = printable(getattr(error, "reason", error), 200)
        return Finding(
            "problem",
            f"{printable(url, 200)} does not answer like a vLLM server: {why}",
            "start the server, or write its address as http://HOST:PORT",
        )
    if not state:
        return Finding(
            "problem",
            f"{vllm} serves without the plugin: its /version?{STATE_QUERY} has no header {STATE}",
            "install guided-plugin in the server's environment, add guided_plugin to VLLM_PLUGINS if that is "
            "set, and start it again; if a proxy removes headers, ask the server behind it",
        )
    name = printable(f"guided-plugin {state.get('version')}", 80)
    if state.get("off") != "":
        what = f"{name} is installed with {vllm}, but off: {printable(state.get('off'), 400)}"
        return Finding(
            "problem", what, "change what the reason names, and start the server again"
        )
    taken = f"take_over {'on' if state.get('take_over') else 'off'}"
    return Finding(
        "ok", f"{name} is on, in the frontend and in each engine of {vllm}: {taken}"
    )
