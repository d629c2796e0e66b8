"""The one sentence on the page, and what stands below it: of fleets in every state. Nothing is read."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from samza_azure.commands.status import EXIT_CODES, NOT_WELL
from samza_azure.group.control import Assignment, Control, DrainNotification, Event, Failure, Member, Owner, RunPhase
from samza_azure.group.notice import Availability, Going, Left
from samza_azure.group.rows import ProcessorRow, ProcessorState, columns, processor_row
from samza_azure.group.timing import PROFILES
from samza_azure.group.view import OwnIncarnation, Settings, View
from samza_azure.host.status import SeenSilent, SeenWaiting, Silence, document
from samza_azure.messages import (
    DrainPhase,
    DrainStep,
    LastBatch,
    Machine,
    Phase,
    Progress,
    ReplicaState,
    TaskError,
    TaskReport,
    Use,
)
from samza_azure.page.document import SHOWN, Lines, made, noted
from samza_azure.page.verdict import FIRST, verdict

TIMING = PROFILES["default"]
A, B = Member("a", "1"), Member("b", "1")
CONTROL = Control(
    "g",
    revision=9,
    epoch=2,
    version=5,
    leader=A,
    run_id="r",
    phase=RunPhase.RUNNING,
    members=(A, B),
    tasks={"t-0": Assignment(Owner("a", "1", 5)), "t-1": Assignment(Owner("b", "1", 5))},
)
DONE = Progress(batches=2, rows=10, pace=5.0, watermark_ms=40_000, behind={"in": 1_000})


def row(name: str, task: str, phase: Phase = Phase.RUNNING, **more: Any) -> ProcessorRow:
    said = TaskReport(task, 5, 1, phase, batch=1, progress=DONE, **more)
    return ProcessorRow(name, "1", beat=3, state=ProcessorState.ACTIVE, tasks={task: said})


ROWS = [row("a", "t-0"), row("b", "t-1")]
STAGE = {"name": "t", "tasks": 2, "running": 1, "pace": 5.0, "behind": 2_000}  # while one of its tasks does not run


def aged(seconds: dict[str, float]) -> dict[str, Silence]:
    """Of rows that have been read twice."""
    return {name: Silence(silent) for name, silent in seconds.items()}


EXITED = "exit code 1: The container ended 3 times in a row (exit code 7)."
GAVE_UP = ProcessorRow(
    "b", "1", state=ProcessorState.LEFT, ending="1 The container ended 3 times in a row (exit code 7)."
)
WELL = aged({"a": 0.5, "b": 1.0})


def shown(control: Control | None = CONTROL, rows: list[ProcessorRow] = ROWS) -> dict[str, Any]:
    return document("app", control, rows, 45.0)


NOW = 100_000
DRAIN = DrainNotification("d", "r", step=DrainStep.FREEZE)
LATE = "No heartbeat of b has come lately. After 8 s without one its tasks go to others."
HANGS = (
    "The container of b has ended or hangs. A processor that has one gets the task; if there is none, it waits for the "
    "next container."
)


@pytest.mark.parametrize(
    ("found", "silent", "state", "text", "since_s"),
    [
        (shown(), WELL, "running", "Run r: 2 of 2 tasks run on 2 processors.", None),
        (
            shown(),
            aged({"a": 9.0, "b": 1.0}),
            "no leader",
            "The leader a is silent. Another processor takes over; running tasks go on meanwhile.",
            9.0,
        ),
        (
            shown(rows=[replace(ROWS[0], state=ProcessorState.DEAD), ROWS[1]]),
            aged({"b": 1.0}),
            "no leader",
            "The leader a has ended. Another processor takes over; running tasks go on meanwhile.",
            None,
        ),
        (
            shown(),
            aged({"a": 1.0, "b": 9.0}),
            "trouble",
            "1 of 2 tasks do not run. b is silent; the leader gives its tasks to others.",
            9.0,
        ),
        (
            shown(replace(CONTROL, deposed=B)),
            aged({"a": 1.0, "b": 6.0}),
            "trouble",
            "a took over from b. If no heartbeat of b comes, its tasks go to others.",
            6.0,
        ),
        (
            shown(),
            aged({"a": 1.0, "b": 6.0}),
            "trouble",
            LATE,
            6.0,
        ),
        (
            shown(),
            aged({"a": 6.0, "b": 1.0}),
            "trouble",
            "No heartbeat of the leader a has come lately. If none comes, another processor takes over.",
            6.0,
        ),
        (
            shown(replace(CONTROL, drain=DRAIN, phase=RunPhase.DRAINING)),
            aged({"a": 1.0, "b": 6.0}),
            "trouble",
            f"Run r is being drained: 0 of 2 tasks have committed. {LATE}",
            6.0,
        ),
        (shown(replace(CONTROL, deposed=B)), WELL, "running", "Run r: 2 of 2 tasks run on 2 processors.", None),
        (
            shown(),
            aged({"a": 99.0, "b": 98.0}),
            "stopped",
            "No processor runs: none sends heartbeats. The next start resumes the run.",
            98.0,
        ),
        (
            shown(rows=[ROWS[0], row("b", "t-1", Phase.STARTING, error=TaskError("no disk", ""))]),
            WELL,
            "trouble",
            "1 of 2 tasks do not run. t-1: It failed on b and is tried there again.",
            None,
        ),
        (
            shown(rows=[ROWS[0], row("b", "t-1", error=TaskError("no disk", ""), tried="2 of 6 tries have failed")]),
            WELL,
            "trouble",
            "1 of 2 tasks do not run. t-1: It failed on b and has appended nothing since. 2 of 6 tries have failed.",
            None,
        ),
        (
            shown(replace(CONTROL, drain=DRAIN, phase=RunPhase.DRAINING)),
            WELL,
            "draining",
            "Run r is being drained: 0 of 2 tasks have committed.",
            None,
        ),
        (
            shown(
                replace(CONTROL, drain=DRAIN, phase=RunPhase.DRAINING),
                [ROWS[0], replace(ROWS[1], no_container=True)],
            ),
            WELL,
            "trouble",
            f"Run r is being drained: 0 of 2 tasks have committed. t-1: {HANGS}",
            None,
        ),
        (
            shown(replace(CONTROL, drain=DRAIN, phase=RunPhase.DRAINING)),
            aged({"a": 1.0, "b": 9.0}),
            "trouble",
            "Run r is being drained: 0 of 2 tasks have committed. b is silent; the leader gives its tasks to others.",
            9.0,
        ),
        (
            shown(replace(CONTROL, phase=RunPhase.DRAINED), []),
            {},
            "drained",
            "Run r is drained. A changed pipeline begins the next one.",
            None,
        ),
        (
            shown(
                replace(
                    CONTROL, phase=RunPhase.DRAINED, events=(Event(40_000, "drain", ""), Event(70_000, "drain", ""))
                ),
                [],
            ),
            {},
            "drained",
            "Run r is drained. A changed pipeline begins the next one.",
            30.0,
        ),
        (
            shown(
                replace(
                    CONTROL,
                    phase=RunPhase.FAILED,
                    failure=Failure("t", "t-0", "a bug\nat line 3", ""),
                    events=(Event(95_000, "failed", ""),),
                ),
                [],
            ),
            {},
            "failed",
            "Run r failed in t-0: a bug. Fix the code and start it: the run resumes.",
            5.0,
        ),
        (shown(rows=[]), {}, "stopped", "No processor runs. The next start resumes run r.", None),
        (
            shown(rows=[GAVE_UP]),
            {},
            "stopped",
            f"No processor runs. b ended with {EXITED} The next start resumes run r.",
            None,
        ),
        (
            shown(None, [ProcessorRow("a", "1")]),
            aged({"a": 1.0}),
            "starting",
            "1 processor joined. A run begins when one of them is ready.",
            None,
        ),
        (
            shown(None, [ProcessorRow("a", "1"), ProcessorRow("b", "1")]),
            aged({"a": 1.0, "b": 9.0}),
            "starting",
            "1 processor joined. A run begins when one of them is ready.",
            None,
        ),
        (
            shown(None, []),
            {},
            "stopped",
            "No processor runs. No run has begun yet; the next start begins one.",
            None,
        ),
        (
            shown(None, [replace(GAVE_UP, ending="2 no stage")]),
            {},
            "stopped",
            "No processor runs. b ended with exit code 2: no stage. No run has begun yet; the next start begins one.",
            None,
        ),
    ],
)
def test_a_fleet_in_a_sentence(
    found: dict[str, Any], silent: dict[str, Silence], state: str, text: str, since_s: float | None
) -> None:
    said = verdict(found, silent, TIMING, NOW)
    assert (str(said.state), said.text, said.since_s) == (state, text, since_s)


@pytest.mark.parametrize(
    ("rows", "silent", "control"),
    [
        ([ROWS[0], row("b", "t-1", error=TaskError("no disk", ""))], WELL, CONTROL),
        ([ROWS[0], replace(ROWS[1], no_container=True)], WELL, CONTROL),
        (ROWS, aged({"a": 1.0, "b": 6.0}), CONTROL),
        (ROWS, aged({"a": 1.0, "b": 6.0}), replace(CONTROL, deposed=B)),
        (ROWS, aged({"a": 1.0, "b": 9.0}), CONTROL),
        ([*ROWS, ProcessorRow("c", "1")], WELL | aged({"c": 9.0}), CONTROL),
        (ROWS, WELL, replace(CONTROL, tasks={**CONTROL.tasks, "t-1": Assignment(None)})),
    ],
    ids=["fails", "hangs", "late", "deposed", "silent", "silent without a task", "nobody takes it"],
)
def test_what_is_trouble_is_so_in_a_drain_too(
    rows: list[ProcessorRow], silent: dict[str, Silence], control: Control
) -> None:
    """`status` exited with 0 in each drain, whatever happened in it."""
    for each in (control, replace(control, drain=DRAIN, phase=RunPhase.DRAINING)):
        judged = verdict(shown(each, rows), silent, TIMING, NOW)
        assert EXIT_CODES[judged.state] == NOT_WELL, judged


def test_a_processor_that_gave_up_is_shown_first_with_its_reason() -> None:
    found = made(shown(rows=[ROWS[0], GAVE_UP]), aged({"a": 0.5}), TIMING, Lines(), 60_000)["processors"]
    assert [(each["id"], each["state"], each["failure"]) for each in found] == [
        ("b", "left", EXITED),
        ("a", "active", None),
    ]


def test_a_processor_shows_where_it_runs_and_what_that_uses() -> None:
    there = Machine("vm-7", "1.2.0", "0a1b2c3d", Use(1.5, 1 << 30))
    found = made(shown(rows=[ROWS[0], replace(ROWS[1], machine=there)]), WELL, TIMING, Lines(), 60_000)
    said = {each["id"]: each["machine"] for each in found["processors"]}
    assert (said["b"]["host"], said["b"]["code"], said["b"]["use"]["cpu"]) == ("vm-7", "0a1b2c3d", 1.5)
    assert said["a"] == asdict(Machine()), "of an earlier release"
    silent = made(
        shown(rows=[ROWS[0], replace(ROWS[1], machine=there)]), aged({"a": 1.0, "b": 9.0}), TIMING, Lines(), 1
    )
    [b] = [each["machine"] for each in silent["processors"] if each["id"] == "b"]
    assert (b["host"], b["use"]["cpu"]) == ("vm-7", 0.0), "it is not heard of any more"


LEAVES = Going(Availability.DECOMMISSIONING, "Preempt", 5, 3, 1, stays=True)


@pytest.mark.parametrize(
    ("going", "said"),
    [
        (
            replace(LEAVES, left={"t-1": Left.RUNS, "t-2": Left.RUNS}, repeated=7),
            "1 of 3 tasks handed over (t-1, t-2: its batch has not ended yet); 7 input rows are repeated",
        ),
        (
            replace(LEAVES, tasks=9, handed_over=0, left={f"t-{number}": Left.NOBODY for number in range(9)}),
            "0 of 9 tasks handed over (t-0, t-1, t-2, t-3, t-4 and 4 more: no other processor can take it)",
        ),
        (replace(LEAVES, state=Availability.DECOMMISSIONED, handed_over=3), "3 of 3 tasks handed over"),
        (None, None),  # of an earlier release
    ],
)
def test_a_processor_that_will_go_is_shown_with_what_is_left_and_why(going: Going | None, said: str | None) -> None:
    """As its row says, after it was stored and read."""
    stored = columns(replace(ROWS[1], state=ProcessorState.LEAVING, going=going))
    rows = [ROWS[0], processor_row("b", "etag", stored)]
    leaves, stays = made(shown(rows=rows), WELL, TIMING, Lines(), NOW)["processors"]
    whole = f"{going.state.lower()} (Preempt): {said}" if going is not None else None
    assert (leaves["id"], leaves["state"], leaves["going"]) == ("b", "leaving", whole)
    assert stays["going"] is None
    silent = made(shown(rows=rows), aged({"a": 0.5, "b": 9.0}), TIMING, Lines(), NOW)["processors"][0]
    assert (silent["state"], silent["going"]) == ("silent", None)  # what it said last is not so now


def test_a_replica_is_shown_where_it_is_and_how_far_behind() -> None:
    placed = replace(CONTROL, replicas={"t-0": ("b", "c"), "t-1": ("a",)})
    ahead = replace(ROWS[0], tasks={"t-0": replace(ROWS[0].tasks["t-0"], batch=5)})
    behind = replace(ROWS[1], replicas={"t-0": ReplicaState(3, 5_000, 1 << 20)})
    found = made(shown(placed, [ahead, behind]), WELL, TIMING, Lines(), 60_000)
    assert {each["name"]: each["replicas"] for each in found["tasks"]} == {
        "t-0": [
            {"processor": "b", "batches_behind": 2, "bytes_behind": 5_000},
            {"processor": "c", "batches_behind": None, "bytes_behind": None},
        ],
        "t-1": [{"processor": "a", "batches_behind": None, "bytes_behind": None}],
    }
    assert {each["id"]: each["replicas"] for each in found["processors"]} == {"a": 1, "b": 1}


def test_a_task_says_for_whom_it_waits_and_for_how_long_at_most() -> None:
    waits = Assignment(Owner("a", "1", 9), after=(Owner("b", "1", 5),))
    moved = replace(CONTROL, tasks={"t-0": waits, "t-1": CONTROL.tasks["t-1"]})
    other = replace(moved, events=(Event(57_000, "joined", "c joined."),))
    for control in (moved, other):  # an event of another task's, once reported since this one waits
        assert shown(control)["tasks"][0]["why"] == "a waits for b to release it, for 45 s at most."
    hangs = [ROWS[0], replace(ROWS[1], no_container=True)]
    why = "a waits for b, whose container has ended or hangs, to release it, for 45 s at most."
    assert shown(moved, hangs)["tasks"][0]["why"] == why


def test_the_bands_add_up_and_the_worst_comes_first() -> None:
    lines = Lines()
    found = made(shown(rows=[ROWS[0], row("b", "t-1", Phase.STARTING)]), WELL, TIMING, lines, 60_000)
    assert [task["name"] for task in found["tasks"]] == ["t-1", "t-0"]
    assert found["keeping_up"]["backlog"] == 2_000 and found["keeping_up"]["age_s"] == 20.0
    assert found["keeping_up"]["lines"] == [(60_000, 2_000, 20.0, 5.0)]
    assert STAGE.items() <= found["stages"][0].items()
    assert made(shown(), WELL, TIMING, lines, 61_000)["keeping_up"]["lines"] == [(60_000, 2_000, 20.0, 5.0)]
    assert len(made(shown(), WELL, TIMING, lines, 60_000 + 900_001)["keeping_up"]["lines"]) == 1, "of 15 minutes"


def test_a_time_without_a_reading_is_a_gap_in_the_curves() -> None:
    """A straight line over it would be made up."""
    lines = Lines()
    for at_ms in (10_000, 20_000, 60_000):
        lines.add(at_ms, 1, None, 2.0)
    points = [(10_000, 1, None, 2.0), (20_000, 1, None, 2.0), (20_001, None, None, None), (60_000, 1, None, 2.0)]
    assert lines.since(60_000) == points


def test_a_processor_that_reads_all_rows_draws_on_without_a_page() -> None:
    view = View(Settings("a", TIMING), OwnIncarnation("1"))
    view.own.control, lines = CONTROL, Lines()
    noted(lines, view, 100.0, 40_000)
    assert not lines.points, "it has never read the others' rows"
    view.others.members, view.others.scanned_at = {each.processor: each for each in ROWS}, 99.0
    noted(lines, view, 100.0, 60_000)
    noted(lines, view, 200.0, 160_000)
    assert list(lines.points) == [(60_000, 2_000, 20.0, 10.0)], "nor does it read them any more"
    assert made(shown(), WELL, TIMING, lines, 62_000)["keeping_up"]["since_ms"] == 60_000


def test_the_backlog_of_a_stream_with_two_readers_is_that_of_the_slower_stage() -> None:
    """What a table has not taken in is no more of the stream than what it is."""
    both = replace(CONTROL, tasks={**CONTROL.tasks, "in-table-0": Assignment(Owner("b", "1", 5))})
    table = TaskReport("in-table-0", 5, 1, Phase.RUNNING, progress=Progress(behind={"in": 5_000}))
    rows = [ROWS[0], replace(ROWS[1], tasks={**ROWS[1].tasks, "in-table-0": table})]
    found = made(shown(both, rows), WELL, TIMING, Lines(), 60_000)
    assert found["keeping_up"]["streams"] == [{"name": "in", "backlog": 5_000}]
    assert [stage["behind"] for stage in found["stages"]] == [2_000, 5_000]


def test_an_observer_says_for_how_long_it_has_seen_a_task_wait() -> None:
    """The account does not say since when it waits. Another reason begins anew."""
    waits = Assignment(Owner("a", "1", 9), after=(Owner("b", "1", 5),))
    moved = replace(CONTROL, tasks={"t-0": waits, "t-1": CONTROL.tasks["t-1"]})
    waiting = SeenWaiting()
    found = []
    for now, rows in ((50.0, ROWS), (53.0, ROWS), (54.0, [ROWS[0]])):
        document = shown(moved, rows)
        waiting.note(document, now)
        found.append(document["tasks"][0]["why_s"])
    assert found == [0.0, 3.0, 0.0]
    document = shown(moved)
    waiting.note(document, 60.0)
    waiting.note(document, 67.0)
    assert verdict(document, WELL, TIMING, NOW).since_s == 7.0
    assert made(document, WELL, TIMING, Lines(), NOW)["tasks"][0]["why_s"] == 7.0


def test_the_page_of_a_large_fleet_has_its_worst_tasks_and_counts_the_rest() -> None:
    tasks = {f"t-{number}": Assignment(Owner("a", "1", 5)) for number in range(SHOWN + 7)}
    found = made(shown(replace(CONTROL, tasks=tasks)), WELL, TIMING, Lines(), 60_000)
    assert (len(found["tasks"]), found["tasks_more"]) == (SHOWN, 7)


def test_a_stage_shows_its_slowest_batch_by_phases_and_the_whole_of_its_state() -> None:
    quick, slow = {"triggerExecution": 90, "addBatch": 80}, {"triggerExecution": 500, "walCommit": 400}
    rows = [
        row("a", "t-0", last_batch=LastBatch(7, 10, slow, 0, 100, 5_000, {"plan": 70})),
        row("b", "t-1", last_batch=LastBatch(7, 10, quick, 0, 20, 1_000)),
    ]
    found = made(shown(rows=rows), WELL, TIMING, Lines(), 60_000)
    [stage] = found["stages"]
    assert (stage["slowest"], stage["ms"], stage["state_rows"], stage["state_bytes"]) == ("t-0", slow, 120, 6_000)
    assert stage["cpu_ms"] == {"plan": 70}
    assert [(task["ms"], task["state_bytes"]) for task in found["tasks"]] == [(slow, 5_000), (quick, 1_000)]
    [stage] = made(shown(), WELL, TIMING, Lines(), 60_000)["stages"]
    assert (stage["ms"], stage["state_rows"], stage["state_bytes"]) == (None, None, None), "unknown, and not 0"


def test_a_drain_shows_the_progress_of_each_step_and_the_tasks_it_waits_for() -> None:
    draining = replace(CONTROL, drain=DRAIN, phase=RunPhase.DRAINING)
    rows = [row("a", "t-0", Phase.DRAINED), row("b", "t-1", read={"in/0": (0, 9)})]
    found = made(shown(draining, rows), WELL, TIMING, Lines(), 60_000)["drain"]
    assert found["steps"] == [
        {"name": "SOURCES_STOPPED", "done": 1},
        {"name": "FLUSHING", "done": 1},
        {"name": "COMMITTED", "done": 1},
        {"name": "DRAINED", "done": 0},
    ]
    assert found["waits_for"] == ["t-1 on b"]


def test_a_drain_names_the_processor_that_holds_up_its_tasks() -> None:
    """Beside the tasks it was not said what they wait for, as for a processor whose JVM was frozen."""
    both = {name: Assignment(Owner("b", "1", 5)) for name in CONTROL.tasks}
    draining = replace(CONTROL, drain=DRAIN, phase=RunPhase.DRAINING, tasks=both)
    reports = {name: TaskReport(name, 5, 1, Phase.RUNNING) for name in both}
    frozen = replace(ROWS[1], tasks=reports, no_container=True)
    found = made(shown(draining, [ROWS[0], frozen]), WELL, TIMING, Lines(), 60_000)
    [waits] = found["drain"]["waits_for"]
    assert waits.startswith("t-0 and 1 more: The container of b has ended or hangs.")
    assert [(each["id"], each["no_container"]) for each in found["processors"]] == [("b", True), ("a", False)]


def test_the_worst_come_first() -> None:
    """A silent leader was the second, and its tasks the last."""
    state = {"state": ProcessorState.ACTIVE}
    rows = [ROWS[0], replace(GAVE_UP, processor="c"), ROWS[1], *(ProcessorRow(name, "1", **state) for name in "de")]
    found = made(shown(rows=rows), aged({"a": 9.0, "b": 1.0, "d": 9.0, "e": 1.0}), TIMING, Lines(), 60_000)
    assert [each["id"] for each in found["processors"]] == ["a", "d", "c", "b", "e"]
    assert [each["name"] for each in found["tasks"]] == ["t-0", "t-1"]


def test_a_drained_run_has_no_pace_and_no_watermark() -> None:
    """Its last figures were shown as if it went on: 2 of 2 run, 618.7 rows/s, a watermark that is 0 s old."""
    drained = shown(replace(CONTROL, drain=DRAIN, phase=RunPhase.DRAINED))
    found = made(drained, {}, TIMING, Lines(), 60_000)
    assert (found["keeping_up"]["pace"], found["keeping_up"]["age_s"]) == (None, None)
    assert [(each["running"], each["drained"], each["pace"]) for each in found["stages"]] == [(0, 2, 0.0)]
    assert found["keeping_up"]["streams"] == [], "between stages nothing is left, whatever was estimated before"
    assert {(task["progress"]["pace"], task["progress"]["watermark_ms"]) for task in drained["tasks"]} == {(None, None)}


def test_a_task_that_has_asked_for_its_shutdown_is_no_task_that_should_run() -> None:
    """Its stage was shown as one of which a task does not run, and its last pace forever."""
    found = made(shown(rows=[ROWS[0], row("b", "t-1", Phase.DRAINED)]), WELL, TIMING, Lines(), 60_000)
    [stage] = found["stages"]
    assert (stage["running"], stage["drained"], stage["tasks"], stage["pace"]) == (1, 1, 2, 5.0)
    assert found["verdict"]["text"] == "Run r: 1 of 2 tasks run on 2 processors. 1 has ended, as it asked."


@pytest.mark.parametrize(
    ("drain", "waits_for"),
    [
        (DRAIN, " It waits for t-1 on b."),
        (replace(DRAIN, step=DrainStep.FLUSH), " It waits for t-0 on a, t-1 on b."),
    ],
)
def test_a_drain_names_the_tasks_that_its_step_waits_for(drain: DrainNotification, waits_for: str) -> None:
    """A task that reads no source keeps no freeze waiting."""
    draining = replace(CONTROL, drain=drain, phase=RunPhase.DRAINING)
    rows = [ROWS[0], row("b", "t-1", read={"in/0": (0, 9)})]
    said = verdict(shown(draining, rows), WELL, TIMING, NOW)
    assert said.text == f"Run r is being drained: 0 of 2 tasks have committed.{waits_for}"
    below = made(shown(draining, rows), WELL, TIMING, Lines(), 60_000)["drain"]["waits_for"]
    assert f" It waits for {', '.join(below)}." == waits_for, "the page named others beside its steps"
    frozen = [ROWS[0], row("b", "t-1", read={"in/0": (0, 9)}, drain=DrainPhase.SOURCES_STOPPED)]
    if drain is DRAIN:
        assert "It waits" not in verdict(shown(draining, frozen), WELL, TIMING, NOW).text


@pytest.mark.parametrize(("behind", "said"), [(0, None), (700, 700)])
def test_the_backlog_of_a_task_that_fails_is_unknown_and_not_zero(behind: int, said: int | None) -> None:
    """Backlog 0 B was shown while 400 rows were not read."""
    well = TaskReport("t-0", 5, 1, Phase.RUNNING, progress=replace(DONE, behind={"in": behind}))
    fails = TaskReport("t-1", 5, 2, Phase.RUNNING, error=TaskError("no disk", ""))
    rows = [replace(ROWS[0], tasks={"t-0": well}), replace(ROWS[1], tasks={"t-1": fails})]
    found = made(shown(rows=rows), WELL, TIMING, Lines(), 60_000)["keeping_up"]
    assert (found["backlog"], found["backlog_is_all"]) == (said, False)


def test_a_figure_that_no_task_reports_is_unknown_and_not_zero() -> None:
    restoring = {"t-0": TaskReport("t-0", 5, 1, Phase.STARTING)}
    rows = [
        ProcessorRow("a", "1", state=ProcessorState.ACTIVE, tasks=restoring),
        ProcessorRow("b", "1", state=ProcessorState.ACTIVE),
    ]
    found = made(shown(rows=rows), WELL, TIMING, Lines(), 60_000)
    assert found["keeping_up"]["backlog"] is None
    assert found["keeping_up"]["lines"] == [(60_000, None, None, 0.0)]
    assert found["stages"][0]["behind"] is None
    assert [task["backlog"] for task in found["tasks"]] == [None, None]


def test_a_stage_is_as_fast_as_its_tasks_that_live() -> None:
    found = made(shown(), aged({"a": 1.0, "b": 9.0}), TIMING, Lines(), 60_000)
    assert found["keeping_up"]["pace"] == 5.0
    assert STAGE.items() <= found["stages"][0].items()


def test_the_page_shows_a_short_first_line_of_an_error() -> None:
    """What it says may quote a row; the whole of it is in the status and in the log."""
    message = f"cannot parse {'4' * 1_000}\n{{'card': '1234'}}"
    failing = [ROWS[0], row("b", "t-1", Phase.STARTING, error=TaskError(message, ""))]
    found = made(shown(rows=failing), WELL, TIMING, Lines(), 60_000)
    assert found["tasks"][0]["error"] == f"cannot parse {'4' * (FIRST - 14)}…"
    noted = (Event(1, "failed", "The run failed in t-1: cannot parse\n{'card': '1234'}"),)
    failed = replace(CONTROL, phase=RunPhase.FAILED, failure=Failure("t", "t-0", message, ""), events=noted)
    assert "card" not in str(made(shown(failed, []), {}, TIMING, Lines(), 60_000))
    assert len(verdict(shown(failed, []), {}, TIMING, NOW).text) < FIRST + 80


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ({"a": 99.0, "b": 98.0}, "No heartbeat of a, b has come lately. The next look shows whether one comes."),
        ({"a": 1.0, "b": 98.0}, "No heartbeat of b has come lately. The next look shows whether one comes."),
    ],
)
def test_a_fleet_whose_heartbeats_are_late_is_looked_at_again(seconds: dict[str, float], text: str) -> None:
    """At the first look it was called RUNNING, however long it had been dead."""
    once = {name: replace(each, is_sure=False) for name, each in aged(seconds).items()}
    said = verdict(shown(), once, TIMING, NOW)
    assert (str(said.state), said.text, said.since_s) == ("looking", text, 98.0)


def test_a_processor_is_silent_if_no_heartbeat_comes_within_another_one() -> None:
    """After an outage all are late at first. The clock is the service's: an observer may look as seldom as it likes."""
    seen, silent = SeenSilent(TIMING.heartbeat_s), replace(ROWS[0], age_s=30.0)
    assert seen.note([silent, replace(ROWS[1], age_s=1.0)], 100.0) == {
        "a": Silence(30.0, False),
        "b": Silence(1.0, False),
    }
    again = replace(ROWS[0], beat=4, age_s=0.5)
    assert seen.note([again], 102.0) == {"a": Silence(0.5, False)}, "the outage is over"
    for now, age_s, is_sure in ((110.0, 8.5, False), (111.0, 9.5, False), (112.0, 10.5, True), (200.0, 98.5, True)):
        assert seen.note([replace(again, age_s=age_s)], now) == {"a": Silence(age_s, is_sure)}, now


def test_what_a_silent_processor_said_last_is_not_shown_as_if_it_were_so() -> None:
    found = document("app", CONTROL, ROWS, silent=["b"])
    assert [each["state"] for each in found["processors"]] == ["ACTIVE", "SILENT"]
    assert [(each["phase"], each["why"]) for each in found["tasks"]] == [
        ("RUNNING", None),
        ("SILENT", "b is silent; the leader gives its tasks to others."),
    ]
    assert (found["phase"], document("app", CONTROL, ROWS, silent=["a", "b"])["phase"]) == ("RUNNING", "STOPPED")
    drained = replace(CONTROL, phase=RunPhase.DRAINED)
    assert [each["phase"] for each in document("app", drained, ROWS, silent=["a", "b"])["tasks"]] == ["DRAINED"] * 2
