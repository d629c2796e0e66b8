"""The network between a client and the storage, with its faults.

A request and its answer each take some time. A request takes effect even if its sender was killed or gave up meanwhile;
an answer can be lost; a call can be refused before it has an effect. A sender gets the errors of the real adapters:
`StorageUnavailable` only if the call had no effect, `Unsettled` for a write that may have had one.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from samza_azure.errors import AccessDenied, SamzaAzureError, StorageUnavailable, Unsettled
from samza_azure.storage.memory import Link
from simulator.steps import Steps

T = TypeVar("T")

#: Calls that change nothing.
READS = frozenset({"control.read", "rows.get", "rows.query", "blobs.read", "blobs.list", "hints.poll"})

#: The share of the calls that a throttling service refuses, before they have an effect.
THROTTLED = 0.4


@dataclass(slots=True)
class Outage:
    """Part of the service is down, or denies access. `reaches` says whether an operation is affected."""

    kind: str  # blob, table, writes, reads, all, access, throttled
    until: float
    hangs: bool  # calls wait for their timeout, instead of failing at once
    after_s: float = 0.0  # the Retry-After of a throttling service
    queues: bool = False  # most writes that hang land when it is over; renewals of a lease do not

    def reaches(self, operation: str) -> bool:
        """Whether it affects this call."""
        match self.kind:
            case "blob":
                return operation.startswith(("control.", "blobs."))
            case "table":
                return operation.startswith(("rows.", "hints."))
            case "writes":
                return operation not in READS
            case "reads":
                return operation in READS
            case "access":  # only for coordination: tests of the container show how it reacts
                return operation.startswith(("control.", "rows."))
        return True


@dataclass(slots=True)
class Weather:
    """The current state of the network, for all clients."""

    latency_s: float = 0.01
    tail: float = 0.0  # part of the calls that take up to a hundred times as long
    refused: float = 0.0  # part of the calls that fail before they have an effect
    lost: float = 0.0  # part of the calls whose answer is lost
    late: float = 0.0  # part of the calls that land after their sender has given up
    outages: list[Outage] = field(default_factory=list)

    def clear(self) -> None:
        """End all faults of the network."""
        self.latency_s, self.tail, self.refused, self.lost, self.late = 0.01, 0.0, 0.0, 0.0, 0.0
        self.outages.clear()


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of the call that takes effect now, and the time at which it was sent."""

    name: str
    life: int
    sent_at: float


#: The sender of the call that takes effect at this instant; the ledger reads it.
SENDER: ContextVar[Sender | None] = ContextVar("sender", default=None)


class FaultyLink(Link):
    """One client's link. Its `outages` affect this client alone."""

    def __init__(self, name: str, life: int, weather: Weather, dice: Random, seen: Counter[str], steps: Steps) -> None:
        self.name, self.life = name, life
        self.outages: list[Outage] = []
        self.late_write: Callable[[], float] | None = None  # how long the next write of the control blob takes
        self.refused: Callable[[str, object], None] = lambda operation, answer: None
        self.sent: Callable[[str], None] = lambda operation: None
        self._weather, self._dice, self._seen, self._steps = weather, dice, seen, steps

    async def carry(self, operation: str, effect: Callable[[], T], timeout: float) -> T:
        loop = asyncio.get_running_loop()
        self._seen[f"call {operation}"] += 1
        self.sent(operation)
        weather, dice, now = self._weather, self._dice, loop.time()
        there, back = self._delay(), self._delay()
        lands, answers = True, True
        late_write = self.late_write if operation == "control.write" else None
        outage = self._outage(operation, now)
        if outage is not None:
            self._seen[f"outage {outage.kind} {operation}"] += 1
            if outage.kind == "access":
                await asyncio.sleep(there)
                raise AccessDenied("The simulated account refuses this key.")
            if not outage.hangs:
                await asyncio.sleep(there)
                raise StorageUnavailable("The simulated service is away.", after_s=outage.after_s)
            lands, answers = dice.random() < (0.8 if outage.queues else 0.1), False
            lands = lands and not (outage.queues and operation == "control.renew")
            if outage.queues and operation not in READS:
                there += outage.until - now
        elif late_write is not None:
            self._steps.meet("call late")
            there, self.late_write = late_write(), None
        elif (luck := dice.random()) < weather.refused:
            self._steps.meet("call refused")
            await asyncio.sleep(there)
            if operation in READS or dice.random() < 0.5:
                raise StorageUnavailable("The simulated network refused the connection.")
            raise Unsettled("The simulated service answered 500 and did nothing.")
        elif luck < weather.refused + weather.lost:
            self._steps.meet("answer lost")
            answers = False
        elif luck < weather.refused + weather.lost + weather.late:
            self._steps.meet("call late")
            there = timeout * (0.5 + 3 * dice.random())

        answer: asyncio.Future[T] = loop.create_future()

        def land() -> None:
            try:
                result = effect()
            except (SamzaAzureError, ValueError) as error:  # any other error is a failure of the seed
                if not answer.done():
                    answer.set_exception(error)
                return
            if late_write is not None:
                self._seen[f"late take-over {'accepted' if isinstance(result, str) else 'refused'}"] += 1
            if answers:
                loop.call_later(back, lambda: None if answer.done() else answer.set_result(result))

        if lands:
            token = SENDER.set(Sender(self.name, self.life, now))
            loop.call_later(there, land)
            SENDER.reset(token)
        in_time = lands and answers and there + back < timeout
        timer = None if in_time else loop.call_later(timeout, _give_up, answer)
        try:
            result = await answer
        except TimeoutError:
            if operation in READS:
                raise StorageUnavailable(f"No answer to {operation}.") from None
            raise Unsettled(f"No answer to {operation}.") from None
        finally:
            if timer is not None:
                timer.cancel()
        self.refused(operation, result)
        return result

    def _outage(self, operation: str, now: float) -> Outage | None:
        for outage in (*self._weather.outages, *self.outages):
            hit = now < outage.until and outage.reaches(operation)
            if hit and (outage.kind != "throttled" or self._dice.random() < THROTTLED):
                return outage
        return None

    def _delay(self) -> float:
        dice = self._dice
        delay = self._weather.latency_s * (0.5 + dice.random())
        if dice.random() >= self._weather.tail:
            return delay
        self._steps.meet("call slow")
        return delay * 100 * dice.random()


def _give_up(answer: "asyncio.Future[Any]") -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())
