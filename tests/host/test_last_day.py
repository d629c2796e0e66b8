"""The record of the last day: what the leader adds, when it writes, and what others may have written there."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, TypeVar

import pytest

from samza_azure.explain import RECORD_S
from samza_azure.group.control import Assignment, Control, Member, Owner, RunPhase
from samza_azure.group.rows import RECORD, ProcessorRow, ProcessorState
from samza_azure.group.timing import PROFILES
from samza_azure.group.view import Leadership, Lease, OwnIncarnation, Settings, View
from samza_azure.host import last_day
from samza_azure.host.keeping_up import reading
from samza_azure.host.last_day import DAY_MS, EVERY_S, FAILURES, Failed, Failures, LastDay, Recorder, decoded, encoded
from samza_azure.messages import Machine, Phase, Progress, TaskError, TaskReport
from samza_azure.storage.memory import Link, MemoryAccount, MemoryStorage

T = TypeVar("T")
NOW_MS = 1_764_000_000_000
A = Member("a", "1")
CONTROL = Control(
    "g",
    epoch=2,
    version=5,
    leader=A,
    run_id="r",
    phase=RunPhase.RUNNING,
    members=(A,),
    tasks={"t-0": Assignment(Owner("b", "1", 5))},
)
FAILED = Failed("t-0", "b", "vm-7", "1.2", "0a1b", "no disk", "Traceback", NOW_MS - 5, NOW_MS, 3)


def row(attempt: int = 1, failures: int = 0, message: str = "", rows: int = 0, **more: Any) -> ProcessorRow:
    error = TaskError(message, "Traceback") if message else None
    done = Progress(rows=rows, pace=5.0, behind={"in": 7})
    said = TaskReport("t-0", 5, attempt, Phase.RUNNING, error=error, failures=failures, progress=done)
    there = Machine("vm-7", "1.2", "0a1b")
    return ProcessorRow("b", "1", state=ProcessorState.ACTIVE, tasks={"t-0": said}, machine=there, **more)


def view_of(*rows: ProcessorRow, leads: bool = True) -> View:
    view = View(Settings("a", PROFILES["default"]), OwnIncarnation("1"))
    view.own.control = CONTROL
    view.leadership = Leadership(Lease("l", 1e9), 0.0, 0.0) if leads else None
    view.others.members, view.others.scanned_at = {each.processor: each for each in rows}, 0.0
    return view


def test_a_record_comes_back() -> None:
    kept = LastDay(((NOW_MS - 60_000, 7, None, 5.0), (NOW_MS, None, 2.5, 0.0)), (FAILED,))
    assert decoded(encoded(kept), NOW_MS) == kept
    full = LastDay(
        tuple((NOW_MS - 60_000 * at, at * 977, at / 7, at / 3) for at in range(1439, -1, -1)),
        tuple(replace(FAILED, task=f"t-{at}", trace=f"{at}x" * 1_000) for at in range(FAILURES)),
    )
    assert decoded(encoded(full), NOW_MS).points == full.points
    assert sum(len(str(each)) for each in encoded(full).values()) < 300_000, "of the 1 MiB of a row"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        '{"points": 7, "failures": []}',
        json.dumps({"points": [[NOW_MS, "x", None, None], [NOW_MS, 1], 7, [NOW_MS + 10**9, 1, 1, 1]], "failures": [7]}),
        json.dumps(
            json.dumps({"points": [[NOW_MS - DAY_MS - 1, 1, 1, 1], [NOW_MS, True, 1, 1]], "failures": []}),
        ),
        json.dumps(
            json.dumps({"points": [], "failures": [{"task": 7}, {**asdict(FAILED), "times": "3"}]}),
        ),
        "z:AAAA",
    ],
)
def test_what_makes_no_sense_costs_the_history_alone(text: str) -> None:
    assert decoded({RECORD: text, f"{RECORD}_columns": 1}, NOW_MS) == LastDay()


def test_each_try_that_failed_counts_once_and_another_error_apart() -> None:
    failures, kept = Failures(), LastDay()
    for now_ms, seen in enumerate(
        (row(), row(1, 1, "no disk"), row(2, 1, "no disk"), row(4, 3, "no disk"), row(), row(5, 1, "a bug")), NOW_MS
    ):
        kept = failures.noted(kept, view_of(seen), now_ms)
    assert [(each.message, each.times, each.first_ms - NOW_MS, each.last_ms - NOW_MS) for each in kept.failures] == [
        ("no disk", 3, 1, 3),
        ("a bug", 1, 5, 5),
    ]
    assert (kept.failures[0].host, kept.failures[0].release, kept.failures[0].code) == ("vm-7", "1.2", "0a1b")


def test_tries_are_counted_on_when_a_task_moves_or_begins_again() -> None:
    """Whenever a look fell between two tries, all earlier ones were counted once more."""
    failures, kept = Failures(), LastDay()
    for now_ms, seen in enumerate((row(3, 3, "no disk"), row(4, 3), row(5, 4, "no disk")), NOW_MS):
        kept = failures.noted(kept, view_of(seen), now_ms)
    kept = failures.noted(kept, view_of(), NOW_MS)
    for again in (row(6, 5, "no disk"), row(6, 2, "no disk")):  # those of another processor count no more
        kept = failures.noted(kept, view_of(again), NOW_MS)
        assert [each.times for each in kept.failures] == [5]


def test_a_new_leader_does_not_count_what_its_predecessor_counted() -> None:
    kept = Failures().noted(LastDay(), view_of(row(4, 3, "no disk")), NOW_MS)
    assert Failures().noted(kept, view_of(row(4, 3, "no disk")), NOW_MS + 1) == kept


def test_a_new_leader_counts_what_fails_again() -> None:
    """It left out the first repeat of what the record had, and each processor that ended as another one had."""
    gone = replace(row(), processor="c", tasks={}, state=ProcessorState.LEFT, ending="1 no disk")
    kept = Failures().noted(LastDay(), view_of(row(4, 3, "no disk"), gone), NOW_MS)
    failures = Failures()
    assert failures.noted(kept, view_of(row(), gone), NOW_MS + 1) == kept
    others = replace(gone, incarnation="2"), replace(gone, processor="d", incarnation="3")
    kept = failures.noted(kept, view_of(row(5, 1, "no disk"), *others), NOW_MS + 2)
    assert [(each.task, each.processor, each.times) for each in kept.failures] == [
        ("t-0", "b", 4),
        ("", "c", 2),
        ("", "d", 1),
    ]


def test_a_leader_that_has_not_read_all_rows_yet_counts_nothing_of_them() -> None:
    """At its first look it had seen no row, so at the next one the failure that its predecessor had counted was new."""
    failures, kept = Failures(), LastDay((), (FAILED,))
    unread = view_of()
    unread.others.scanned_at = -1.0  # before it led
    kept = failures.noted(kept, unread, NOW_MS)
    kept = failures.noted(kept, view_of(row(2, 1, "no disk")), NOW_MS)
    assert [each.times for each in kept.failures] == [FAILED.times]


def test_a_processor_that_gave_up_is_a_failure_too() -> None:
    gone = replace(row(), state=ProcessorState.LEFT, ending="1 The container ended 3 times in a row.")
    [failed] = Failures().noted(LastDay(), view_of(gone), NOW_MS).failures
    assert (failed.task, failed.processor, failed.message) == ("", "b", "1 The container ended 3 times in a row.")


def test_a_point_says_what_is_known_of_a_run_in_progress() -> None:
    """A drained run went on at its last pace, and beside a task that does not run a backlog of 0 was certain."""
    nothing_left = Progress(pace=5.0, behind={"in": 0})
    for phase, backlog in ((Phase.RUNNING, 0), (Phase.DRAINED, 0), (Phase.STARTING, None), (Phase.FAILED, None)):
        report = TaskReport("t-0", 5, 1, phase, progress=nothing_left)
        assert reading(view_of(replace(row(), tasks={"t-0": report})), NOW_MS) == (NOW_MS, backlog, None, 5.0)
    view = view_of(row())
    view.own.control = replace(CONTROL, phase=RunPhase.DRAINED)
    assert reading(view, NOW_MS) is None


def test_only_a_leader_writes_and_once_a_minute() -> None:
    assert EVERY_S == RECORD_S, "which `explain` counts"

    async def story() -> None:
        account = MemoryAccount()
        table, view = account.rows(), view_of(row())
        recorder = Recorder(view, table)
        writes: list[float] = []
        for second in range(0, 600, 5):
            bursts = (second + 30) // 60  # of 600 rows, in the middle of each minute
            is_next = second > 300  # another attempt, which begins to count anew
            now = row(1 + is_next, rows=600 * (bursts - 5 * is_next))
            view.others.members = {now.processor: now}
            before = await table.get(RECORD, RECORD, timeout=1)
            await recorder.look(float(second), NOW_MS + 1000 * second)
            after = await table.get(RECORD, RECORD, timeout=1)
            writes += [second] * ((after and after.etag) != (before and before.etag))
        assert writes == list(range(60, 600, 60))
        found, _ = await last_day.read_record(table, NOW_MS + 600_000)
        assert [point[1:] for point in found.points] == [(7, None, 10.0)] * 9
        view.leadership = None
        await recorder.look(700.0, NOW_MS + 700_000)
        last = await table.get(RECORD, RECORD, timeout=1)
        assert last is not None and decoded(last.values, NOW_MS + 700_000) == found, "it leads no more"

        other = Recorder(view_of(row()), table)  # the next one goes on where it was
        for second in (720, 785, 850):
            await other.look(float(second), NOW_MS + 1000 * second)
        found, _ = await last_day.read_record(table, NOW_MS + 900_000)
        assert len(found.points) == 11

    asyncio.run(story())


def test_a_leader_that_ends_writes_what_has_failed_since() -> None:
    """A run that fails ends its leader at once, and what it failed of was on no page."""

    async def story() -> None:
        table, view = MemoryAccount().rows(), view_of(row())
        recorder = Recorder(view, table)
        for second in (0, 5):
            await recorder.look(float(second), NOW_MS)
        await recorder.end(NOW_MS)
        assert await table.get(RECORD, RECORD, timeout=1) is None, "there is nothing to write"
        failed = row(1, 1, "no disk")
        view.others.members, view.leadership = {failed.processor: failed}, None
        await recorder.end(NOW_MS)
        found, _ = await last_day.read_record(table, NOW_MS)
        assert [(each.task, each.message, each.trace) for each in found.failures] == [("t-0", "no disk", "Traceback")]

    asyncio.run(story())


class Unheard(Link):
    """While it is cut, each call takes effect, and nobody hears the answer."""

    def __init__(self) -> None:
        self.is_cut, self.took_effect = False, asyncio.Event()

    async def carry(self, operation: str, effect: Callable[[], T], timeout: float) -> T:
        answer = effect()
        if self.is_cut:
            self.took_effect.set()
            await asyncio.Event().wait()
        return answer


@pytest.mark.parametrize("other", [False, True], ids=["its own", "another leader's"])
def test_a_leader_that_ends_while_it_writes_writes_what_has_failed_since(*, other: bool) -> None:
    """Its write was cancelled after it had taken effect, so the last one was refused, and the last failure lost."""

    async def story() -> None:
        link, storage = Unheard(), MemoryStorage()
        table, view = MemoryAccount(storage, link=link).rows(), view_of(row())
        recorder = Recorder(view, table)
        await recorder.look(0.0, NOW_MS)
        link.is_cut = True
        writing = asyncio.get_running_loop().create_task(recorder.look(60.0, NOW_MS))
        await link.took_effect.wait()
        writing.cancel()
        link.is_cut = False
        if other:
            theirs = Recorder(view_of(row(1, 1, "a bug")), table)
            for second in (0, 60):
                await theirs.look(float(second), NOW_MS + 1)
        view.others.members = {"b": row(1, 1, "no disk")}
        await recorder.end(NOW_MS)
        found, _ = await last_day.read_record(table, NOW_MS)
        assert [each.message for each in found.failures] == ["a bug"] * other + ["no disk"]
        assert len(found.points) == 1 + other

    asyncio.run(story())


def test_a_leader_whose_row_was_written_by_another_reads_it_again() -> None:
    async def story() -> None:
        table = MemoryAccount().rows()
        recorder = Recorder(view_of(row()), table)
        for second in (0, 60):
            await recorder.look(float(second), NOW_MS)
        mine = await table.get(RECORD, RECORD, timeout=1)
        assert mine is not None
        theirs = encoded(LastDay((), (FAILED,)))
        assert isinstance(await table.replace(RECORD, RECORD, theirs, etag=mine.etag, timeout=1), str)
        for second in (120, 180, 240):
            await recorder.look(float(second), NOW_MS)
        found, _ = await last_day.read_record(table, NOW_MS)
        assert (len(found.points), found.failures) == (1, (FAILED,))

    asyncio.run(story())
