"""What `drain --wait` and `status` show of a drain. No process, no emulator."""

import io
import os
import pty
import re
import select
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from samza_azure.commands.show import drain_in_words, status_view
from samza_azure.commands.show_drain import DrainDisplay, drain_table
from samza_azure.commands.terminal import clock
from samza_azure.commands.waiting import Estimate, is_over, nobody_is_left, where_all_are
from samza_azure.group.control import Assignment, Control, Member, Owner, RunPhase
from samza_azure.group.notification import DrainNotification
from samza_azure.group.rows import ProcessorRow, ProcessorState
from samza_azure.host.status import document
from samza_azure.messages import DrainPhase, DrainStep, LastBatch, Phase, Progress, TaskReport

ASKED_MS = 1_700_000_000_000
DRAIN = DrainNotification(
    "u",
    "run",
    step=DrainStep.FLUSH,
    ends={"in/0": (0, 400)},
    history=("FREEZE", "FLUSH"),
    by="ada@here",
    asked_ms=ASKED_MS,
    at_ms=(ASKED_MS + 600, ASKED_MS + 2_600),
)
OWNER = Owner("p1", "life", 1)
CONTROL = Control(
    "g",
    run_id="run",
    phase=RunPhase.DRAINING,
    sources={"in": 1},
    members=(Member("p1", "life"),),
    tasks={name: Assignment(OWNER, first=False) for name in ("clean-0", "clean-1", "daily-0")},
    drain=DRAIN,
)
ROW = ProcessorRow(
    "p1",
    "life",
    state=ProcessorState.ACTIVE,
    tasks={
        "clean-0": TaskReport("clean-0", 1, 1, Phase.DRAINED, batch=7, read={"in/0": (0, 400)}),
        "clean-1": TaskReport("clean-1", 1, 1, Phase.RUNNING, batch=6, drain=DrainPhase.FLUSHING),
        "daily-0": TaskReport("daily-0", 1, 1, Phase.RUNNING, drain=DrainPhase.REQUESTED),
    },
)


def shown(control: Control = CONTROL, row: ProcessorRow = ROW) -> dict[str, Any]:
    return document("app", control, [row])


def printed(what: Any) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=220).print(what)
    return [" ".join(line.split()) for line in file.getvalue().splitlines()]


def test_a_drain_is_shown_with_requester_time_and_duration_of_each_phase() -> None:
    asked = f"asked by ada@here at {clock(ASKED_MS)}, taken up after 0.6 s, sources stopped after 2.0 s"
    assert drain_in_words(shown()["drain"]) == f"drain FLUSH of run run, {asked}"
    over = replace(DRAIN, history=(*DRAIN.history, "DRAINED"), at_ms=(*DRAIN.at_ms, ASKED_MS + 2_700))
    after = shown(replace(CONTROL, drain=over, phase=RunPhase.DRAINED))["drain"]
    assert drain_in_words(after) == f"drain DRAINED of run run, {asked}, flushed after 0.1 s"


def test_a_drain_recorded_without_times_is_shown_without_times() -> None:
    plain = DrainNotification("u", "run", step=DrainStep.FLUSH, history=("FREEZE", "FLUSH"))
    assert drain_in_words(shown(replace(CONTROL, drain=plain))["drain"]) == "drain FLUSH of run run"
    half = replace(plain, history=(*plain.history, "DRAINED"), at_ms=(0, 0, ASKED_MS))
    assert drain_in_words(shown(replace(CONTROL, drain=half))["drain"]) == "drain FLUSH of run run"


def test_clocks_that_disagree_show_no_time_below_zero() -> None:
    early = replace(DRAIN, at_ms=(ASKED_MS - 5_000, ASKED_MS - 4_000))
    assert "taken up after 0.0 s, sources stopped after 1.0 s" in drain_in_words(
        shown(replace(CONTROL, drain=early))["drain"]
    )


def test_the_status_shows_the_drains_of_earlier_runs_the_last_one_first() -> None:
    past = tuple(replace(DRAIN, run_id=run, history=("FREEZE", "FLUSH", "DRAINED")) for run in ("first", "second"))
    lines = printed(status_view(shown(replace(CONTROL, drains=past, drain=None, phase=RunPhase.RUNNING))))
    drains = [line.partition(",")[0] for line in lines if line.startswith("drain ")]
    assert drains == ["drain DRAINED of run second", "drain DRAINED of run first"]


def test_the_table_counts_the_tasks_of_each_stage_that_have_reached_a_step() -> None:
    lines = printed(drain_table(shown(), {"clean-0": 1_234}))
    assert (
        lines[1]
        == "stage, task on REQUESTED SOURCES_STOPPED FLUSHING COMMITTED DRAINED batch rows to read rows of state"
    )
    assert "clean 2 of 2 2 of 2 2 of 2 1 of 2 0 of 2 1,234" in lines
    assert "clean-0 p1 ● ● ● ● · 7 1,234" in lines
    assert "daily 1 of 1 0 of 1 0 of 1 0 of 1 0 of 1" in lines
    assert any("asked by ada@here" in line for line in lines)


def test_elsewhere_than_on_a_terminal_there_is_a_line_for_each_change() -> None:
    file = io.StringIO()
    with DrainDisplay(file) as display:
        display.update(shown(), {"clean-1": 5, "clean-0": 9})
        display.update(shown(), {"clean-1": 4})
        flushed = TaskReport("daily-0", 1, 1, Phase.DRAINED)
        display.update(shown(row=replace(ROW, tasks={**ROW.tasks, "daily-0": flushed})), {})
    assert file.getvalue().splitlines() == [
        "clean-0 COMMITTED",
        "clean-1 FLUSHING, 5 rows to read",
        "daily-0 REQUESTED",
        "daily-0 COMMITTED",
    ]


def test_while_a_phase_lasts_there_is_a_line_per_stage_every_five_seconds() -> None:
    """The rows that are left changed for minutes, and a log of CI showed nothing of it."""
    file, now = io.StringIO(), [0.0]
    with DrainDisplay(file, lambda: now[0]) as display:
        display.update(shown(), {"clean-1": 900})
        for second, rows in ((4.9, 800), (5.0, 700), (9.0, 600), (10.0, 500)):
            now[0] = second
            display.update(shown(), {"clean-1": rows}, 12.0)
    assert file.getvalue().splitlines()[3:] == [
        "clean: 1 COMMITTED, 1 FLUSHING, 700 rows to read (all in about 12 s)",
        "daily: 1 REQUESTED",
        "clean: 1 COMMITTED, 1 FLUSHING, 500 rows to read (all in about 12 s)",
        "daily: 1 REQUESTED",
    ]


def test_a_timeout_reports_the_phase_owner_and_backlog_of_each_task() -> None:
    said = where_all_are(shown(), {"clean-1": 5})
    assert said == "1 of 3 tasks are done. clean-1 FLUSHING on p1, 5 rows to read; daily-0 REQUESTED on p1."
    orphan = replace(CONTROL, tasks={f"clean-{number}": Assignment(None) for number in range(23)})
    said = where_all_are(shown(orphan, replace(ROW, tasks={})), {})
    assert said.startswith("0 of 23 tasks are done. clean-0 ") and said.endswith(" without an owner; and 3 more.")
    assert where_all_are(shown(replace(CONTROL, tasks={})), {}) == "No task has started."


def rows_to_drain(now: dict[str, Any]) -> dict[str, int | None]:
    return {task["name"]: task["rows_to_drain"] for task in now["tasks"]}


def test_the_rows_that_a_task_has_still_to_read_are_estimated_up_to_the_ends() -> None:
    read = Progress(batches=3, rows=1_000, size=4_000, behind={"in": 700})
    at = replace(ROW.tasks["clean-1"], read={"in/0": (0, 100), "other/0": (0, 1)}, progress=read)
    row = replace(ROW, tasks={**ROW.tasks, "clean-1": at})
    assert rows_to_drain(shown(row=row)) == {"clean-0": 0, "clean-1": 75, "daily-0": None}
    frozen = replace(CONTROL, drain=replace(DRAIN, step=DrainStep.FREEZE))
    assert rows_to_drain(shown(frozen, row))["clean-1"] is None, "the ends are not decided"
    assert rows_to_drain(shown(replace(CONTROL, drain=None), row))["clean-1"] is None
    fresh = replace(ROW, tasks={**ROW.tasks, "clean-1": replace(at, progress=None)})
    assert rows_to_drain(shown(row=fresh))["clean-1"] is None, "it has read none, so the size of a row is unknown"


def test_rows_between_stages_count_before_and_after_the_ends_are_decided() -> None:
    """They were not shown, though a drain waits mostly for them: rows of sources are no longer read."""
    read = Progress(batches=3, rows=1_000, size=4_000, behind={"by-carrier": 2_000, "in": 700})
    flushes = replace(ROW.tasks["daily-0"], progress=read)
    row = replace(ROW, tasks={**ROW.tasks, "daily-0": flushes})
    assert rows_to_drain(shown(row=row))["daily-0"] == 500
    frozen = replace(CONTROL, drain=replace(DRAIN, step=DrainStep.FREEZE, ends={}))
    assert rows_to_drain(shown(frozen, row))["daily-0"] == 500
    done = replace(flushes, phase=Phase.DRAINED)
    assert rows_to_drain(shown(frozen, replace(ROW, tasks={"daily-0": done})))["daily-0"] == 0
    unknown = replace(flushes, progress=replace(read, rows=0, size=0))
    assert rows_to_drain(shown(frozen, replace(ROW, tasks={"daily-0": unknown})))["daily-0"] is None
    assert "daily 1 of 1 0 of 1 0 of 1 0 of 1 0 of 1 500" in printed(drain_table(shown(row=row), {"daily-0": 500}))


def test_a_flush_shows_the_state_that_it_has_to_fire() -> None:
    """A flush of two million windows is one batch: for minutes nothing that was shown changed."""
    fires = replace(ROW.tasks["clean-1"], last_batch=LastBatch(6, 10, {}, 0, 2_000_000, 1 << 30))
    now = shown(row=replace(ROW, tasks={**ROW.tasks, "clean-1": fires}))
    assert "clean-1 p1 ● ● ● · · 6 2,000,000" in printed(drain_table(now, {}))
    file, clock = io.StringIO(), [0.0]
    with DrainDisplay(file, lambda: clock[0]) as display:
        display.update(now, {})
        clock[0] = 5.0
        display.update(now, {"clean-1": 7})
    said = file.getvalue().splitlines()
    assert "clean-1 FLUSHING, 2000000 rows of state" in said
    assert "clean: 1 COMMITTED, 1 FLUSHING, 7 rows to read, 2000000 rows of state" in said


def test_a_drain_of_many_tasks_is_shown_in_one_line_per_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A log of CI got a line for each task and phase, or, if colours were forced, the whole table five times a second.
    Long lines were broken after 80 characters."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    names = [f"{'clean' * 20}-{number}" for number in range(51)]
    tasks = {name: TaskReport(name, 1, 1, Phase.RUNNING, drain=DrainPhase.FLUSHING) for name in names}
    now = shown(
        replace(CONTROL, tasks={name: Assignment(OWNER, first=False) for name in names}), replace(ROW, tasks=tasks)
    )
    file, clock = io.StringIO(), [0.0]
    with DrainDisplay(file, lambda: clock[0]) as display:
        for clock[0] in (0.0, 0.2, 5.0):
            display.update(now, {})
    assert file.getvalue().splitlines() == [f"{'clean' * 20}: 51 FLUSHING"]


def test_on_a_terminal_the_table_is_drawn_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, DrainDisplay(terminal) as display:
        display.update(shown(), {"clean-1": 1_234}, 8.0)
        first = drawn(ours)
        done = TaskReport("daily-0", 1, 1, Phase.DRAINED)
        display.update(shown(row=replace(ROW, tasks={**ROW.tasks, "daily-0": done})), {"clean-1": 0})
        second = drawn(ours)
        display.say("A line.")
        third = drawn(ours)
    os.close(ours)
    assert re.search(r"clean-1 +p1 .* 1,234", first) and "all rows are read in about 8 s" in " ".join(first.split())
    up = re.compile(r"\x1b\[\d*A")
    assert up.search(second) and not up.search(first), "the cursor goes up: the table takes the place of the last one"
    assert re.search(r"daily-0 +p1 +● +● +● +● +·", second) and "1,234" not in second
    assert up.search(third) and third.index("A line.") < third.index("daily-0"), "a line stays above the table"


MANY = tuple(f"{stage}-{number}" for stage in ("clean", "daily") for number in range(40))


@pytest.mark.parametrize(("width", "height"), [(140, 24), (129, 24), (60, 24), (80, 12), (140, 200)])
def test_a_table_of_many_tasks_fits_the_terminal_and_begins_with_the_unfinished(width: int, height: int) -> None:
    """What did not fit was cut at the bottom: the last stages, and the estimate."""
    flushes = [TaskReport(name, 1, 1, Phase.DRAINED if "2" in name else Phase.RUNNING) for name in MANY]
    now = shown(
        replace(CONTROL, tasks={name: Assignment(OWNER, first=False) for name in MANY}),
        replace(ROW, tasks={each.task: replace(each, drain=DrainPhase.FLUSHING) for each in flushes}),
    )
    file = io.StringIO()
    Console(file=file, width=width, height=height).print(
        drain_table(now, {"clean-3": 7}, 8.0, width=width, height=height)
    )
    lines = file.getvalue().splitlines()
    text = " ".join(file.getvalue().split())
    assert len(lines) <= height
    cut = io.StringIO()
    long = replace(OWNER, processor="h" * 41)
    named = shown(
        replace(CONTROL, tasks={f"{'s' * 37}-{number}": Assignment(long, first=False) for number in range(80)}),
        replace(ROW, processor=long.processor, tasks={}),
    )
    Console(file=cut, width=width, height=height).print(drain_table(named, {}, 8.0, width=width, height=height))
    assert len(cut.getvalue().splitlines()) <= height, "a name that does not fit is cut, not folded"
    assert "all rows are read in about 8 s" in text
    named = [name for name in MANY if f" {name} " in text]
    left_out = sum(int(count) for count in re.findall(r"and (\d+) more", text))
    assert len(named) + left_out == len(MANY)
    if left_out:
        done = {each.task for each in flushes if each.phase is Phase.DRAINED}
        assert named and not set(named) & done
    else:
        assert height == 200


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was shown there until the drain was over."""
    monkeypatch.setenv("TERM", "dumb")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, DrainDisplay(terminal) as display:
        display.update(shown(), {"clean-1": 5})
        said = drawn(ours)
    os.close(ours)
    assert "clean-1 FLUSHING, 5 rows to read" in said and "\x1b" not in said


def test_a_task_that_has_appended_nothing_shows_no_batch() -> None:
    lines = printed(drain_table(shown(), {}))
    assert "daily-0 p1 ● · · · · -" in lines
    assert "daily-0 p1 REQUESTED - 0 0" in printed(status_view(shown()))


def drawn(terminal: int) -> str:
    """What was written to a terminal since the last look. The kernel hands it on in pieces, so all of them are read."""
    found = b""
    while not found or select.select([terminal], [], [], 0.5)[0]:
        found += os.read(terminal, 1 << 16)
    return found.decode()


LEFT = replace(ROW, state=ProcessorState.LEFT)


def test_a_moment_that_no_date_can_say_is_shown_as_the_last_one() -> None:
    assert clock(1 << 53).startswith(("9999-01-01", "9998-12-31"))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], ""),
        ([ROW], ""),
        ([replace(LEFT, ending="0 Left the group; its tasks were handed over.")], ""),
        ([replace(LEFT, ending="2 Run run has another pipeline."), ROW], ""),
        (
            [replace(LEFT, ending="2 Run run has another pipeline."), replace(ROW, state=ProcessorState.DEAD)],
            "No processor is alive. p1 ended with 2: Run run has another pipeline.",
        ),
        (
            [replace(LEFT, ending="2 Why."), replace(LEFT, ending="5 Why else.")],
            "No processor is alive. 2 ended with an error, among them p1 with 2: Why.",
        ),
    ],
)
def test_a_drain_has_no_processors_left_when_all_ended_and_one_failed(rows: list[ProcessorRow], said: str) -> None:
    assert nobody_is_left(rows) == said


@pytest.mark.parametrize(
    ("uncleaned", "alive", "silent", "over"),
    [
        ((), True, False, True),
        (("run",), True, False, False),  # it deletes the run's logs
        (("run",), True, True, True),  # it died of that, and no leader is left to mark it dead
        (("run",), False, False, True),
    ],
)
def test_a_drain_is_over_when_its_logs_are_deleted_or_no_processor_is_left_to_do_that(
    uncleaned: tuple[str, ...], alive: bool, silent: bool, over: bool
) -> None:
    drained = replace(CONTROL, phase=RunPhase.DRAINED, past=("run",), uncleaned=uncleaned)
    rows = [
        replace(ROW, state=ProcessorState.ACTIVE if alive else ProcessorState.LEFT),
        ProcessorRow("gone", "l", state=ProcessorState.DEAD),
    ]
    assert is_over(drained, "run", rows, rows[:1] if silent else []) == over
    assert not is_over(CONTROL, "run", rows, rows)


def test_the_seconds_left_follow_from_how_fast_rows_became_fewer() -> None:
    estimate = Estimate()
    looks = [(0, 0.0), (900, 1.0), (1_000, 2.0), (1_000, 3.0), (800, 4.0), (200, 6.0), (0, 7.0)]
    assert [estimate.of({"a": rows}, now) for rows, now in looks] == [None, None, None, None, 8.0, 1.0, None]
    restarted = Estimate()
    many, few = {"a": 490_000, "b": 500_000}, {"b": 500_000}
    assert [restarted.of(left, now) for left, now in [(many, 0.0), (few, 0.2), ({"b": 400_000}, 1.2)]] == [
        None,
        None,
        4.0,
    ]
    assert printed(drain_table(shown(), {"clean-0": 200}, 1.0))[0].endswith("; all rows are read in about 1 s")
    told = io.StringIO()
    with DrainDisplay(told) as display:
        display.update(shown(), {"clean-1": 200}, 1.0)
    assert "clean-1 FLUSHING, 200 rows to read (all in about 1 s)\n" in told.getvalue()
