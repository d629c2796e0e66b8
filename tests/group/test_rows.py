"""Rows are hearsay: our own are read back as written, and foreign ones stop no processor."""

import base64
import json
import zlib
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samza_azure.group.actions import MarkDead, ScanMembers, WriteControl
from samza_azure.group.control import decode, encode
from samza_azure.group.learn import learn
from samza_azure.group.publish import next_control
from samza_azure.group.rows import (
    COLUMN_LIMIT,
    PACKED,
    REQUEST_COLUMNS,
    LeaderRow,
    ProcessorRow,
    ProcessorState,
    Request,
    RequestKind,
    columns,
    leader_columns,
    leader_row,
    processor_row,
    request,
    request_columns,
)
from samza_azure.host.status import document
from samza_azure.messages import (
    BATCH_PHASES,
    DrainPhase,
    LastBatch,
    Machine,
    Phase,
    Progress,
    TaskError,
    TaskReport,
    Use,
)
from tests.group.situation import CONTROL, NOW, ROWS, decide, leader, report

REPORT = TaskReport(
    "clean-0",
    generation=7,
    attempt=2,
    phase=Phase.RUNNING,
    batch=9,
    late=1,
    drain=DrainPhase.SOURCES_STOPPED,
    ends={"flights/0": (0, 99)},
    frozen_for="drain",
    read={"flights/0": (0, 98)},
    error=TaskError("no", "Traceback"),
)
LAST_BATCH = LastBatch(
    9, 1200, {"triggerExecution": 310, "addBatch": 250}, late=1, state_rows=500, state_bytes=81_234, cpu_ms={"plan": 90}
)
ROW = ProcessorRow(
    "p1",
    "incarnation",
    etag="e",
    beat=12,
    adopted=7,
    state=ProcessorState.LEAVING,
    released={"clean-1": 5},
    tasks={"clean-0": REPORT},
    fingerprint="f" * 64,
    new_run="new",
    boot="b",
)

anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.binary(),
    st.text(),
    st.sampled_from(["{", "[]", "null", '{"a": 1}']),
)
columns_of_strangers = st.dictionaries(
    st.sampled_from([*columns(ROW), "epoch", "kind", "runId", "successors"]), anything
)


def test_a_processors_row_comes_back_as_written() -> None:
    assert processor_row("p1", "e", columns(ROW)) == ROW


def test_the_leader_row_comes_back_as_written() -> None:
    row = LeaderRow(3, 9, "run:RUNNING:-", "control", 77, ("p2", "p3"), etag="e")
    assert leader_row("e", leader_columns(row)) == row
    alone = LeaderRow(3, 9, "run:RUNNING:-", "control", 77, (), etag="e")
    assert leader_row("e", leader_columns(alone)) == alone


def test_the_columns_are_called_as_they_always_were() -> None:
    """Processors of another version read them, and so do people."""
    assert columns(replace(ROW, tasks={"clean-0": replace(REPORT, error=None, appended_at=1.5)})) == {
        "incarnation": "incarnation",
        "beat": 12,
        "adopted": 7,
        "state": "LEAVING",
        "released_columns": 1,
        "released": '{"clean-1":5}',
        "tasks_columns": 1,
        "tasks": '{"clean-0":{"generation":7,"attempt":2,"phase":"RUNNING","batch":9,"late":1,'
        '"drain":"SOURCES_STOPPED","ends":{"flights/0":[0,99]},"frozen_for":"drain","read":{"flights/0":[0,98]},'
        '"appended_at":1.5}}',
        "fingerprint": "f" * 64,
        "new_run": "new",
        "boot": "b",
        "cut_off": False,
        "no_container": False,
    }
    assert leader_columns(LeaderRow(3, 9, "run:RUNNING:-", "control", 77, ("p2", "p3"), etag="e")) == {
        "epoch": 3,
        "version": 9,
        "drain": "run:RUNNING:-",
        "control_etag": "control",
        "beat": 77,
        "successors": "p2,p3",
    }
    drain = {"kind": "drain", "uuid": "k", "runId": "run", "drainMode": "DEFAULT"}
    assert request_columns(RequestKind.DRAIN, "k", "run") == drain
    assert request_columns(RequestKind.CANCEL, "k", "") == {"kind": "cancel", "uuid": "k", "runId": ""}
    stop = {"kind": "stop", "uuid": "k", "runId": "run", "incarnations": "11111111,22222222"}
    assert request_columns(RequestKind.STOP, "k", "run", ["2" * 32, "1" * 32]) == stop


@pytest.mark.parametrize("key", ["", "Ä", "p1,p2", "P1", "-p", "p 1", "p" * 64])
def test_a_row_whose_key_is_not_a_processor_id_is_ignored(key: str) -> None:
    assert (processor_row(key, "e", columns(ROW)).is_ours, processor_row(key, "e", columns(ROW)).alive) == (
        False,
        False,
    )


@pytest.mark.parametrize("wish", ["a/b", "..", ".", "a b", "Ä", "-a", "a\n", "a" * 200, "x/../../streams", "{}"])
def test_a_run_id_that_is_no_valid_directory_name_is_ignored(wish: str) -> None:
    """It would become the run's id, and so the names of its logs, which clean-up, export and listings use."""
    assert processor_row("p1", "e", columns(ROW) | {"new_run": wish}).new_run == ""


@pytest.mark.parametrize("wish", ["new", "1700000000000-abcdef01", "2024.w07_b"])
def test_a_valid_run_id_is_accepted(wish: str) -> None:
    assert processor_row("p1", "e", columns(ROW) | {"new_run": wish}).new_run == wish


#: A lone surrogate, which JSON may have and UTF-8 may not: the table stores it, the control blob must not.
LONE = "\ud800"


@pytest.mark.parametrize("incarnation", ["", LONE, "x" * 65, "a\nb"])
def test_a_row_whose_incarnation_is_no_name_is_ignored(incarnation: str) -> None:
    assert not processor_row("p1", "e", columns(ROW) | {"incarnation": incarnation}).alive


@pytest.mark.parametrize("key", ["", LONE, "a\nb"])
def test_a_request_whose_key_is_no_name_is_ignored(key: str) -> None:
    assert request(key, "e", {"kind": "stop", "uuid": "u", "runId": ""}).kind is None


@pytest.mark.parametrize("uuid", ["", "K", "null", "[1]", LONE, 7])
def test_a_drain_whose_uuid_is_not_its_key_is_ignored(uuid: str | int) -> None:
    """No release has written one: such a row is damaged, and what else it says may be, too."""
    drain: dict[str, str | int] = {**request_columns(RequestKind.DRAIN, "k", "run")}
    assert request("k", "e", drain).kind is RequestKind.DRAIN
    assert request("k", "e", drain | {"uuid": uuid}).kind is None


def test_a_lone_surrogate_in_a_row_does_not_make_the_control_blob_unreadable() -> None:
    """The leader stored it, and nobody could read the blob again."""
    asked = request("u", "e", request_columns(RequestKind.DRAIN, "u", "run", by=f"{LONE}da"))
    gone = processor_row("p2", "e", columns(replace(ROWS["p2"], state=ProcessorState.LEFT, ending=f"1 {LONE} failed")))
    view = leader(requests=(asked,))
    view.others.members = {**view.others.members, "p2": gone}
    written = [action.control for action in decide(view, NOW) if isinstance(action, WriteControl)]
    assert [control.drain and control.drain.by for control in written] == ["?da"]
    assert [event.text for event in written[0].events if event.kind == "ended"] == [
        "p2 ends with exit code 1: ? failed"
    ]
    assert decode(encode(written[0])) == written[0]


def test_an_error_with_a_lone_surrogate_is_reported() -> None:
    """The report was left out as damaged, so the task was never known to have failed."""
    failed = {"clean-0": replace(REPORT, error=TaskError(f"no {LONE}", f"Traceback {LONE}"))}
    [read] = processor_row("p1", "e", columns(ProcessorRow("p1", "i", tasks=failed))).tasks.values()
    assert read.error == TaskError("no ?", "Traceback ?")


def test_a_row_without_an_incarnation_is_ignored() -> None:
    assert not processor_row("p1", "e", {"state": "ACTIVE", "temperature": 21.5}).alive


@given(st.dictionaries(st.sampled_from(["zz", "p1,p2", "Ä"]), columns_of_strangers))
def test_foreign_rows_move_no_task_and_mark_no_processor(strangers: dict[str, dict[str, Any]]) -> None:
    view = leader()
    found = tuple(processor_row(key, f"etag of {key}", values) for key, values in strangers.items())
    learn(view, ScanMembers(), (*ROWS.values(), *found), sent_at=NOW, now=NOW + 1)
    later = decide(view, NOW + 2)
    assert next_control(view, CONTROL, NOW + 2) == CONTROL
    assert MarkDead not in map(type, later)


@pytest.mark.parametrize("beat", [-1, 1 << 60, (1 << 63) - 1])
def test_a_counter_at_its_maximum_is_ignored(beat: int) -> None:
    assert processor_row("p1", "e", columns(ROW) | {"beat": beat}).beat == 0
    assert leader_row("e", {"beat": beat, "epoch": beat}) == leader_row("e", {})


def test_texts_without_end_are_read_as_nothing() -> None:
    for text in ("[" * 100_000, '{"clean-0":' * 50_000, "z:" + "A" * 60_000):
        assert processor_row("p1", "e", columns(ROW) | {"tasks": text, "released": text}).tasks == {}


def test_an_error_that_is_no_text_is_not_passed_on() -> None:
    tasks = json.dumps({"clean-0": {"generation": 1, "attempt": 1, "phase": "FAILED", "error": {"message": 7}}})
    assert processor_row("p1", "e", columns(ROW) | {"tasks": tasks}).tasks == {}


@given(columns_of_strangers)
def test_no_foreign_row_crashes_a_reader(values: dict[str, Any]) -> None:
    assert processor_row("zz", "e", values).processor == "zz"
    assert leader_row("e", values).etag == "e"
    assert request("zz", "e", values).key == "zz"


def test_invalid_values_of_a_row_are_left_out() -> None:
    values = {
        "incarnation": 7,
        "beat": "many",
        "adopted": True,
        "state": "sleepy",
        "released": '{"clean-0": "soon"}',
        "tasks": '{"clean-0": 7, "clean-1": {"generation": "x"}, "clean-2": '
        '{"generation": 1, "attempt": 1, "phase": "RUNNING"}}',
    }
    assert processor_row("zz", "e", values) == ProcessorRow(
        "zz",
        "7",
        etag="e",
        released={"clean-0": 0},
        tasks={"clean-2": TaskReport("clean-2", 1, 1, Phase.RUNNING)},
    )


@pytest.mark.parametrize("kind", RequestKind)
def test_a_request_comes_back_as_written(kind: RequestKind) -> None:
    lives = ["1" * 32, "2" * 32]
    assert request("k", "e", request_columns(kind, "k", "run", lives)) == Request(
        "k", "e", kind, "run", incarnations=frozenset({"1" * 8, "2" * 8})
    )


@pytest.mark.parametrize(
    "values",
    [{"kind": "dance"}, {"kind": 7}, {}, {"kind": "drain", "body": "x" * 70_000}, {"kind": "drain" * 9_000}],
)
def test_a_request_of_an_unknown_kind_or_invalid_size_is_ignored(values: dict[str, Any]) -> None:
    assert request("k", "e", values).kind is None


def test_a_request_that_could_not_be_answered_is_ignored() -> None:
    drain = {"kind": "drain", "uuid": "", "drainMode": "DEFAULT", "runId": "run"}
    assert request("", "e", drain | {"uuid": "u"}).kind is None
    many = drain | {"uuid": "k"} | {f"extra{number}": 1 for number in range(REQUEST_COLUMNS)}
    assert request("k", "e", many).kind is None


def test_a_long_request_is_cut_before_it_is_stored_again() -> None:
    drain = {"kind": "drain", "uuid": "k", "drainMode": "DEFAULT", "runId": "y" * 9000}
    asked = request("k", "e", {**drain, "answer": "z" * 9000})
    assert asked == Request("k", "e", RequestKind.DRAIN, "y" * 256, "z" * 256)


def reports(count: int, **more: Any) -> dict[str, TaskReport]:
    return {
        f"clean-{number}": replace(REPORT, task=f"clean-{number}", **{"error": None} | more) for number in range(count)
    }


def test_when_many_tasks_have_failed_each_keeps_less_of_its_traceback() -> None:
    failed = reports(40, error=TaskError("m" * 99, "t" * 9000 + "the end"))
    read = processor_row("p", "e", columns(ProcessorRow("p", "i", tasks=failed))).tasks
    assert {report.error for report in read.values()} == {TaskError("m" * 99, "t" * 393 + "the end")}
    alone = processor_row("p", "e", columns(ProcessorRow("p", "i", tasks=reports(1, error=TaskError("m", "t" * 9000)))))
    assert alone.tasks["clean-0"].error == TaskError("m", "t" * 4000)


@pytest.mark.parametrize("tasks", [1, 2_000])
def test_the_reports_of_2000_source_partitions_come_back_whole(tasks: int) -> None:
    """Read by one task, or by as many tasks: neither fits into one column."""
    positions = {f"flights/{number}": (number % 7, 7919 * number) for number in range(2_000)}
    each = 2_000 // tasks
    told = {
        name: replace(report, ends=ends, read=ends)
        for at, (name, report) in enumerate(reports(tasks).items())
        if (ends := dict(list(positions.items())[at * each : (at + 1) * each]))
    }
    row = ProcessorRow("p", "i", tasks=told, released={f"daily-{number}": number for number in range(2_000)})
    written = columns(row)
    assert processor_row("p", "", written) == row
    assert max(len(value) for value in written.values() if isinstance(value, str)) <= COLUMN_LIMIT
    assert sum(2 * len(str(value)) for value in written.values()) < 1 << 20


def test_leftover_columns_of_a_longer_text_are_not_read() -> None:
    long, short = ProcessorRow("p", "i", tasks=reports(2_000)), ProcessorRow("p", "i", tasks=reports(1))
    assert processor_row("p", "", columns(long) | columns(short)) == short


def test_the_last_batch_comes_back_and_what_a_later_release_adds_to_it_is_ignored() -> None:
    report = replace(REPORT, progress=Progress(3, 40, appended_ms=1_764_000_000_123), last_batch=LAST_BATCH)
    written = columns(ProcessorRow("p", "i", tasks={"clean-0": report}))
    assert processor_row("p", "", written).tasks == {"clean-0": report}
    timed = replace(report, progress=replace(report.progress or Progress(), cpu_s={"plan": 1.5}))
    assert columns(ProcessorRow("p", "i", tasks={"clean-0": timed})) == written, "only its own processor counts it"
    stateless = replace(report, last_batch=LastBatch(9, 1200))
    assert processor_row("p", "", columns(ProcessorRow("p", "i", tasks={"clean-0": stateless}))).tasks == {
        "clean-0": stateless
    }
    said = json.loads(str(written["tasks"]))
    said["clean-0"]["last_batch"] |= {"new": {"a": 1}, "ms": {"addBatch": 7, "new": 8}}
    [read] = processor_row("p", "", {"tasks": json.dumps(said)}).tasks.values()
    assert read == replace(report, last_batch=replace(LAST_BATCH, ms={"addBatch": 7}))


def test_status_shows_the_last_batch_of_each_task() -> None:
    said = report("daily-0", last_batch=LAST_BATCH)
    shown = document("app", CONTROL, [ROWS["p1"], replace(ROWS["p3"], tasks={"daily-0": said})])
    assert {task["name"]: task["last_batch"] for task in shown["tasks"]} == {
        "clean-0": None,
        "clean-1": None,
        "daily-0": {
            "batch": 9,
            "rows": 1200,
            "ms": {"triggerExecution": 310, "addBatch": 250},
            "late": 1,
            "state_rows": 500,
            "state_bytes": 81_234,
            "cpu_ms": {"plan": 90},
        },
    }


@pytest.mark.parametrize("foreign", [7, "x", [], {"ms": 7}, {"batch": -1, "rows": "9", "ms": {"addBatch": 1e999}}])
def test_a_foreign_last_batch_spoils_no_report(foreign: object) -> None:
    said = {"generation": 7, "attempt": 2, "phase": "RUNNING", "last_batch": foreign}
    [read] = processor_row("p", "", {"tasks": json.dumps({"clean-0": said})}).tasks.values()
    assert read.last_batch == (LastBatch(0, 0, read.last_batch.ms) if read.last_batch is not None else None)
    assert read.generation == 7


def test_a_progress_without_seconds_or_pace_is_that_of_an_earlier_release() -> None:
    said = {"generation": 7, "attempt": 2, "phase": "RUNNING", "progress": {"batches": 3, "rows": 40}}
    [read] = processor_row("p", "", {"tasks": json.dumps({"clean-0": said})}).tasks.values()
    assert read.progress == Progress(batches=3, rows=40)


@pytest.mark.parametrize("foreign", [True, "2.5", [2.5], -2.5, float("nan"), 1e30])
def test_what_a_task_puts_out_and_its_backlog_by_partition_are_numbers_or_none(foreign: object) -> None:
    of_partitions = {"views/0": foreign, "views/1": 7}
    told = {"pace_out": foreign, "behind_sources": of_partitions, "lag_rows": of_partitions, "lag_s": {"views/1": 7}}
    said = {"generation": 7, "attempt": 2, "phase": "RUNNING", "progress": told}
    [read] = processor_row("p", "", {"tasks": json.dumps({"clean-0": said})}).tasks.values()
    read_as = {"views/0": 0, "views/1": 7}
    assert read.progress == Progress(pace_out=0.0, behind_sources=read_as, lag_rows=read_as, lag_s={"views/1": 7.0})


@pytest.mark.parametrize("foreign", [None, True, "2.5", [2.5], -2.5, float("nan"), float("inf"), 1e30])
def test_a_number_of_seconds_that_makes_no_sense_counts_as_none(foreign: object) -> None:
    said = {"generation": 7, "attempt": 2, "phase": "RUNNING", "progress": {"seconds": foreign, "pace": 2.5}}
    [read] = processor_row("p", "", {"tasks": json.dumps({"clean-0": said})}).tasks.values()
    assert read.progress == Progress(pace=2.5)


@pytest.mark.parametrize("foreign", [True, "7", -7, 1 << 60, {}])
def test_an_invalid_time_of_the_last_append_is_ignored(foreign: object) -> None:
    said = {"generation": 7, "attempt": 2, "phase": "RUNNING", "progress": {"appended_ms": foreign}}
    [read] = processor_row("p", "", {"tasks": json.dumps({"clean-0": said})}).tasks.values()
    assert read.progress == Progress()


def test_a_row_says_where_its_processor_runs_and_what_that_uses() -> None:
    """A change of that alone is written with the next heartbeat, and never sooner."""
    there = Machine("vm-7", "1.2.0", "0a1b2c3d", Use(1.5, 1 << 30, 4 << 30, 1 << 28, 1 << 29))
    row = ProcessorRow("p", "i", machine=there)
    assert processor_row("p", "", columns(row)).machine == there
    assert row == ProcessorRow("p", "i")
    assert "machine" not in columns(ProcessorRow("p", "i")), "and a row of an earlier release does not"
    assert processor_row("p", "", columns(ProcessorRow("p", "i"))).machine == Machine()


@pytest.mark.parametrize("foreign", [True, "7", -7, [7], {"a": 7}, float("inf"), 1 << 60])
def test_what_makes_no_sense_of_a_machine_is_not_known(foreign: object) -> None:
    use = dict.fromkeys(("cpu", "memory", "memory_most", "heap", "heap_most"), foreign)
    for said in ({"host": foreign, "use": use}, {"host": "two\nlines", "code": "c" * 300, "use": foreign}, foreign):
        read = processor_row("p", "", {"machine": json.dumps(said)}).machine
        assert read == Machine("7" if said == {"host": "7", "use": use} else "")
    assert processor_row("p", "", {"machine": json.dumps({"host": "h" * 9_000})}).machine == Machine()


def test_a_row_that_is_too_large_leaves_out_the_last_batches_first() -> None:
    busy = LastBatch(1 << 50, 1 << 50, dict.fromkeys(BATCH_PHASES, 1), late=1 << 50, state_rows=1, state_bytes=1 << 50)
    dice, many = Random(1), {}
    for name in (f"{dice.getrandbits(128):x}-{number}" for number in range(4_500)):
        vary = {phase: dice.getrandbits(40) for phase in BATCH_PHASES}
        report = TaskReport(name, 1, 1, Phase.RUNNING, progress=Progress(number := dice.getrandbits(20), number))
        many[name] = replace(report, last_batch=replace(busy, ms=vary))
    read = processor_row("p", "", columns(ProcessorRow("p", "i", tasks=many))).tasks
    assert read == {name: replace(each, last_batch=None) for name, each in many.items()}


def random_ends(count: int, seed: int) -> dict[str, tuple[int, int]]:
    """What cannot be packed well."""
    dice = Random(seed)
    return {f"{dice.getrandbits(64):x}/{at}": (at, dice.getrandbits(62)) for at in range(count)}


@pytest.mark.parametrize(
    ("report", "partitions", "kept"),
    [
        (replace(REPORT, error=None), 25, replace(REPORT, error=None, read=None)),
        (replace(REPORT, error=None), 200, replace(REPORT, error=None, read=None, late=0, ends=None)),
        (REPORT, 200, replace(REPORT, error=TaskError("no", ""), read=None, late=0, ends=None)),
    ],
)
def test_a_row_that_is_too_large_shortens_itself(report: TaskReport, partitions: int, kept: TaskReport) -> None:
    """What the leader needs stays longest: phases, generations, why a task failed; then the positions at which it has
    stopped."""
    many = {}
    for number in range(300):
        ends = random_ends(partitions, number)
        many[f"clean-{number}"] = replace(
            report, task=f"clean-{number}", ends=ends, read=random_ends(partitions, 1000 + number)
        )
    read = processor_row("p", "", columns(ProcessorRow("p", "i", tasks=many))).tasks
    assert read == {
        name: replace(kept, task=name, ends=None if kept.ends is None else each.ends) for name, each in many.items()
    }


def test_a_row_reports_as_many_tasks_as_it_has_room_for() -> None:
    dice = Random(1)
    many = {f"{dice.getrandbits(256):x}-{number}": number for number in range(20_000)}
    tasks = {name: TaskReport(name, 1, 1, Phase.RUNNING) for name in many}
    read = processor_row("p", "", columns(ProcessorRow("p", "i", tasks=tasks, released=many)))
    assert 1_000 < len(read.tasks) < 20_000
    assert 500 < len(read.released) < 20_000
    assert read.tasks.items() <= tasks.items()
    assert read.released.items() <= many.items()


def test_a_text_that_unpacks_to_far_too_much_is_not_read() -> None:
    bomb = PACKED + base64.b64encode(zlib.compress(b'{"clean-0": "' + b" " * (64 << 20) + b'"}')).decode()
    assert processor_row("zz", "e", {"tasks_columns": 1, "tasks": bomb}).tasks == {}


@pytest.mark.parametrize(
    "text", ["[" * 31_000, '{"clean-0": ' * 2_000, PACKED + "!", PACKED + "AAAA", '{"clean-0": {"generation": 1e999}}']
)
def test_a_row_made_to_break_its_reader_is_ignored(text: str) -> None:
    assert processor_row("zz", "e", {"tasks_columns": 10**9, "tasks": text, "released": text}).tasks == {}
