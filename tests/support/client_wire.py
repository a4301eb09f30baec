"""What a server answered to a client, read beside the client. Depends on httpx alone.

Each client tells in a way of its own that an answer was cut off at its limit of tokens,
and some not at all: the reason stands in what the server sent.
"""

import json

import httpx

_ATTEMPTS = 8


class Wire:
    """HTTP clients that note why each answer ended."""

    def __init__(self):
        self.reasons: list[str | None] = []
        """Of each answer since the last call of `whole`; None: the answer has no
        reason."""
        self.finished = 0
        self.cut = 0

    def client(self):
        """For a client of the API that is synchronous."""
        return httpx.Client(transport=_Transport(self.reasons))

    def async_client(self):
        """For one that is not."""
        return httpx.AsyncClient(transport=_AsyncTransport(self.reasons))

    def whole(self, call):
        """What `call` returns for an answer that was not cut off: a small model may
        reach its limit first.

        Whatever a client raises for an answer that was finished, such as an invalid
        one, is raised.
        """
        for _ in range(_ATTEMPTS):
            self.reasons.clear()
            try:
                answer = call()
            except Exception:
                if self.reasons != ["length"]:
                    raise
            if self.reasons == ["length"]:
                self.cut += 1
                continue
            assert len(self.reasons) == 1, (
                f"one request, and answers that ended with {self.reasons}"
            )
            assert self.reasons[0] in ("stop", "tool_calls", "completed"), self.reasons
            self.finished += 1
            return answer
        raise AssertionError(f"{_ATTEMPTS} answers in a row were cut off")


def reason(body):
    """Why the answer ended: of a document, or of a stream of events."""
    lines = [
        line.removeprefix(b"data:")
        for line in body.splitlines()
        if line.startswith(b"data:")
    ]
    found = None
    for text in lines or [body]:
        if text.strip() == b"[DONE]":
            continue
        document = json.loads(text)
        response = document.get("response", document)
        ends = [choice.get("finish_reason") for choice in document.get("choices", [])]
        ends += [response.get("status")] if response.get("object") == "response" else []
        found = next(filter(None, ends), found)
    return "length" if found == "incomplete" else found


class _Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that is kept while it passes by."""

    def __init__(self, stream, reasons):
        self._stream = stream
        self._reasons = reasons
        self._body = b""
        self._noted = False

    def __iter__(self):
        for part in self._stream:
            self._body += part
            yield part

    async def __aiter__(self):
        async for part in self._stream:
            self._body += part
            yield part

    def close(self):
        self._stream.close()
        self._note()

    async def aclose(self):
        await self._stream.aclose()
        self._note()

    def _note(self):
        if not self._noted:
            self._noted = True
            self._reasons.append(reason(self._body))


class _Transport(httpx.HTTPTransport):
    def __init__(self, reasons):
        super().__init__()
        self._reasons = reasons

    def handle_request(self, request):
        response = super().handle_request(request)
        response.stream = _Body(response.stream, self._reasons)
        return response


class _AsyncTransport(httpx.AsyncHTTPTransport):
    def __init__(self, reasons):
        super().__init__()
        self._reasons = reasons

    async def handle_async_request(self, request):
        response = await super().handle_async_request(request)
        response.stream = _Body(response.stream, self._reasons)
        return response
