"""Azure's Scheduled Events, asked over HTTP of a metadata service of our own: what is a notice, what is approved."""

import threading
from collections.abc import Callable, Iterator

import pytest

from samza_azure.group.notice import Availability, Going
from samza_azure.host import scheduled_events
from samza_azure.host.scheduled_events import ASK_MOST_S, ASK_S, Watch, events_in
from samza_azure.machine.clock import boot_time
from tests.host.fake_metadata import FakeMetadata
from tests.host.test_decommission import Told

#: How long the group waits for a machine that stands still.
PATIENCE_S = 6.0


class Goes(Told):
    """A processor with a notice, whose tasks are handed over when the test says so."""

    done = False

    @property
    def going(self) -> Going | None:
        if not self.notices:
            return None
        state = Availability.DECOMMISSIONED if self.done else Availability.DECOMMISSIONING
        return Going(state, "", 0, 2, 2 if self.done else 1)


@pytest.fixture
def service() -> Iterator[FakeMetadata]:
    with FakeMetadata() as fake:
        yield fake


def watched(service: FakeMetadata) -> tuple[Goes, Watch]:
    told = Goes()
    return told, Watch(told, service.url, PATIENCE_S)


def left_s(told: Goes) -> float:
    ((_, by),) = told.notices.values()
    assert by is not None
    return by - boot_time()


@pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Redeploy", "Reboot"])
def test_what_ends_the_machine_is_a_notice_until_its_time_and_approved_when_all_is_handed_over(
    service: FakeMetadata, kind: str
) -> None:
    told, watch = watched(service)
    assert watch.turn() == ASK_S and told.notices == {}
    event = service.schedule(kind, in_s=30)
    watch.turn()
    assert told.notices[f"event {event}"][0] == f"{kind}, Scheduled Events" and 28 < left_s(told) <= 30
    watch.turn()
    assert service.approved == []
    told.done = True
    watch.turn()
    watch.turn()
    assert service.approved == [event]
    assert list(told.notices) == [f"event {event}"]  # it has begun, and is listed


def test_an_event_that_is_cancelled_brings_the_processor_back(service: FakeMetadata) -> None:
    told, watch = watched(service)
    event = service.schedule("Preempt", in_s=30)
    watch.turn()
    service.remove(event)
    watch.turn()
    assert told.notices == {}


def test_an_event_of_others_is_no_notice_and_one_of_several_machines_is_not_approved(service: FakeMetadata) -> None:
    told, watch = watched(service)
    told.done = True
    service.schedule("Reboot", resources=["vm_0", "vm_2"])
    service.schedule("Preempt", resources=["vm_11"])
    watch.turn()
    assert told.notices == {}
    ours = service.schedule("Redeploy", resources=["vm_0", "VM_1"])
    watch.turn()
    assert list(told.notices) == [f"event {ours}"]
    watch.turn()
    assert service.approved == []


def test_two_events_of_one_machine_hold_side_by_side_and_both_are_approved(service: FakeMetadata) -> None:
    told, watch = watched(service)
    both = [service.schedule("Reboot", in_s=900), service.schedule("Preempt", in_s=30)]
    watch.turn()
    assert list(told.notices) == [f"event {each}" for each in both] and service.approved == []
    told.done = True
    watch.turn()
    assert service.approved == both
    service.remove(both[1])
    watch.turn()
    assert list(told.notices) == [f"event {both[0]}"]


def test_what_was_handed_over_for_another_reason_need_not_be_handed_over_again(service: FakeMetadata) -> None:
    told, watch = watched(service)
    told.decommission("asked for", source="port")
    told.done = True
    event = service.schedule("Terminate")
    watch.turn()
    assert service.approved == [event]
    service.remove(event)
    watch.turn()
    assert list(told.notices) == ["port"]  # only the event's own notice is withdrawn


@pytest.mark.parametrize("changed", [{"ResourceType": "Disk"}, {"EventType": "Greet"}, {"Resources": []}])
def test_what_is_of_another_kind_or_of_no_machine_is_no_notice(
    service: FakeMetadata, changed: dict[str, object]
) -> None:
    told, watch = watched(service)
    told.done = True
    service.schedule("Preempt", in_s=30)
    service.events[0] |= changed
    watch.turn()
    assert (told.notices, service.approved) == ({}, [])


@pytest.mark.parametrize(
    ("lasts_s", "in_s", "is_notice"), [(5, 30, False), (-1, 30, False), (9, 900, False), (9, 30, True)]
)
def test_only_a_freeze_that_is_near_and_longer_than_the_group_waits_is_a_notice(
    service: FakeMetadata, lasts_s: int, in_s: float, is_notice: bool
) -> None:
    told, watch = watched(service)
    told.done = True
    event = service.schedule("Freeze", in_s=in_s, lasts_s=lasts_s)
    watch.turn()
    assert (f"event {event}" in told.notices) is is_notice
    service.events[0]["EventStatus"] = "Started"
    watch.turn()
    assert (service.approved, bool(told.notices)) == ([], lasts_s > PATIENCE_S)
    service.remove(event)
    watch.turn()
    assert told.notices == {}


def test_a_failure_of_the_hardware_comes_without_notice(service: FakeMetadata) -> None:
    told, watch = watched(service)
    told.done = True
    service.schedule("Reboot", status="Started", in_s=None)
    watch.turn()
    watch.turn()
    assert -1 < left_s(told) <= 0 and service.approved == []


@pytest.mark.parametrize("status", [400, 410, 429, 500, 503])
def test_a_refusal_changes_nothing_and_the_service_is_asked_less_often(service: FakeMetadata, status: int) -> None:
    told, watch = watched(service)
    service.schedule("Preempt", in_s=30)
    watch.turn()
    service.refuses, service.refused_with = 7, status
    waits = [watch.turn() for _ in range(7)]
    assert len(told.notices) == 1  # an answer that is missing is no cancellation
    assert waits == sorted(waits) and waits[-1] == ASK_MOST_S and waits[0] <= (2 if status == 429 else 1)
    assert watch.turn() == ASK_S


def test_too_many_questions_are_refused_and_the_time_that_is_asked_for_is_waited(service: FakeMetadata) -> None:
    _, watch = watched(service)
    watch.turn()
    service.per_second = 0
    assert watch.turn() == 2.0


@pytest.mark.parametrize(("status", "asks"), [(400, 1), (429, 3), (500, 3)])
def test_an_approval_that_is_refused_for_good_is_not_repeated_and_another_one_is(
    service: FakeMetadata, status: int, asks: int
) -> None:
    """400: the event has begun, or is gone."""
    told, watch = watched(service)
    event = service.schedule("Preempt", in_s=30)
    told.done = True
    service.starts_refused_with = status
    for _ in range(2):
        watch.turn()
    service.starts_refused_with = 0
    for _ in range(2):
        watch.turn()
    assert service.start_requests == asks
    assert service.approved == ([event] if asks > 1 else [])
    assert list(told.notices) == [f"event {event}"]


def test_an_approval_without_an_answer_is_repeated(service: FakeMetadata) -> None:
    told, watch = watched(service)
    event = service.schedule("Preempt", in_s=30)
    watch.turn()
    told.done = True
    ask = watch._ask

    def fails_once(path: str, body: bytes | None = None) -> bytes:
        if body is not None:
            watch._ask = ask  # type: ignore[method-assign]
            raise OSError("reset")
        return ask(path, body)

    watch._ask = fails_once  # type: ignore[method-assign]
    watch.turn()
    assert service.approved == []
    watch.turn()
    assert service.approved == [event]


@pytest.mark.parametrize(
    "garbage", [b"", b"{", b"[]", b'{"Events": 7}', b'{"Events": [7, {}, {"EventId": "x"}]}', b"\xff", b"null"]
)
def test_an_answer_that_makes_no_sense_is_no_notice(service: FakeMetadata, garbage: bytes) -> None:
    told, watch = watched(service)
    service.garbage = garbage
    watch.turn()
    assert told.notices == {}


def test_an_event_without_a_time_or_with_nonsense_for_one_may_begin_now() -> None:
    for text in ("", "soon", None, 7):
        (event,) = events_in(
            {"Events": [{"EventId": "x", "ResourceType": "VirtualMachine", "Resources": ["a"], "NotBefore": text}]}
        )
        assert event.not_before_ms is None


def test_a_slow_first_answer_holds_up_nobody_and_the_thread_ends(service: FakeMetadata) -> None:
    told, watch = watched(service)
    service.first_s = 0.3
    service.schedule("Preempt", in_s=30)
    heard = threading.Event()
    known: Callable[..., None] = told.decommission

    def noted(why: str, *, by: float | None = None, source: str = "port") -> None:
        known(why, by=by, source=source)
        heard.set()

    told.decommission = noted  # type: ignore[method-assign]
    watch.start()
    assert told.notices == {}
    assert heard.wait(60)
    watch.close()


def test_only_the_first_answer_may_take_minutes(service: FakeMetadata, monkeypatch: pytest.MonkeyPatch) -> None:
    """Azure switches the service on with the first question of a machine."""
    monkeypatch.setattr(scheduled_events, "ANSWERS_S", 0.05)
    told, watch = watched(service)
    event = service.schedule("Preempt", in_s=30)
    service.first_s = 0.5
    watch.turn()
    assert list(told.notices) == [f"event {event}"]
    service.first_s = 0.5
    service.remove(event)
    watch.turn()
    assert len(told.notices) == 1, "no answer is no cancellation"
    watch.turn()
    assert told.notices == {}


def test_without_a_metadata_service_it_is_said_once_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    with FakeMetadata() as gone:
        url = gone.url
    watch = Watch(Goes(), url, PATIENCE_S)
    assert [watch.turn() for _ in range(3)] == [1.0, 2.0, 4.0]
    assert sum("gives no Scheduled Events" in record.getMessage() for record in caplog.records) == 1
