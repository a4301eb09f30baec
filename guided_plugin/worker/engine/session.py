"""One worker after the other, from a client's point of view: what a new worker is told,
and what workers answer. The supervisor's thread calls this.
"""

from __future__ import annotations

from guided_plugin._version import __version__
from guided_plugin.errors import BudgetError, GuidedError, RequestError, printable
from guided_plugin.ipc.channel import Channel
from guided_plugin.step import UNGUIDED
from guided_plugin.worker.engine.client import WorkerClient
from guided_plugin.worker.messages import (
    Hello,
    Outcome,
    Ready,
    Synced,
    Verdict,
)
from guided_plugin.worker.words import Counter


class Session:
    """The sessions of one client with its workers; at most one at a time."""

    def __init__(self, client: WorkerClient) -> None:
        self.client = client

    def begin(self, channel: Channel, *, isolate: bool) -> None:
        """Tell a new worker everything: the live requests, the steps in flight. With
        `isolate` it works on the rows of those steps one by one.

        The plans of those steps are rewritten before the `Hello`: a worker reads them
        as soon as it has that, and a plan of the session before says how many messages
        that one had.
        """
        client = self.client
        region = client.region
        steps = client.steps
        with steps.lock:
            accepted = steps.landed
            filled = steps.filled
            steps.harvest(accepted)
            region.store(Counter.ACCEPTED, accepted)
            region.store(Counter.DOING, 0)
            region.store(Counter.HEARTBEAT, 0)
            client.admissions.begin()
            news = self._news()
            client.channel, steps.messages = channel, len(news)
            for step, published in steps.in_flight(min(filled, accepted)):
                # All requests are told; some that were planned have left since.
                slots = [request.slot for request in published.requests]
                for row, request in enumerate(published.requests):
                    if not client.requests.runs(request):
                        slots[row] = UNGUIDED
                        if step > filled:
                            client.requests.fail(request, _LEFT)
                steps.rewrite(step, slots, next(client.numbers))
            isolate_until = steps.planned + 1 if isolate else min(filled, accepted)
            channel.send(
                Hello(__version__, region.shape, filled, accepted, isolate_until)
            )
            for message in news:
                channel.send(message)

    def _news(self) -> list[object]:
        """The messages that follow the `Hello`."""
        client = self.client
        news: list[object] = []
        for request in client.requests.values():
            closure = client.requests.closure(request)
            # The worker before may have closed it, and ended before it could send that.
            if closure is not None and closure.reason:
                client.requests.fail(request, RequestError(closure.reason))
            request.prepared = client.compiler.kept(request.spec)
            news.append(request)
        news += client.admissions.questions()
        news += [sync for _, sync in client.syncs.values()]
        return news

    def end(self) -> None:
        """There is no worker."""
        with self.client.steps.lock:
            self.client.channel = None

    def received(self, message: object) -> None:
        """Take a message of the worker."""
        client = self.client
        with client.steps.lock:
            if isinstance(message, Verdict):
                client.admissions.judge(message)
            elif isinstance(message, Outcome):
                running = client.requests.values()
                request = next(
                    (one for one in running if one.serial == message.serial), None
                )
                if request is None:
                    return
                error = message.error
                if isinstance(error, str):
                    request.state.unprotected = error
                elif request.error is None:
                    client.requests.fail(request, error, message.count)
                    if isinstance(error, BudgetError):
                        client.compiler.quarantine(request.spec, error)
            elif isinstance(message, Synced):
                waiting = client.syncs.pop(message.ticket, None)
                if waiting is not None:
                    waiting[0].set_result(None)
            elif isinstance(message, Ready):
                client.ready.set()

    def blame(self, slot: int | None, reason: str, *, hung: bool = False) -> str:
        """Attribute a worker's end to a request or to a spec: which one explains it, or
        nothing. `slot` is the request that the worker worked on alone, if there is one;
        else it may have been compiling.

        A request that a worker hangs on is to blame at once. One that a worker dies on
        may merely have been next when the machine ended the worker: it is to blame the
        second time.
        """
        client = self.client
        with client.steps.lock:
            request = None if slot is None else client.requests.get(slot)
            if request is not None:
                request.deaths += 1
                if request.deaths >= 2 or hung:
                    error = (
                        _hung_on(reason)
                        if hung
                        else _deadly("working on this request", reason)
                    )
                    client.requests.fail(request, error)
                    client.compiler.quarantine(request.spec, error)
                    return f"request {printable(request.request_id)}"
            blamed = client.admissions.blame(_deadly("compiling this spec", reason))
            return "a spec that it compiles" if blamed else ""


_LEFT = RequestError(
    "the grammar worker ended in the last step of the request", hint="send it again"
)


def _deadly(doing: str, reason: str) -> GuidedError:
    return RequestError(
        f"{doing} ended the grammar worker twice",
        hint=f"it is not tried a third time; the last one {reason}",
    )


def _hung_on(reason: str) -> GuidedError:
    return BudgetError(
        f"the grammar worker {reason} while it works on this request alone",
        hint="write its grammar without ambiguity; worker_step_ms sets the limit",
    )
