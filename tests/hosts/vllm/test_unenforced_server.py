"""A server whose operator leaves keywords unenforced: its answers name them, as do its metrics and log."""

import json

import pytest

pytest.importorskip("vllm")


from guided_plugin.hosts.vllm.telling import UNENFORCED

pytestmark = pytest.mark.slow

TAGS = {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3, "uniqueItems": True}
LOOSE = {"type": "object", "properties": {"tags": TAGS}, "required": ["tags"]}
PLAIN = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}


def form(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


MESSAGES = [{"role": "user", "content": "Tags as JSON:"}]


def test_each_answer_names_what_nothing_enforced(client, server):
    chats = client.chat.completions.with_raw_response
    for schema, told in ((LOOSE, "uniqueItems"), (PLAIN, None), (LOOSE, "uniqueItems")):
        asked = {"model": "demo", "messages": MESSAGES, "max_tokens": 40, "response_format": form(schema)}
        assert chats.create(**asked).headers.get(UNENFORCED) == told
        streamed = chats.create(**asked, stream=True)
        assert streamed.headers.get(UNENFORCED) == told
        assert list(streamed.parse())
    holds = {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2, "contains": {"const": "a"}}
    guided = json.dumps({"json_schema": holds})
    asked = {
        "model": "demo",
        "prompt": "x",
        "max_tokens": 20,
        "extra_body": {"vllm_xargs": {"guided": guided}},
    }
    answer = client.completions.with_raw_response.create(**asked)
    assert answer.headers.get(UNENFORCED) == "contains"
    free = client.completions.with_raw_response.create(model="demo", prompt="x", max_tokens=2)
    assert UNENFORCED not in free.headers
    figures = server.get("/metrics")
    assert 'guided_plugin_unenforced_total{keyword="uniqueItems"} 4.0' in figures
    assert 'guided_plugin_unenforced_total{keyword="contains"} 1.0' in figures
    assert "as unenforced_keywords says: uniqueItems" in server.log.read_text()
