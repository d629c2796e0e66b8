"""Azure's Scheduled Events: what the platform will do to this machine, and when, from its metadata service.

`watch` asks once a second, in a thread of its own. An event that ends this machine, or stops it for longer than the
group waits, is a notice; when the event is no longer listed, the notice is withdrawn. An event is approved, so that it
need not wait for its time, once everything is handed over, and only if it concerns no other machine: approval starts it
for all its resources.

Promised: nothing here holds up a heartbeat or a task, and no event of another machine changes anything. Not promised: a
notice. A machine may fail without one.
"""

import json
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Protocol

from samza_azure.group.notice import Availability, Going
from samza_azure.machine.clock import boot_time, wall_ms

__all__ = ["Event", "Told", "Watch", "approvable", "concerns", "due_ms", "events_in"]

log = logging.getLogger(__name__)

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
#: The interval between two questions, in seconds; after a failure it doubles, up to the second.
ASK_S, ASK_MOST_S = 1.0, 30.0
#: The first question of a machine may take two minutes, since it switches the service on.
FIRST_S, ANSWERS_S = 150.0, 10.0
#: Events after which nothing of this machine is left, or for which it stops for minutes.
ENDS = ("Preempt", "Terminate", "Redeploy", "Reboot")
#: A machine that stops for a while hands over this long before.
FREEZES_S = 60.0
#: More is not read of an answer.
ANSWER_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Event:
    """What the platform will do, and to which machines. `not_before_ms`: since 1970; None: now, or it is not said."""

    id: str
    kind: str
    resources: tuple[str, ...]
    is_started: bool
    not_before_ms: int | None
    lasts_s: float  # less than 0: unknown


def events_in(document: object) -> list[Event]:
    """The events of machines in an answer. What makes no sense is left out."""
    listed = document.get("Events") if isinstance(document, Mapping) else None
    found = []
    for each in listed if isinstance(listed, list) else ():
        if not isinstance(each, Mapping) or each.get("ResourceType") != "VirtualMachine":
            continue
        resources, lasts_s = each.get("Resources"), each.get("DurationInSeconds", -1)
        if not isinstance(each.get("EventId"), str) or not isinstance(resources, list):
            continue
        found.append(
            Event(
                each["EventId"],
                str(each.get("EventType", "")),
                tuple(str(name) for name in resources),
                each.get("EventStatus") == "Started",
                _ms(each.get("NotBefore")),
                float(lasts_s) if isinstance(lasts_s, int | float) else -1.0,
            )
        )
    return found


def _ms(text: object) -> int | None:
    """A time as in `Mon, 19 Sep 2016 18:29:47 GMT`, in milliseconds since 1970; None if there is none."""
    try:
        return round(parsedate_to_datetime(str(text)).timestamp() * 1000)
    except (TypeError, ValueError, OverflowError):
        return None


def concerns(event: Event, machine: str, now_ms: int, patience_s: float) -> bool:
    """Whether an event is a notice for this machine. One that stops it for less than `patience_s`, or for an unknown
    time, is not: the group waits as long, and its tasks would move twice.
    """
    if machine.casefold() not in (name.casefold() for name in event.resources):
        return False
    if event.kind in ENDS:
        return True
    is_soon = event.is_started or event.not_before_ms is None or event.not_before_ms <= now_ms + FREEZES_S * 1000
    return event.kind == "Freeze" and event.lasts_s > patience_s and is_soon


def due_ms(event: Event, now_ms: int) -> int:
    """When it may begin: one that has begun, as after a failure of the hardware, or has no time, may do so now."""
    return now_ms if event.is_started or event.not_before_ms is None else event.not_before_ms


def approvable(event: Event, machine: str) -> bool:
    """Whether it may be approved once everything is handed over: it waits for that, and concerns no other machine."""
    is_alone = [name.casefold() for name in event.resources] == [machine.casefold()]
    return event.kind in ENDS and not event.is_started and is_alone


class Told(Protocol):
    """Who is told of notices: a coordinator, or a worker of a cluster."""

    def decommission(self, why: str, *, by: float | None = None, source: str = "") -> object:
        """This machine goes, at the latest at this boot time."""

    def recommission(self, source: str) -> object:
        """The notice of this source is withdrawn."""

    @property
    def going(self) -> Going | None:
        """What was handed over since."""


class Watch:
    """Watches for events until the process ends."""

    def __init__(self, coordinator: Told, url: str, patience_s: float) -> None:
        """`patience_s`: how long this machine may stand still before its tasks had better move."""
        self._coordinator, self._url, self._patience_s = coordinator, url.rstrip("/"), patience_s
        self._machine = ""
        self._known: dict[str, Event] = {}  # the events that are notices, by source
        self._approved: set[str] = set()
        self._failures = 0
        self._has_answered = False
        self._closed = threading.Event()

    def start(self) -> None:
        """Watch in a thread of its own."""
        threading.Thread(target=self._live, name="scheduled events", daemon=True).start()

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()

    def _live(self) -> None:
        while not self._closed.wait(self.turn()):
            pass

    def turn(self) -> float:
        """Ask once, and do what follows. Return for how many seconds to wait."""
        try:
            self._machine = self._machine or self._ask(NAME).decode().strip()
            document = json.loads(self._ask(EVENTS))
        except urllib.error.HTTPError as error:
            return self._failed(f"it answers {error.code}", error.headers.get("Retry-After"))
        except (OSError, ValueError) as error:
            return self._failed(str(error) or type(error).__name__)
        if self._failures or not self._has_answered:
            log.info("Scheduled Events are watched for the machine %s", self._machine)
        self._failures, self._has_answered = 0, True
        self._heed(events_in(document))
        return ASK_S

    def _heed(self, events: Iterable[Event]) -> None:
        now_ms = wall_ms()
        present = {f"event {each.id}": each for each in events if self._is_notice(each, now_ms)}
        for source in self._known.keys() - present.keys():
            log.info("%s is no longer scheduled", source)
            self._coordinator.recommission(source)
        for source, event in present.items():
            if source not in self._known:
                by = boot_time() + (due_ms(event, now_ms) - now_ms) / 1000
                log.warning("%s: Azure will %s this machine", source, event.kind.lower())
                self._coordinator.decommission(f"{event.kind}, Scheduled Events", by=by, source=source)
        self._known = present
        going = self._coordinator.going
        if going is not None and going.state is Availability.DECOMMISSIONED:
            for event in present.values():
                if event.id not in self._approved and approvable(event, self._machine):
                    self._approve(event)

    def _is_notice(self, event: Event, now_ms: int) -> bool:
        """A notice stays one while the event is listed: a started freeze must not bring the processor back."""
        known = f"event {event.id}" in self._known
        return known or concerns(event, self._machine, now_ms, self._patience_s)

    def _approve(self, event: Event) -> None:
        body = json.dumps({"StartRequests": [{"EventId": event.id}]}).encode()
        try:
            self._ask(EVENTS, body)
        except urllib.error.HTTPError as error:
            if error.code == 400:  # it has begun, or is gone: the next answer says so
                self._approved.add(event.id)
            log.warning("event %s could not be approved: the metadata service answers %d", event.id, error.code)
        except OSError as error:
            log.warning("event %s could not be approved: %s", event.id, error)
        else:
            self._approved.add(event.id)
            log.warning("event %s is approved: everything is handed over", event.id)

    def _failed(self, why: str, retry_after: str | None = None) -> float:
        self._failures += 1
        if self._failures == 1:
            log.warning(
                "The metadata service at %s gives no Scheduled Events: %s. It is asked again. Outside of a virtual "
                "machine of Azure there is none: then leave host.notices out.",
                self._url,
                why,
            )
        wait_s = min(ASK_S * 2.0 ** min(self._failures - 1, 10), ASK_MOST_S)
        asked_s = float(retry_after) if retry_after is not None and retry_after.isdecimal() else 0.0
        return max(wait_s, min(asked_s, ASK_MOST_S))

    def _ask(self, path: str, body: bytes | None = None) -> bytes:
        """Ask the service. Raise `OSError` if it does not answer, and `HTTPError`, which is one, if it refuses."""
        asked = urllib.request.Request(self._url + path, body, {"Metadata": "true"})  # noqa: S310  # http
        if body is not None:
            asked.add_header("Content-Type", "application/json")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it refuses what comes by a proxy
        with opener.open(asked, timeout=ANSWERS_S if self._has_answered else FIRST_S) as answer:
            found: bytes = answer.read(ANSWER_LIMIT)
        return found
