"""Texts that are not ours are shown as they are, in every field of every view: no markup, no escapes, none eaten."""

import ast
import io
import os
import pty
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from samza_azure import cli
from samza_azure.commands import show
from samza_azure.commands.dev import _View
from samza_azure.commands.fleet import Fleet
from samza_azure.commands.show import how_it_begins, status_view
from samza_azure.commands.show_drain import DrainDisplay, drain_table
from samza_azure.commands.status import without_ages
from samza_azure.commands.terminal import console, error_lines, printable, say, tell
from samza_azure.commands.waiting import where_all_are
from samza_azure.group.control import Assignment, Control, Owner, RunPhase
from samza_azure.group.notice import Availability, Going, Left
from samza_azure.group.rows import ProcessorRow, ProcessorState
from samza_azure.host.status import SeenWaiting, document
from samza_azure.messages import Phase, Progress, TaskError, TaskReport

#: A closing tag ends rich's markup in an error, an opening one is eaten, and an escape steers the terminal.
HOSTILE = ["[/x]", "[a]", "[streams.matched]", "[red]no[/red]", "\x1b[31m", "\x1b]0;title\x07", ":warning:", "\\[b]"]
LONG = "w" * 300
DRAIN = {"step": "", "run_id": "", "asked_by": "", "asked_ms": 0, "history": [], "at_ms": []}
EMPTY = {
    "app": "", "run_id": "", "verdict": {"state": "", "text": "", "since_s": 7.0, "exit_code": 0},
    "phase": "RUNNING", "epoch": 1, "version": 1, "leader": "",
    "barrier": {"version": 1, "state": ""}, "drain": DRAIN, "drains": [DRAIN], "stop": {"uuid": ""},
    "processors": [{"id": "", "state": "", "ready": True, "heartbeat_s": 0.4, "tasks": [""], "too_old_for": None,
                    "waits_for": "", "machine": {"use": {"cpu": 0.5, "memory": 7 << 20}},
                    "failure": {"exit_code": 1, "message": ""}}],
    "tasks": [
        {"name": "", "stage": "", "owner": "", "phase": "", "batch": 1, "late": 0, "restarts": 0,
         "progress": {"pace": 1.5, "watermark_ms": 0}, "last_batch": None, "why": "", "why_s": 3.0,
         "error": {"message": "", "traceback": ""}, "given_up": {"processor": "", "message": ""}}
    ],
    "events": [{"at_ms": 0, "kind": "", "text": ""}], "kept": {}, "failure": {"task": "", "message": ""},
}  # fmt: skip
#: What no person is shown, or not as it is: the state is a word of the protocol, in capitals.
HIDDEN = ("stop.uuid", "verdict.state", "tasks.0.stage", "tasks.0.error.traceback")
#: What the table of a drain that goes on shows.
OF_A_DRAIN = ("drain.step", "drain.run_id", "drain.asked_by", "tasks.0.name", "tasks.0.stage", "tasks.0.owner")


def fields(value: Any, path: str = "") -> Iterator[str]:
    """The paths of all texts of a document."""
    if isinstance(value, str):
        yield path
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from fields(each, f"{path}.{key}".lstrip("."))


def with_text(value: Any, path: str, text: str) -> Any:
    """The same document with this text in one place."""
    key, _, rest = path.partition(".")
    if not key:
        return text
    if isinstance(value, list):
        return [with_text(each, rest, text) if str(place) == key else each for place, each in enumerate(value)]
    return {name: with_text(each, rest, text) if name == key else each for name, each in value.items()}


def shown(document: dict[str, Any]) -> str:
    """The status as it is printed, without the breaks of lines."""
    printed = io.StringIO()
    console(printed).print(status_view(document))
    return "".join(printed.getvalue().split())


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("path", [path for path in fields(EMPTY) if path not in HIDDEN])
def test_status_shows_every_field_as_it_is(path: str, text: str) -> None:
    assert printable(text) in shown(with_text(EMPTY, path, text))


@pytest.mark.parametrize("path", [path for path in fields(EMPTY) if path not in HIDDEN])
def test_a_word_that_is_wider_than_the_terminal_is_folded_and_not_cut(path: str) -> None:
    assert shown(with_text(EMPTY, path, LONG)).count("w") >= len(LONG)


@pytest.mark.parametrize(
    ("ago_s", "said"), [(150, "(2 min)"), (7_300, "(2 h)"), (9_000, "(2 h)"), (400_000_000, "(4629 d)")]
)
def test_a_watermark_stands_in_one_line_of_a_usual_terminal(ago_s: int, said: str) -> None:
    progress = {"pace": 12345.0, "watermark_ms": int((time.time() - ago_s) * 1000)}
    task = {**EMPTY["tasks"][0], "name": "daily_delays-12", "owner": "dev-0", "phase": "RUNNING", "batch": 1234}  # type: ignore[index]
    printed = io.StringIO()
    screen = console(printed)
    screen.width = 80
    screen.print(status_view({**EMPTY, "tasks": [{**task, **QUIET, "progress": progress}]}))
    [line] = [each for each in printed.getvalue().splitlines() if "daily_delays-12" in each and "RUNNING" not in each]
    assert f" {datetime.fromtimestamp(progress['watermark_ms'] / 1000, UTC):%Y-%m-%d %H:%M} {said} " in line


ROWS = [
    ProcessorRow("p1", "i1", state=ProcessorState.ACTIVE),
    ProcessorRow("p2", "i2"),
    ProcessorRow("p3", "i3", state=ProcessorState.DEAD),
    ProcessorRow("p4", "i4", state=ProcessorState.LEAVING),
]
RUN = Control("g", run_id="1-a", phase=RunPhase.RUNNING)


@pytest.mark.parametrize(
    ("control", "rows", "phase", "said"),
    [
        (None, [], "STOPPED", "No processor runs. The next start begins the first run."),
        (RUN, ROWS[2:3], "STOPPED", "No processor runs. The next start resumes run 1-a."),
        (None, ROWS, "STARTING", "starting 2 processors"),
        (RUN, ROWS, "RUNNING", "starting 2 processors"),
        (replace(RUN, phase=RunPhase.DRAINED), ROWS[1:], "DRAINED", "starting 1 processor"),
        (RUN, [replace(row, fingerprint="f") for row in ROWS], "RUNNING", ""),
    ],
)
def test_a_run_that_has_been_started_says_that_processors_start(
    control: Control | None, rows: list[ProcessorRow], phase: str, said: str
) -> None:
    """It was said before the first run only, counted processors that were dead, and spoke of Spark to jobs without a
    query."""
    found = document("app", control, rows)
    assert (found["phase"], how_it_begins(found)) == (phase, said)
    assert ("".join(said.split()) in shown(found)) if said else "starting" not in shown(found)


def test_status_of_a_run_without_processors_says_once_why_no_task_runs() -> None:
    found = document("app", replace(RUN, tasks={f"clean-{number}": Assignment(None) for number in range(2)}), [])
    assert all(task["why"] for task in found["tasks"])
    assert "doesnotrun" not in shown(found) and "Noprocessorruns." in shown(found)


def test_status_names_the_tasks_that_a_processor_has_not_handed_over_and_why() -> None:
    left = {f"a-{number}": Left.RUNS for number in range(8)}
    going = Going(Availability.DECOMMISSIONING, "Reboot", 0, 9, 1, left, repeated=7)
    said = shown(document("app", RUN, [replace(ROWS[3], going=going)]))
    names = ",".join(left)
    text = f"p4willgo(Reboot):1of9taskshandedover({names}:itsbatchhasnotendedyet);7inputrowsarerepeated"
    assert text in said and "DECOMMISSIONING1/9" in said


def test_tasks_that_wait_for_the_same_are_one_line_and_have_no_phase() -> None:
    """There was a line for each task, which said that no processor could take it while Spark started."""
    tasks = {f"clean-{number}": Assignment(None) for number in range(3)}
    found = document("app", replace(RUN, tasks=tasks), ROWS)
    said = shown(found)
    assert "clean-0and2moredonotrun:Noprocessorthatcantakeitisreadyyet." in said
    assert said.count("donotrun") == 1 and "doesnotrun" not in said and "clean-0--" in said
    ready = document("app", replace(RUN, tasks=tasks), [replace(row, fingerprint="f") for row in ROWS])
    assert "Noliveprocessorwiththispipelinecantakeit." in shown(ready)


def test_tasks_that_wait_for_their_readers_are_one_line() -> None:
    names = "in-source-0", "in-source-1"
    waits = Progress(waits_for_readers=True)
    reports = {name: TaskReport(name, 1, 1, Phase.RUNNING, progress=waits) for name in names}
    tasks = {name: Assignment(Owner(ROWS[0].processor, ROWS[0].incarnation, 1)) for name in names}
    found = document("app", replace(RUN, tasks=tasks), [replace(ROWS[0], tasks=reports), *ROWS[1:]])
    assert "in-source-0,in-source-1waitforreaders" in shown(found)


def test_what_a_task_warns_of_is_a_line() -> None:
    said = TaskReport("in-source-0", 1, 1, Phase.RUNNING, progress=Progress(warning="Nobody reads partition 3."))
    tasks = {said.task: Assignment(Owner(ROWS[0].processor, ROWS[0].incarnation, 1))}
    found = document("app", replace(RUN, tasks=tasks), [replace(ROWS[0], tasks={said.task: said}), *ROWS[1:]])
    assert "in-source-0:Nobodyreadspartition3." in shown(found)


def test_a_task_that_fails_says_how_many_tries_it_has_left_and_since_when() -> None:
    tried = "3 of 6 tries have failed; the next begins after 4 s"
    error = TaskError("no such carrier: '[/x]'", "Traceback")
    failed = TaskReport("clean-0", 1, 4, Phase.STARTING, error=error, tried=tried)
    tasks = {"clean-0": Assignment(Owner("p1", "i1", 1), first=False)}
    row = ProcessorRow("p1", "i1", state=ProcessorState.ACTIVE, fingerprint="f", tasks={"clean-0": failed})
    found, waiting = document("app", replace(RUN, tasks=tasks), [row]), SeenWaiting()
    waiting.note(found, 100.0)
    waiting.note(found, 107.0)
    said = f"clean-0 does not run: It failed on p1 and is tried there again. {tried}. Seen for 7 s."
    assert "".join(said.split()) in shown(found)
    assert "clean-0:nosuchcarrier:'[/x]'" in shown(found)


SOURCE = {"rows": 7, "is_all": True, "size": 3 << 20, "pace": 2.6, "event_ms": None, "appended_s": 4.4}
QUIET = {"why": "", "error": None, "given_up": None}


def figures(document: dict[str, Any], name: str, width: int = 80) -> list[list[str]]:
    """The figures beside this name, of the tables on a terminal of this width."""
    printed = io.StringIO()
    screen = console(printed)
    screen.width = width
    screen.print(status_view(document))
    return [line.split()[1:] for line in printed.getvalue().splitlines() if line.startswith(f"{name} ")]


def test_each_source_shows_what_is_not_read_its_pace_and_its_last_append() -> None:
    event_ms = int((time.time() - 7_300) * 1000)
    at = f"{datetime.fromtimestamp(event_ms / 1000, UTC):%Y-%m-%d %H:%M} (2 h)".split()
    more = {**SOURCE, "is_all": False, "pace": None, "event_ms": event_ms, "appended_s": 130.0}
    document = {**EMPTY, "behind": {"in/0": SOURCE, "in/1": more, "in/2": {**SOURCE, "appended_s": None}}}
    assert figures(document, "in/0") == [["7", "3.0", "3", "-", "4", "s", "ago"]]
    assert figures(document, "in/1") == [[">7", "3.0", "-", *at, "2", "min", "ago"]]
    assert figures(document, "in/2") == [["7", "3.0", "3", "-", "-"]]


@pytest.mark.parametrize(
    ("behind", "said"),
    [
        ({"rows": 9, "is_all": True, "is_estimate": False, "size": 1 << 20}, ["9", "1.0"]),
        ({"rows": 9, "is_all": False, "is_estimate": False, "size": 1 << 20}, [">9", "1.0"]),
        ({"rows": 9, "is_all": True, "is_estimate": True, "size": 1 << 20}, ["~9", "1.0"]),
        ({"rows": None, "is_all": True, "is_estimate": True, "size": 1 << 20}, ["-", "1.0"]),
        (None, ["-", "-"]),
    ],
)
def test_each_task_shows_its_rows_behind_its_last_append_and_how_long_its_batch_took(
    behind: dict[str, Any] | None, said: list[str]
) -> None:
    progress = {"pace": 2.6, "watermark_ms": None, "appended_ms": int((time.time() - 130) * 1000)}
    batch = {"ms": {"triggerExecution": 1_234, "addBatch": 1_000}}
    task = {**EMPTY["tasks"][0], **QUIET, "name": "daily-0", "owner": "p0", "phase": "RUNNING", "late": 3}  # type: ignore[index]
    shown = {**task, "progress": progress, "last_batch": batch, "behind": behind}
    state, work = figures({**EMPTY, "tasks": [shown]}, "daily-0")
    assert (state, work) == (["p0", "RUNNING", "1", "3", "0"], [*said, "3", "-", "2", "min", "ago", "1.23", "s"])
    assert len(figures({**EMPTY, "tasks": [{**task, "progress": None}]}, "daily-0")) == 1, (
        "nothing is known of its work"
    )


def test_each_stage_shows_the_phases_of_its_slowest_batch_by_the_clock_and_in_processor_time() -> None:
    ms = {"triggerExecution": 500, "latestOffset": 7, "getBatch": 1, "queryPlanning": 24, "compute": 150, "append": 12}
    quick = {"ms": {**ms, "triggerExecution": 100}, "cpu_ms": {}}
    slow = {"ms": ms, "cpu_ms": {"plan": 90, "compute": 60, "append": 9}}
    task = {**EMPTY["tasks"][0], **QUIET, "stage": "daily", "progress": None}  # type: ignore[index]
    tasks = [{**task, "name": f"daily-{at}", "last_batch": last} for at, last in enumerate((quick, slow, None))]

    assert figures({**EMPTY, "tasks": tasks}, "daily-1")[1] == ["8", "24", "(90)", "150", "(60)", "12", "(9)"]
    assert len(figures({**EMPTY, "tasks": tasks}, "daily-0")) == 1, "it was quicker"


@pytest.mark.parametrize("width", [30, 40, 60])
def test_on_a_narrow_terminal_a_row_is_a_paragraph(width: int) -> None:
    """Six columns beside each other were cut into pieces of three letters."""
    task = {**EMPTY["tasks"][0], **QUIET, "name": "daily-0", "owner": "vm-0", "phase": "RUNNING", "late": 3}  # type: ignore[index]
    row = {**EMPTY["processors"][0], "id": "vm-0", "state": "active", "tasks": ["daily-0", "daily-1"], "failure": None}  # type: ignore[index]
    document = {
        **EMPTY,
        "app": "shop",
        "processors": [row],
        "tasks": [{**task, "progress": None}],
        "behind": {"in/0": SOURCE},
    }
    printed = io.StringIO()
    screen = console(printed)
    screen.width = width
    screen.print(status_view(document))
    lines = [line.rstrip() for line in printed.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    paragraphs = dict[str, str]()
    for line in lines:
        if line.startswith("  "):
            paragraphs[[*paragraphs][-1]] += line[1:]
        else:
            paragraphs[line] = ""
    assert paragraphs["vm-0"] == " state active, heartbeat 0 s ago, CPU 0.5, memory 7 MiB, tasks daily-0, daily-1"
    assert paragraphs["daily-0"] == " owner vm-0, phase RUNNING, batch 1, late 3, restarts 0"
    assert paragraphs["in/0"] == " rows behind 7, MiB behind 3.0, rows/s 3, last append 4 s ago"


def test_an_error_of_several_tasks_is_shown_once() -> None:
    """It was shown of each task, of each that gave it up, of the run, of the processor, and in the last events."""
    error = "no such column: delay\nTraceback of the stage, " + "which is long, " * 30
    each = {**EMPTY["tasks"][0], **QUIET, "owner": "p1"}  # type: ignore[index]
    tasks = [{**each, "name": f"clean-{number}", "error": {"message": error, "traceback": ""}} for number in range(12)]
    tasks[1]["given_up"] = {"processor": "p2", "message": error}
    event = {"at_ms": 0, "kind": "given up", "text": f"p2 gave up clean-1: {error}"[:239] + "…"}
    row = {**EMPTY["processors"][0], "failure": {"exit_code": 1, "message": f"Task clean-0 failed: {error}"}}  # type: ignore[index]
    judged = {"state": "failed", "text": "Run 1 failed in clean-0: no such column: delay. Fix the code.", "since_s": 0}
    document = {
        **EMPTY, "tasks": tasks, "verdict": judged, "processors": [row], "events": [event],
        "failure": {"task": "clean-0", "message": error},
    }  # fmt: skip
    printed = io.StringIO()
    screen = console(printed)
    screen.width = 400
    screen.print(status_view(document))
    said = printed.getvalue()
    assert said.count("no such column") == said.count("Traceback of the stage") == 1
    assert "FAILED: Run 1 failed in clean-0. Fix the code." in said
    assert "12 tasks, clean-0 (so the run failed), clean-1 (given up by p2), clean-2, " in said
    assert "clean-7 and 4 more: no such column: delay\n" in said
    assert "ended with exit code 1: Task clean-0 failed\n" in said
    assert "given up: p2 gave up clean-1." in said
    document["failure"] = {"task": "clean-0", "message": "another one"}
    assert "clean-0(sotherunfailed):anotherone" in shown(document)


def test_a_status_whose_ages_alone_have_grown_is_not_printed_again() -> None:
    """A pipe got the status of a fleet that did nothing every two seconds."""
    before, after = ({**EMPTY, "behind": {"in/0": {**SOURCE, "appended_s": ago_s}}} for ago_s in (4.4, 6.4))
    assert without_ages(before) == without_ages(after)
    assert without_ages(before) != without_ages({**before, "behind": {"in/0": {**SOURCE, "rows": 8}}})


@pytest.mark.parametrize("text", HOSTILE)
def test_a_source_is_shown_as_it_is(text: str) -> None:
    assert printable(text) in shown({**EMPTY, "behind": {text: SOURCE}})
    assert shown({**EMPTY, "behind": {LONG: SOURCE}}).count("w") >= len(LONG)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_drain_shows_every_task_as_it_is(text: str) -> None:
    printed = io.StringIO()
    with DrainDisplay(printed) as display:
        display.update(with_text(with_text(EMPTY, "tasks.0.name", text), "tasks.0.phase", text), {})
        display.say(text)
    assert printed.getvalue() == f"{printable(text)} {printable(text)}\n{printable(text)}\n"


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("path", OF_A_DRAIN)
def test_no_escape_in_the_table_of_a_drain_reaches_the_terminal(path: str, text: str) -> None:
    printed = io.StringIO()
    wide = console(printed)
    wide.width = 300
    wide.print(drain_table(with_text(EMPTY, path, text), {}))
    assert printable(text) in printed.getvalue()


@pytest.mark.parametrize("text", HOSTILE)
def test_no_escape_in_lines_per_stage_or_after_a_timeout_reaches_the_terminal(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printed, now = io.StringIO(), [0.0]
    document = {**EMPTY, "tasks": [{**EMPTY["tasks"][0], "name": f"{text}-0", "stage": text, "owner": text}]}  # type: ignore[index]
    with DrainDisplay(printed, lambda: now[0]) as display:
        display.update(document, {})
        now[0] = DrainDisplay.EVERY_S
        display.update(document, {f"{text}-0": 7})
    assert printed.getvalue().endswith(f"\n{printable(text)}: 1 , 7 rows to read\n")
    say(where_all_are(document, {}))
    assert f"{printable(text)}-0  on {printable(text)}." in capsys.readouterr().err


@pytest.mark.parametrize("is_terminal", [True, False])
def test_dev_says_everything_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, is_terminal: bool
) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        if is_terminal:
            monkeypatch.setattr(sys, "stderr", terminal)
            monkeypatch.setenv("TERM", "xterm")
        view = _View(cast(Fleet, None), 2, None, reload=False)
        for text in HOSTILE:
            view._say(text)
        terminal.flush()
        expected, shown = "".join(f"{printable(text)}\n" for text in HOSTILE), capsys.readouterr().err
        while is_terminal and len(shown) < len(expected):  # a terminal hands out what it has so far
            shown += os.read(ours, 1 << 16).decode().replace("\r", "")
    os.close(ours)
    assert shown == expected


def test_an_error_of_a_command_is_shown_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["samza-azure", "status", "".join(HOSTILE)])
    with pytest.raises(SystemExit):
        cli.main()
    assert f"/{printable(''.join(HOSTILE))}. Give the path" in capsys.readouterr().err


#: Commands that print only what stands in the user's own files.
OF_THE_USER = {"check.py", "explain.py"}


def test_every_result_that_is_not_json_is_printed_without_escapes() -> None:
    """Names in the account are not ours: locks, readers, streams and processors of others."""
    folder = Path(show.__file__).parent
    bare = [
        f"{path.name}:{call.lineno}"
        for path in folder.glob("*.py")
        if path.name not in OF_THE_USER | {"terminal.py"}
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"
        if not ast.unparse(call.args[0]).startswith(("json.dumps(", "printable("))
    ]
    assert bare == [], "use `tell`, of samza_azure.commands.terminal"


def test_no_escape_reaches_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for text in HOSTILE:
        say(text)
        tell(text)
    shown = "".join(f"{printable(text)}\n" for text in HOSTILE)
    assert capsys.readouterr() == (shown, shown)
    assert printable("a\x1b[31m\tb\nc") == "a\\x1b[31m\tb\nc"


def test_a_long_error_is_shown_without_the_plan() -> None:
    message = "A column with name `amont` cannot be resolved.\n\n" + "\n".join(f"+- Project {n}" for n in range(40))
    assert error_lines(message).splitlines()[0] == "A column with name `amont` cannot be resolved."
    assert error_lines(message).splitlines()[-1] == "… 33 more lines: status --json"
    assert error_lines("one\ntwo") == "one\ntwo"
