"""Drains for programs without Spark: Samza's tests of its drain, by name, and what it does not test.

On the account in memory; `tests/commands/test_asking.py` has a monitor beside a real group.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samza_azure import (
    ConfigError,
    DrainMessage,
    DrainMode,
    DrainMonitor,
    DrainNotification,
    DrainNotifications,
    DrainStates,
    StorageUnavailable,
)
from samza_azure.group import control as control_blob
from samza_azure.group.control import Control, RunPhase
from samza_azure.group.notification import from_fields
from samza_azure.group.rows import REQUESTS
from samza_azure.library.drain import MonitorState
from samza_azure.messages import DrainStep
from samza_azure.storage.interface import Content
from samza_azure.storage.limits import HINTS, drain_hint, hint_name
from samza_azure.storage.memory import Link, MemoryAccount

T = TypeVar("T")
RUN = "foo"
UUID = "0b9ea1f0-9a13-4a3c-8f57-3c2b3d6a7f10"
#: A look takes no time in memory. Nothing is asserted about how long anything takes: this only ends a test that hangs.
PATIENCE_S = 20.0
POLL_S = 0.01


class Weak(Link):
    """Fails as often as the test sets."""

    def __init__(self) -> None:
        self.failing = threading.Event()
        self.failed = threading.Semaphore(0)

    async def carry(self, operation: str, effect: Callable[[], T], timeout: float) -> T:
        if self.failing.is_set():
            self.failed.release()
            raise StorageUnavailable("The account does not answer.")
        return effect()


class Store:
    """An account in memory, and the drains in it."""

    def __init__(self) -> None:
        self.link = Weak()
        self.account = MemoryAccount(link=self.link)
        self.drains = DrainNotifications(self.account)

    def put(self, key: str, values: dict[str, str | int | bool]) -> None:
        asyncio.run(self.account.rows().insert(REQUESTS, key, values, timeout=10))

    def coordinate(self, control: Control) -> None:
        """What a leader would have written."""

        async def write() -> None:
            blob = self.account.control_blob()
            await blob.create(control_blob.encode(control), timeout=10)

        asyncio.run(write())

    def replace(self, control: Control) -> None:
        """What a leader would write over anything."""

        async def write() -> None:
            blob = self.account.control_blob()
            found = await blob.read(timeout=10)
            assert isinstance(found, Content)
            await blob.acquire(UUID, seconds=60, timeout=10, etag=found.etag)
            await blob.write(control_blob.encode(control), etag=found.etag, lease_id=UUID, timeout=10)

        asyncio.run(write())


class Heard:
    """A callback that remembers."""

    def __init__(self) -> None:
        self.calls: list[DrainNotification] = []
        self.called = threading.Event()

    def __call__(self, drain: DrainNotification) -> None:
        self.calls.append(drain)
        self.called.set()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def monitor(store: Store) -> Iterator[DrainMonitor]:
    made = DrainMonitor(store.drains, RUN, POLL_S)
    yield made
    made.stop()


# DrainUtilsTests.


def test_writes(store: Store) -> None:
    written = store.drains.write("foo1")
    [found] = store.drains.read().notifications
    assert (found.uuid, found.run_id, found.mode, found.step) == (written.uuid, "foo1", DrainMode.DEFAULT, None)
    assert found.by and found.asked_ms > 0


def test_cleanup(store: Store) -> None:
    store.drains.write("foo")
    assert store.drains.clean("foo") == 1
    assert store.drains.read().notifications == ()
    store.drains.write("bar")
    assert store.drains.clean("foo") == 0
    assert [each.run_id for each in store.drains.read().notifications] == ["bar"]


def test_cleanup_all(store: Store) -> None:
    store.drains.write("foo")
    store.drains.write("bar")
    store.put("bad", {"kind": "drain"})
    store.put("stop", {"kind": "stop", "runId": "foo"})
    assert store.drains.clean_all() == 3
    assert (store.drains.read().notifications, store.drains.read().malformed) == ((), 0)
    assert asyncio.run(store.account.rows().get(REQUESTS, "stop", timeout=10)) is not None


def test_without_a_run_the_one_in_progress_is_drained_and_none_is_an_error(store: Store) -> None:
    with pytest.raises(ConfigError, match="No run is in progress"):
        store.drains.write()
    store.coordinate(Control("g", run_id=RUN, phase=RunPhase.RUNNING))
    assert store.drains.write().run_id == RUN


def test_a_writer_raises_an_error_if_the_storage_does_not_answer(store: Store) -> None:
    store.link.failing.set()
    with pytest.raises(StorageUnavailable):
        store.drains.write(RUN)


def test_malformed_records_are_counted_and_skipped(store: Store) -> None:
    written = store.drains.write(RUN)
    good = {"kind": "drain", "uuid": UUID, "runId": RUN, "drainMode": "DEFAULT"}
    for number, bad in enumerate(
        ({}, {"uuid": ""}, {"uuid": "u"}, {"runId": 7}, {"drainMode": "LATER"}, {"uuid": True}, {"runId": "x" * 300})
    ):
        store.put(f"bad-{number}", {**good, **bad})
    for name in ("uuid", "runId", "drainMode"):
        store.put(f"without-{name}", {key: value for key, value in good.items() if key != name})
    found = store.drains.read()
    assert [each.uuid for each in found.notifications] == [written.uuid]
    assert found.malformed == 10


def hints(store: Store) -> set[str]:
    return {hint_name(row.key) for row in store.account.storage.query(HINTS)}


@pytest.mark.parametrize("phase", [RunPhase.RUNNING, RunPhase.FAILED, RunPhase.DRAINED])
def test_only_the_drain_of_the_run_in_progress_is_hinted_at_and_the_hint_goes_with_the_request(
    store: Store, phase: RunPhase
) -> None:
    store.drains.write(RUN)
    assert hints(store) == set()
    store.coordinate(Control("g", run_id=RUN, phase=phase))
    for run_id in ("a typo", "a/b|c"):
        store.drains.write(run_id)
    written = store.drains.write(RUN)
    assert hints(store) == ({drain_hint(RUN, written.uuid)} if phase is not RunPhase.DRAINED else set())
    other = "runs/foo/clean-0"
    store.account.hints().publish(other, {})
    store.drains.clean(RUN)
    assert hints(store) == {other}
    assert store.drains.clean_all() == 2


def test_a_drain_is_requested_although_the_control_blob_cannot_be_read(store: Store) -> None:
    asyncio.run(store.account.control_blob().create(b"garbage", timeout=10))
    store.drains.write(RUN)
    assert [each.run_id for each in store.drains.read().notifications] == [RUN]


# DrainNotificationObjectMapperTests.


def test_drain_notification_serde() -> None:
    drain = DrainNotification(UUID, "foobar")
    assert DrainNotification.from_json(drain.to_json()) == drain
    assert drain.to_json() == f'{{"uuid": "{UUID}", "runId": "foobar", "drainMode": "DEFAULT"}}'
    assert (
        DrainNotification.from_json(f'{{"uuid": "{UUID.upper()}", "runId": "foobar", "drainMode": "default"}}').mode
        == drain.mode
    )
    assert str(drain) == f"drain {UUID} of run foobar, mode DEFAULT"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is none"),
        ("[]", "not a list"),
        ("{}", "uuid of a drain notification is missing"),
        (f'{{"uuid": "{UUID}", "drainMode": "DEFAULT"}}', "runId of a drain notification is missing"),
        (f'{{"uuid": "{UUID}", "runId": "r"}}', "drainMode of a drain notification is missing"),
        (f'{{"uuid": "{UUID}", "runId": null, "drainMode": "DEFAULT"}}', "runId of a drain notification is missing"),
        (f'{{"uuid": "{UUID}", "runId": "r", "drainMode": "FAST"}}', "'FAST'; known: DEFAULT"),
        ('{"uuid": "u", "runId": "r", "drainMode": "DEFAULT"}', "must be a UUID"),
        ("[" * 100_000, "is none"),
    ],
)
def test_an_invalid_notification_is_an_error_that_says_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        DrainNotification.from_json(text)


@given(st.dictionaries(st.sampled_from(["uuid", "runId", "drainMode", "kind"]), st.text() | st.integers() | st.none()))
def test_no_fields_raise_anything_else(fields: dict[str, object]) -> None:
    with suppress(ValueError):
        assert isinstance(from_fields(fields), DrainNotification)


# DrainMonitorTests.


def test_constructor_failure_when_drain_manager_is_null() -> None:
    with pytest.raises(ConfigError, match="needs DrainNotifications"):
        DrainMonitor(None, RUN, POLL_S)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs an account"):
        DrainNotifications(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("run_id", ["", None])
def test_constructor_failure_when_config_is_null(store: Store, run_id: str) -> None:
    with pytest.raises(ConfigError, match="needs the id of the run"):
        DrainMonitor(store.drains, run_id, POLL_S)


@pytest.mark.parametrize("interval", [0, -1, -0.5])
def test_constructor_failure_with_invalid_polling_interval(store: Store, interval: float) -> None:
    with pytest.raises(ConfigError, match=f"interval_s is {interval:g}; it must be greater than 0"):
        DrainMonitor(store.drains, RUN, interval)


@pytest.mark.parametrize("interval", [float("nan"), float("inf"), True, "60"])
def test_constructor_failure_when_the_interval_is_no_number_of_seconds(store: Store, interval: float) -> None:
    with pytest.raises(ConfigError, match="must be a number of seconds"):
        DrainMonitor(store.drains, RUN, interval)


def test_drain_monitor_start_failure_when_callback_is_not_set(monitor: DrainMonitor) -> None:
    with pytest.raises(ConfigError, match="Register a callback before start"):
        monitor.start()


def test_successful_callback_registration(monitor: DrainMonitor, heard: Heard) -> None:
    assert monitor.register_drain_callback(heard)
    assert not monitor.register_drain_callback(heard)
    monitor.start()
    assert not monitor.register_drain_callback(heard)


def test_callback_called_if_monitor_encounters_drain_on_start(
    store: Store, monitor: DrainMonitor, heard: Heard
) -> None:
    drain = store.drains.write(RUN)
    monitor.register_drain_callback(heard)
    monitor.start()
    assert ([each.uuid for each in heard.calls], monitor.state) == ([drain.uuid], MonitorState.INIT)
    monitor.start()  # Samza's would call again
    assert len(heard.calls) == 1


def test_callback_called_on_drain(store: Store, monitor: DrainMonitor, heard: Heard) -> None:
    monitor.register_drain_callback(heard)
    monitor.start()
    assert monitor.state is MonitorState.RUNNING
    drain = store.drains.write(RUN)
    assert heard.called.wait(PATIENCE_S)
    assert ([each.uuid for each in heard.calls], monitor.state) == ([drain.uuid], MonitorState.STOPPED)


def test_drain_monitor_stop(store: Store, monitor: DrainMonitor, heard: Heard) -> None:
    monitor.stop()
    assert monitor.state is MonitorState.INIT
    monitor.register_drain_callback(heard)
    monitor.start()
    monitor.stop()
    monitor.stop()
    assert monitor.state is MonitorState.STOPPED
    store.drains.write(RUN)
    monitor.start()
    assert (monitor.state, heard.calls) == (MonitorState.STOPPED, [])


def test_a_stop_during_the_first_poll_of_start_is_obeyed(store: Store, heard: Heard) -> None:
    class Stopped(DrainNotifications):
        """Another thread stops the monitor while it polls; `stop` returns before the poll does."""

        def wanted(self, run_id: str) -> DrainNotification | None:
            thread = threading.Thread(target=monitor.stop)
            thread.start()
            thread.join(PATIENCE_S)
            return super().wanted(run_id)

    for drains in (False, True):
        monitor = DrainMonitor(Stopped(store.account), RUN, POLL_S)
        monitor.register_drain_callback(heard)
        if drains:
            store.drains.write(RUN)
        monitor.start()
        assert (monitor.state, heard.calls) == (MonitorState.STOPPED, [])
        monitor.start()
        assert monitor.state is MonitorState.STOPPED


def test_should_drain(store: Store) -> None:
    assert store.drains.wanted(RUN) is None
    store.drains.write(RUN)
    assert store.drains.wanted(RUN) is not None


# Not tested upstream.


def test_the_notification_of_another_run_is_ignored(store: Store, heard: Heard) -> None:
    mine, other = DrainMonitor(store.drains, RUN, POLL_S), DrainMonitor(store.drains, "bar", POLL_S)
    for monitor in (mine, other):
        monitor.register_drain_callback(heard)
        monitor.start()
    store.drains.write("bar")
    assert heard.called.wait(PATIENCE_S)
    assert ([each.run_id for each in heard.calls], mine.state) == (["bar"], MonitorState.RUNNING)
    mine.stop()


def test_the_watch_survives_a_bad_record(store: Store, monitor: DrainMonitor, heard: Heard) -> None:
    monitor.register_drain_callback(heard)
    monitor.start()
    store.put("bad", {"kind": "drain", "uuid": "u", "runId": RUN})
    store.drains.write(RUN)
    assert heard.called.wait(PATIENCE_S)
    assert (len(heard.calls), monitor.failures) == (1, 0)


def test_the_watch_survives_errors_of_the_storage(
    store: Store, monitor: DrainMonitor, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    store.link.failing.set()
    monitor.register_drain_callback(heard)
    monitor.start()
    for _ in range(3):
        assert store.link.failed.acquire(timeout=PATIENCE_S)
    assert monitor.state is MonitorState.RUNNING
    assert isinstance(monitor.last_error, StorageUnavailable)
    store.link.failing.clear()
    store.drains.write(RUN)
    assert heard.called.wait(PATIENCE_S)
    assert monitor.failures >= 2
    assert sum("cannot be read" in record.getMessage() for record in caplog.records) == 1, "one line a minute"


def test_the_watch_survives_a_control_blob_that_cannot_be_read(
    store: Store, monitor: DrainMonitor, heard: Heard
) -> None:
    asyncio.run(store.account.control_blob().create(b"garbage", timeout=10))
    seldom = DrainMonitor(store.drains, RUN, 3600.0)
    seldom.register_drain_callback(heard)
    seldom.start()
    assert (seldom.state, seldom.failures) == (MonitorState.RUNNING, 1)
    seldom.stop()

    monitor.register_drain_callback(heard)
    monitor.start()
    store.replace(Control("g", run_id=RUN, phase=RunPhase.DRAINED, past=(RUN,)))
    assert heard.called.wait(PATIENCE_S)
    assert [each.run_id for each in heard.calls] == [RUN]


def test_a_callback_that_raises_is_not_called_again(store: Store, monitor: DrainMonitor) -> None:
    calls, other = [], Heard()

    def fail(drain: DrainNotification) -> None:
        calls.append(drain)
        raise RuntimeError("no")

    monitor.register_drain_callback(fail)
    store.drains.write(RUN)
    monitor.start()
    monitor.start()
    assert (len(calls), monitor.state) == (1, MonitorState.INIT)
    later = DrainMonitor(store.drains, RUN, POLL_S)
    later.register_drain_callback(other)
    later.start()
    assert len(other.calls) == 1


def test_a_callback_may_stop_its_monitor_and_is_not_interrupted(store: Store, monitor: DrainMonitor) -> None:
    ended = threading.Event()

    def stop(drain: DrainNotification) -> None:
        monitor.stop()
        if not threading.Event().wait(0.05):  # Samza's would be interrupted here
            ended.set()

    monitor.register_drain_callback(stop)
    monitor.start()
    store.drains.write(RUN)
    assert ended.wait(PATIENCE_S)
    assert monitor.state is MonitorState.STOPPED


def test_two_notifications_of_one_run_call_once(store: Store, monitor: DrainMonitor, heard: Heard) -> None:
    monitor.register_drain_callback(heard)
    monitor.start()
    store.drains.write(RUN)
    store.drains.write(RUN)
    assert heard.called.wait(PATIENCE_S)
    monitor.start()
    assert len(heard.calls) == 1


DRAINING = Control(
    "g",
    run_id=RUN,
    phase=RunPhase.DRAINING,
    drain=DrainNotification(UUID, RUN, step=DrainStep.FREEZE, history=("FREEZE",)),
)
FLUSHING = replace(DRAINING, drain=replace(DRAINING.drain, step=DrainStep.FLUSH, history=("FREEZE", "FLUSH")))


def test_where_there_is_a_leader_a_request_is_no_drain_before_it_is_final(store: Store) -> None:
    store.coordinate(DRAINING)
    store.drains.write(RUN)
    assert store.drains.wanted(RUN) is None  # it may still be cancelled


def test_a_drain_is_final_from_flush_on(store: Store) -> None:
    store.coordinate(FLUSHING)
    assert store.drains.wanted(RUN) == FLUSHING.drain
    assert store.drains.wanted("bar") is None


def test_a_run_that_was_drained_before_is_drained_for_ever(store: Store) -> None:
    assert FLUSHING.drain is not None
    past = replace(FLUSHING.drain, ends={}, history=("FREEZE", "FLUSH", "DRAINED"))
    store.coordinate(Control("g", run_id="next", phase=RunPhase.RUNNING, past=("older", RUN), drains=(past,)))
    assert store.drains.wanted(RUN) == past
    assert store.drains.wanted("older") is not None  # so long ago that no record of it is left
    assert store.drains.wanted("next") is None


# DrainStates.


def states(producers: int = 2, partitions: int = 3) -> DrainStates:
    return DrainStates(RUN, {"in": range(partitions)}, {"in": producers})


def test_a_partition_is_drained_by_all_of_its_producers_and_says_so_once() -> None:
    known = states()
    assert not known.update(DrainMessage(RUN, "a"), "in", 0)
    assert not known.update(DrainMessage(RUN, "a"), "in", 0)  # repeated by a producer that was restarted
    assert not known.is_drained("in", 0)
    assert known.update(DrainMessage(RUN, "b"), "in", 0)
    assert not known.update(DrainMessage(RUN, "b"), "in", 0)
    assert known.is_drained("in", 0) and not known.is_drained("in") and not known.is_drained()
    assert known.heard("in", 0) == {"a", "b"}


def test_a_message_without_a_task_drains_its_partition_at_once() -> None:
    known = states()
    assert known.update(DrainMessage(RUN), "in", 0)
    assert known.is_drained("in", 0) and not known.is_drained("in", 1)


def test_a_stream_is_drained_when_all_of_its_partitions_are() -> None:
    known = DrainStates(RUN, {"in": [0, 2], "side": [0]}, {"in": 1})
    known.update(DrainMessage(RUN, "a"), "in", 0)
    known.update(DrainMessage(RUN), "in", 2)
    assert known.is_drained("in") and not known.is_drained()
    known.update(DrainMessage(RUN), "side", 0)
    assert known.is_drained()


def test_a_message_of_another_run_is_ignored() -> None:
    known = states(producers=1)
    assert not known.update(DrainMessage("bar"), "in", 0)
    assert not known.update(DrainMessage("bar", "a"), "in", 0)
    assert not known.is_drained("in", 0)


def test_a_source_is_not_drained_by_the_report_of_one_task() -> None:
    known = states(producers=0)
    assert not known.update(DrainMessage(RUN, "a"), "in", 0)
    assert known.update(DrainMessage(RUN), "in", 0)


def test_a_partition_at_its_end_needs_no_drain() -> None:
    known = states(partitions=2)
    known.end("in", 0)
    assert known.is_drained("in", 0)
    assert not known.update(DrainMessage(RUN), "in", 0)
    known.update(DrainMessage(RUN), "in", 1)
    assert known.is_drained()


def test_a_stream_that_is_not_read_is_an_error() -> None:
    known = states()
    with pytest.raises(ConfigError, match="does not read other/0"):
        known.update(DrainMessage(RUN), "other", 0)
    with pytest.raises(ConfigError, match="does not read stream 'other'"):
        known.is_drained("other")
    with pytest.raises(ConfigError, match="below 0"):
        DrainStates(RUN, {"in": [0]}, {"in": -1})


def test_exactly_one_of_many_threads_is_notified_that_a_partition_is_drained() -> None:
    producers, begin = 16, threading.Barrier(16)
    known, passed_on = states(producers), []

    def tell(task: str) -> None:
        begin.wait(PATIENCE_S)
        passed_on.extend(number for number in range(3) if known.update(DrainMessage(RUN, task), "in", number))

    threads = [threading.Thread(target=tell, args=(f"task-{number}",)) for number in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(passed_on) == [0, 1, 2]
    assert known.is_drained()


@pytest.mark.parametrize("message", [DrainMessage(RUN), DrainMessage(RUN, "clean-0")])
def test_a_drain_message_has_samzas_form(message: DrainMessage) -> None:
    assert DrainMessage.from_json(message.to_json()) == message
    assert DrainMessage.from_json('{"task-name": null, "run-id": "foo"}') == DrainMessage("foo")


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, "{}", '{"run-id": 1}', '{"run-id": "r", "task-name": 2}'])
def test_an_invalid_drain_message_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        DrainMessage.from_json(text)
