"""The specs that are known to compile, and those whose verdict is awaited. No processes
here; its client locks."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import GuidedError
from guided_plugin.spec import OutputSpec, identity_of, language_of
from guided_plugin.spec.memo import ENTRY_BYTES, Latest, texts_bytes
from guided_plugin.step import Admission
from guided_plugin.worker.messages import Compile, Verdict

_KNOWN_BYTES = 8 << 20
"""Memory for the specs that the worker is known to have compiled, by digest: a request
with one of them need not wait for the verdict."""


@dataclass(slots=True)
class _Ticket:
    spec: OutputSpec
    verdict: Future[Admission] = field(default_factory=Future)
    deaths: int = 0
    """Workers that died while it was open."""


class Admissions:
    """Verdicts by spec; what belongs to a request alone (stop tokens, triggers) makes
    no other spec."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._known: Latest[bytes, Future[Admission]] = Latest(_KNOWN_BYTES)
        """Verdicts of the worker that runs now; the same one for all requests."""
        self._tickets: dict[bytes, _Ticket] = {}
        """Verdicts that are awaited."""

    def __bool__(self) -> bool:
        """True if a verdict is awaited."""
        return bool(self._tickets)

    def lookup(self, spec: OutputSpec) -> Future[Admission] | None:
        """The verdict on a spec, there or awaited."""
        key = identity_of(spec)
        ticket = self._tickets.get(key)
        return self._known.get(key) if ticket is None else ticket.verdict

    def open(self, spec: OutputSpec) -> tuple[Future[Admission], Compile]:
        """Await a verdict; with the message that asks for it."""
        key = identity_of(spec)
        ticket = self._tickets[key] = _Ticket(language_of(spec))
        # Others may wait for the same one: it can't be cancelled.
        ticket.verdict.set_running_or_notify_cancel()
        return ticket.verdict, self._question(key, ticket)

    def questions(self) -> Iterable[Compile]:
        """The messages that ask for all verdicts awaited."""
        return [self._question(key, ticket) for key, ticket in self._tickets.items()]

    def judge(self, message: Verdict) -> None:
        """A verdict has come."""
        key = message.key
        answer = message.answer
        ticket = self._tickets.pop(key, None)
        if ticket is None:
            return
        if isinstance(answer, GuidedError):
            ticket.verdict.set_exception(answer)
            return
        size = 2 * ENTRY_BYTES + texts_bytes(answer.backend, answer.unenforced)
        self._known.put(key, ticket.verdict, size)
        if message.prepared is not None:
            self._compiler.keep(ticket.spec, message.prepared)
        ticket.verdict.set_result(answer)

    def begin(self) -> None:
        """Another worker begins: it has compiled nothing."""
        self._known = Latest(_KNOWN_BYTES)

    def blame(self, error: GuidedError) -> bool:
        """A worker died, maybe of one of these. Gives up those that saw it twice;
        whether there were any."""
        found = False
        for key, ticket in list(self._tickets.items()):
            ticket.deaths += 1
            if ticket.deaths >= 2:
                del self._tickets[key]
                ticket.verdict.set_exception(error)
                found = True
        return found

    def refuse(self, error: GuidedError) -> None:
        """No verdict will come."""
        tickets = self._tickets
        self._tickets = {}
        for ticket in tickets.values():
            ticket.verdict.set_exception(error)

    def _question(self, key: bytes, ticket: _Ticket) -> Compile:
        return Compile(key, ticket.spec, self._compiler.kept(ticket.spec))
