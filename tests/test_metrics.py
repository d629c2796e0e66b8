"""The instruments: what they show of a View, what they count of calls, and how they are served."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from samza_azure.config import doubtful_timing
from samza_azure.group.actions import MergeOwnRow, ReadControl, RenewLease, StorageAction
from samza_azure.group.age import Age
from samza_azure.group.answers import Answer, Denied, Trouble
from samza_azure.group.control import Assignment, Barrier, BarrierState, Control, Event, Member, Owner, RunPhase
from samza_azure.group.drain import rows_to_drain
from samza_azure.group.learn import heard_notice, heard_task, heard_withdrawn, learn, turn
from samza_azure.group.notice import PORT, Left, Notice
from samza_azure.group.notification import DrainNotification
from samza_azure.group.rows import ProcessorRow, ProcessorState
from samza_azure.group.timing import PROFILES, Timing
from samza_azure.group.view import Leadership, Lease, LocalTask, OwnIncarnation, Settings, View
from samza_azure.messages import DrainPhase, DrainStep, Phase, Progress, TaskReport, Use
from samza_azure.metrics.facts import (
    GroupFacts,
    ProcessorFigures,
    all_run,
    facts,
    group_facts,
    moved,
    outcome,
    steps_taken,
)
from samza_azure.metrics.observer import Observer
from samza_azure.outcomes import Missing, NotModified, Refused

METRICS = Path(__file__).parents[1] / "docs" / "metrics.md"
HERE, THERE = Member("here", "1"), Member("there", "2")


def owned(by: Member, generation: int) -> Assignment:
    return Assignment(Owner(by.processor, by.incarnation, generation))


MODEL = Control(
    group_id="g",
    revision=7,
    epoch=2,
    version=7,
    leader=HERE,
    run_id="r",
    phase=RunPhase.RUNNING,
    tasks={"a-0": owned(HERE, 7), "a-1": owned(HERE, 7), "a-2": owned(THERE, 5)},
    barrier=Barrier(7, BarrierState.START),
)


def report(task: str, generation: int, phase: Phase = Phase.RUNNING) -> TaskReport:
    return TaskReport(task, generation, 1, phase)


def view_of(control: Control | None, now: float = 100.0) -> View:
    view = View(Settings("here", PROFILES["default"]), OwnIncarnation("1"))
    view.own.control, view.turn_at, view.own.etag, view.own.beat, view.own.accepted_at = (
        control,
        now,
        "e",
        3,
        now - 1.5,
    )
    return view


class Meters:
    """An observer, and what an SDK has collected from it."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.observer = Observer("here", MeterProvider([self.reader]))

    def points(self) -> dict[str, list[tuple[Mapping[str, Any], float]]]:
        """Name to attributes and value; of a histogram the sum."""
        found: dict[str, list[tuple[Mapping[str, Any], float]]] = {}
        data = self.reader.get_metrics_data()
        for metric in data.resource_metrics[0].scope_metrics[0].metrics if data else ():
            for point in metric.data.data_points:
                told = {key: value for key, value in (point.attributes or {}).items() if key != "processor"}
                value = point.sum if hasattr(point, "sum") else point.value
                found.setdefault(metric.name.removeprefix("samza_azure."), []).append((told, round(value, 6)))
        return found


def test_a_task_that_is_owned_but_does_not_run_is_seen() -> None:
    view = view_of(MODEL)
    view.leadership = Leadership(Lease("l", 90.0), 0.0, 0.0, row_sent_at=99.0, free_from=0.0)
    view.work.tasks["a-0"] = LocalTask(7, 1, 95.0, report("a-0", 7))
    view.work.tasks["a-1"] = LocalTask(7, 2, 95.0, report("a-1", 7, Phase.STARTING))
    assert facts(view) == ProcessorFigures(leads=True, epoch=2, version=7, owned=2, running=1)


def test_a_task_that_runs_under_an_earlier_generation_does_not_count_as_running() -> None:
    view = view_of(MODEL)
    view.work.tasks["a-0"] = LocalTask(6, 1, 95.0, report("a-0", 6))
    assert facts(view) == ProcessorFigures(epoch=2, version=7, owned=2, running=0)


def test_all_figures_are_zero_before_the_control_blob_is_read() -> None:
    assert facts(view_of(None)) == ProcessorFigures()


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (None, "done"),
        ("etag", "done"),
        ((), "done"),
        (Refused("ConditionNotMet"), "refused"),
        (Denied("the key was rotated"), "denied"),
        (Missing(), "absent"),
        (NotModified(), "unchanged"),
        (Trouble.UNSETTLED, "unsettled"),
        (Trouble.UNAVAILABLE, "unavailable"),
    ],
)
def test_an_answer_is_counted_by_its_kind(answer: Answer, word: str) -> None:
    assert outcome(answer) == word


def test_a_first_owner_is_no_move() -> None:
    before = replace(MODEL, tasks={"a-0": Assignment(), "a-1": owned(THERE, 5), "a-2": owned(THERE, 5)})
    assert moved(before, MODEL) == 1


def test_tasks_run_when_each_owner_reports_it_for_its_own_generation() -> None:
    view = view_of(MODEL)
    view.own.written = ProcessorRow("here", "1", tasks={name: report(name, 7) for name in ("a-0", "a-1")})
    view.others.members = {"there": ProcessorRow("there", "2", tasks={"a-2": report("a-2", 4)})}
    assert not all_run(view, MODEL)
    view.others.members = {"there": ProcessorRow("there", "2", tasks={"a-2": report("a-2", 5)})}
    assert all_run(view, MODEL)


def test_calls_are_counted_by_operation_and_outcome() -> None:
    meters = Meters()
    calls: list[tuple[StorageAction, Answer, float]] = [
        (ReadControl(), NotModified(), 0.01),
        (ReadControl(), NotModified(), 0.01),
        (MergeOwnRow(ProcessorRow("here", "1"), "e"), "f", 0.25),
        (RenewLease("l"), Trouble.UNAVAILABLE, 3.0),
        (RenewLease("l"), None, 0.01),
    ]
    for action, answer, seconds in calls:
        meters.observer.called(action, answer, seconds)
    points = meters.points()
    assert points["storage.calls"] == [
        ({"operation": "ReadControl", "outcome": "unchanged"}, 2),
        ({"operation": "MergeOwnRow", "outcome": "done"}, 1),
        ({"operation": "RenewLease", "outcome": "unavailable"}, 1),
        ({"operation": "RenewLease", "outcome": "done"}, 1),
    ]
    assert points["heartbeat.latency"] == [({"outcome": "done"}, 0.25)]
    assert points["lease.renewals_missed"] == [({}, 1)]


def test_a_take_over_a_version_its_barrier_and_its_rebalance_are_counted_once() -> None:
    meters = Meters()
    observer = meters.observer
    observer.turned(view_of(replace(MODEL, leader=THERE, epoch=1, version=5, revision=6)))
    view = view_of(replace(MODEL, leader=HERE, version=5), now=101.0)
    view.leadership = Leadership(Lease("l", 100.9), 0.0, 0.0, row_sent_at=104.5, free_from=0.0)
    observer.turned(view)
    dead = replace(
        MODEL, tasks={**MODEL.tasks, "a-2": owned(HERE, 8)}, version=8, barrier=Barrier(8, BarrierState.START)
    )
    view.own.control, view.turn_at, view.as_leader.barrier_since = dead, 102.0, 102.0
    observer.turned(view)
    view.own.control, view.turn_at = replace(dead, barrier=Barrier(8, BarrierState.END)), 102.5
    observer.turned(view)
    view.own.written = ProcessorRow(
        "here",
        "1",
        state=ProcessorState.ACTIVE,
        tasks={name: report(name, dead.tasks[name].owner.generation) for name in dead.tasks},
    )
    for view.turn_at in (104.0, 105.0, 106.0):
        view.own.accepted_at = view.turn_at
        observer.turned(view)
    points = meters.points()
    assert points["failovers"] == [({}, 1)]
    assert points["moves"] == [({}, 1)]
    assert points["barrier.duration"] == [({"outcome": "END"}, 0.5)]
    assert points["rebalance.duration"] == [({}, 2.0)]
    assert (points["leader"], points["epoch"], points["version"]) == ([({}, 1)], [({}, 2)], [({}, 8)])
    assert (points["tasks.owned"], points["tasks.running"], points["tasks.not_running"]) == (
        [({}, 3)],
        [({}, 0)],
        [({}, 3)],
    )


def test_a_pause_without_accepted_heartbeats_counts_as_one_self_stop() -> None:
    meters = Meters()
    for silent_s in (1.0, 5.9, 6.1, 7.0, 0.1, 6.5):
        view = view_of(MODEL, now=100.0 + silent_s)
        view.own.accepted_at = 100.0
        meters.observer.turned(view)
        meters.observer._looked_at = -1e9
    assert meters.points()["self_stops"] == [({}, 2)]


def test_an_account_that_refuses_us_is_shown_for_as_long_as_it_does() -> None:
    meters = Meters()
    view = view_of(MODEL, now=130.0)
    heartbeat = MergeOwnRow(ProcessorRow("here", "1", beat=4), "e")
    learn(view, heartbeat, Denied("the key was rotated"), sent_at=100.0, now=100.1)
    learn(view, heartbeat, Denied("the key was rotated"), sent_at=129.0, now=129.1)
    meters.observer.turned(view)
    assert meters.points()["access.denied"] == [({}, 30.0)]
    learn(view, heartbeat, "f", sent_at=130.0, now=130.1)
    view.turn_at = 131.0
    meters.observer.turned(view)
    assert meters.points()["access.denied"] == [({}, 0.0)]


def test_what_a_clean_up_could_not_delete_is_shown_by_the_leader() -> None:
    meters, view = Meters(), view_of(replace(MODEL, uncleaned=("q", "r"), kept={"q": 3, "r": 4}))
    meters.observer.turned(view)
    assert meters.points()["clean_up.kept"] == [({}, 0.0)]
    view.leadership, view.turn_at = Leadership(Lease("l", 90.0), 0.0, 0.0), 101.0
    meters.observer.turned(view)
    assert meters.points()["clean_up.kept"] == [({}, 7.0)]


def test_a_processor_warns_once_when_the_account_is_slower_than_its_timings_allow(
    caplog: pytest.LogCaptureFixture,
) -> None:
    observer = Meters().observer
    observer.called(MergeOwnRow(ProcessorRow("here", "1"), "e"), "f", 1.1)
    for now in (100.0, 101.0):
        observer.turned(view_of(MODEL, now))
    assert [record.getMessage() for record in caplog.records] == [
        (
            "job.coordinator.heartbeat.timeout is 8 s, and three heartbeats of 2 s with two calls as slow as 1.1 s "
            "need 8.2 s. A processor that is alive may be considered dead. Raise the timeout, or choose a slower "
            "job.coordinator.profile."
        )
    ]


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_tolerates_an_account_of_ordinary_speed(profile: str) -> None:
    assert doubtful_timing(PROFILES[profile], slow_call_s=0.25) is None


def test_a_timeout_of_three_heartbeats_leaves_no_room_for_slow_calls() -> None:
    assert doubtful_timing(Timing(heartbeat_s=2.0, heartbeat_timeout_s=6.0), slow_call_s=0.25) is not None


LATE = """
import urllib.request
from samza_azure.group.timing import PROFILES
from samza_azure.group.view import OwnIncarnation, Settings, View
from samza_azure.metrics.observer import Observer
from samza_azure.metrics.prometheus import serve
observer = Observer("here")
port = serve(0)
observer.turned(View(Settings("here", PROFILES["default"]), OwnIncarnation("1")))
print(urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode())
"""


def test_an_exporter_that_is_set_up_after_the_observer_has_the_counters_too() -> None:
    """As `run` does it. A live Prometheus found none of their series."""
    [line] = [each for each in run(LATE)[1].splitlines() if each.startswith("samza_azure_failovers_total{")]
    assert 'processor="here"' in line and line.endswith(" 0.0")


SERVING = """
import urllib.request
from samza_azure.metrics.observer import Observer
from samza_azure.metrics.prometheus import serve
from samza_azure.group.actions import ReadControl
port = serve({port})
Observer("here").called(ReadControl(), None, 0.1)
print(port)
print(urllib.request.urlopen(f"http://127.0.0.1:{{port}}/metrics").read().decode())
"""


def run(program: str) -> tuple[int, str, str]:
    environment = {**os.environ, "no_proxy": "127.0.0.1"}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stdout, ended.stderr


def test_prometheus_is_served_what_was_recorded() -> None:
    _, said, _ = run(SERVING.format(port=0))
    line = next(line for line in said.splitlines() if line.startswith("samza_azure_storage_calls_total{"))
    assert 'operation="ReadControl"' in line and 'outcome="done"' in line and 'processor="here"' in line
    assert line.endswith(" 1.0")


def test_a_second_processor_of_the_machine_serves_on_the_next_free_port() -> None:
    with socket.socket() as first:
        first.bind(("", 0))
        first.listen()
        taken = first.getsockname()[1]
        _, said, _ = run(SERVING.format(port=taken))
    assert int(said.splitlines()[0]) > taken


def test_without_the_packages_the_key_is_a_mistake_that_names_the_command() -> None:
    program = """
import sys
sys.modules["prometheus_client"] = None
sys.modules["opentelemetry.exporter.prometheus"] = None
from samza_azure.errors import ConfigError
from samza_azure.metrics.prometheus import serve
try:
    serve(0)
except ConfigError as error:
    print(error)
"""
    _, said, _ = run(program)
    assert "metrics.prometheus.port is set" in said and "pip install 'opentelemetry-sdk>=" in said


def test_metrics_are_sent_to_application_insights_where_its_variable_is_set() -> None:
    """By the exporter itself, to a listener of this machine: a name as the alerts of observe.bicep ask for it."""
    program = """
import gzip, json, os, threading
from http.server import BaseHTTPRequestHandler, HTTPServer
got = []
class Takes(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        got.append((self.path, gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body))
        said = json.dumps({"itemsReceived": 1, "itemsAccepted": 1, "errors": []}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
    def log_message(self, *_): pass
server = HTTPServer(("127.0.0.1", 0), Takes)
threading.Thread(target=server.serve_forever, daemon=True).start()
key = "00000000-0000-0000-0000-000000000000"
os.environ["APPLICATIONINSIGHTS_CONNECTION_STRING"] = (
    f"InstrumentationKey={key};IngestionEndpoint=http://127.0.0.1:{server.server_port}/"
)
from samza_azure.metrics.prometheus import on_scrape
scraped = on_scrape()
from opentelemetry import metrics
metrics.get_meter("samza_azure").create_gauge("samza_azure.leader").set(1)
metrics.get_meter_provider().force_flush()
text = b"".join(body for _, body in got).decode()
print('"name":"samza_azure.leader"' in text.replace('": "', '":"'), b"samza_azure_leader" in scraped()[0])
"""
    assert run(program)[1].splitlines()[-1] == "True True"


def test_without_the_exporter_the_variable_is_warned_of_and_prometheus_goes_on() -> None:
    program = """
import logging, os, sys
logging.basicConfig(stream=sys.stdout)
sys.modules["azure.monitor.opentelemetry.exporter"] = None
os.environ["APPLICATIONINSIGHTS_CONNECTION_STRING"] = "InstrumentationKey=00000000-0000-0000-0000-000000000000"
from samza_azure.metrics.prometheus import on_scrape
print(on_scrape()() is not None)
"""
    said = run(program)[1]
    assert "no metrics are sent to Azure Monitor" in said and said.splitlines()[-1] == "True"


def test_an_sdk_that_sends_elsewhere_is_not_silently_replaced() -> None:
    program = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
metrics.set_meter_provider(MeterProvider())
from samza_azure.errors import ConfigError
from samza_azure.metrics.prometheus import serve
try:
    serve(0)
except ConfigError as error:
    print(error)
"""
    assert "already sends this process's metrics somewhere else" in run(program)[1]


def leading(control: Control, **others: ProcessorRow) -> View:
    view = view_of(control)
    view.leadership = Leadership(Lease("l", 90.0), 0.0, 0.0)
    view.others.members = others
    return view


def test_a_killed_owners_tasks_are_missing_from_the_group_as_soon_as_it_is_dead() -> None:
    there = ProcessorRow("there", "2", state=ProcessorState.ACTIVE, tasks={"a-2": report("a-2", 5)})
    view = leading(MODEL, there=there)
    view.own.written = ProcessorRow("here", "1", tasks={name: report(name, 7) for name in ("a-0", "a-1")})
    assert group_facts(view) == GroupFacts(members=2, tasks=3, running=3)
    view.others.ages = {"there": Age("e", 0.75 * view.timing.heartbeat_timeout_s, 5, 100.0)}
    assert group_facts(view) == GroupFacts(members=2, tasks=3, running=2), "it has paused itself, or is dead"
    view.others.members, view.others.ages = {"there": replace(there, state=ProcessorState.DEAD)}, {}
    assert group_facts(view) == GroupFacts(members=1, tasks=3, running=2)


def test_a_failed_run_is_reported_for_a_quarter_of_an_hour_also_after_a_restart() -> None:
    """The processors of a failed run end within a second of it, and no scrape meets them."""
    events = (Event(60_000, "failed", "The run failed in a-0: a bug"), Event(70_000, "leader", "here leads."))
    view = leading(replace(MODEL, events=events))
    for wall_ms, failed in ((60_000, True), (60_000 + 15 * 60_000 - 1, True), (60_000 + 15 * 60_000, False)):
        view.wall_ms = wall_ms
        assert group_facts(view).failed is failed
    view.own.control = replace(MODEL, phase=RunPhase.FAILED)
    assert group_facts(view).failed, "in a blob that has no room for events too"


def test_a_drained_fleet_that_stands_by_misses_no_task() -> None:
    """The blob still names the owners of the run; those lives have ended, and others wait for the upgrade."""
    view = leading(
        replace(MODEL, phase=RunPhase.DRAINED), there=ProcessorRow("there", "3", state=ProcessorState.ACTIVE)
    )
    assert group_facts(view) == GroupFacts(members=1, tasks=3, running=3, drain_step=3)


def test_a_deposed_leader_resets_the_metrics_of_the_group() -> None:
    meters = Meters()
    meters.observer.turned(leading(MODEL))
    assert meters.points()["group.tasks"] == [({}, 3)]
    meters.observer.turned(view_of(replace(MODEL, leader=THERE), now=100.01))
    meters.observer.turned(view_of(replace(MODEL, leader=THERE, epoch=3), now=100.02))
    assert meters.points()["group.tasks"] == [({}, 0)]


def test_what_a_processor_that_will_go_has_not_handed_over_is_counted_by_reason() -> None:
    """One task has another owner and still runs here, one nobody else has yet, one has been released and nobody took
    it."""
    meters, view = Meters(), view_of(MODEL)
    for task in ("a-0", "a-1"):
        view.work.tasks[task] = LocalTask(7, 1, 95.0, report(task, 7))

    def count() -> tuple[float, dict[str, float]]:
        meters.observer.turned(view)
        found = meters.points()
        [(_, state)] = found["decommission.state"]
        return state, {told["reason"]: value for told, value in found["decommission.tasks"]}

    nothing = dict.fromkeys(map(str, Left), 0)
    assert count() == (0, nothing)
    heard_notice(view, PORT, Notice("Preempt"))
    goes_on(view, 101.0)
    assert count() == (1, {**nothing, Left.NOT_TAKEN: 2})
    tasks = {"a-0": Assignment(Owner("there", "2", 9)), "a-1": Assignment(None), "a-2": MODEL.tasks["a-2"]}
    view.own.control = replace(MODEL, version=9, tasks=tasks)
    heard_task(view, report("a-1", 7, Phase.RELEASED), 102.0)
    goes_on(view, 102.0)
    assert count() == (1, {**nothing, Left.RUNS: 1, Left.NOBODY: 1})
    view.own.control = replace(MODEL, version=10, tasks={**tasks, "a-1": Assignment(Owner("there", "2", 10))})
    heard_task(view, report("a-0", 7, Phase.RELEASED), 103.0)
    goes_on(view, 103.0)
    assert count() == (2, nothing)
    heard_withdrawn(view, PORT)
    goes_on(view, 104.0)
    assert count() == (0, nothing)


def goes_on(view: View, now: float) -> None:
    turn(view, now, random=0.5, fresh_id="fresh", wall_ms=1)


def test_the_documentation_names_each_reason_for_which_tasks_are_counted() -> None:
    [line] = [each for each in METRICS.read_text().splitlines() if each.startswith("| `decommission.tasks`")]
    assert set(re.findall('"([^"]+)"', line)) == set(Left)


def test_counters_are_there_before_anything_has_happened() -> None:
    meters = Meters()
    meters.observer.turned(view_of(None))
    points = meters.points()
    for name in ("failovers", "moves", "self_stops", "lease.renewals_missed", "container.restarts"):
        assert points[name] == [({}, 0)]
    failed = {(each["operation"], each["outcome"]): count for each, count in points["storage.calls"]}
    assert failed["WriteControl", "unsettled"] == failed["ReadControl", "unavailable"] == 0


def test_the_progress_of_tasks_is_counted_once_by_stage() -> None:
    meters = Meters()
    view = view_of(MODEL)
    view.wall_ms = 60_000
    first = Progress(batches=2, rows=100, rows_out=10, size=4_000, seconds=1.0, watermark_ms=30_000, behind={"in": 800})
    view.work.tasks["a-0"] = LocalTask(7, 1, 95.0)
    hear(meters, view, replace(report("a-0", 7), progress=first, late=3))
    points = meters.points()
    assert points["stream.backlog"] == [({"stream": "in", "stage": "a"}, 800)]
    assert points["stream.backlog.rows"] == [({"stream": "in", "stage": "a"}, 20)], "a row had 40 bytes so far"
    second = replace(first, batches=3, rows=150, seconds=2.0, watermark_ms=50_000, behind={}, cpu_s={"plan": 0.5})
    view.turn_at = 102.0
    hear(meters, view, replace(report("a-0", 7), progress=second, late=3))
    points = meters.points()
    assert points["task.rows"] == [
        ({"stage": "a", "direction": "in"}, 150),
        ({"stage": "a", "direction": "out"}, 10),
        ({"stage": "a", "direction": "late"}, 3),
    ]
    assert points["task.bytes"] == [({"stage": "a"}, 4_000)]
    assert points["task.batch.duration"] == [({"stage": "a"}, 2.0)]
    assert points["task.batch.cpu"] == [({"stage": "a", "phase": "plan"}, 0.5)]
    assert "task.batch.time" not in points, "only queries have phases"
    assert points["task.watermark.age"] == [({"stage": "a"}, 10.0)]
    gone = {"stream": "in", "stage": "a"}
    assert points["stream.backlog"] == [(gone, 0)], "a gauge would keep its last value forever"
    assert points["stream.backlog.rows"] == [(gone, 0)]


def test_what_is_left_outside_is_shown_by_partition() -> None:
    meters = Meters()
    view = view_of(MODEL)
    view.work.tasks["a-0"] = LocalTask(7, 1, 95.0)
    left = Progress(rows=10, size=100, behind={"in": 800}, lag_rows={"in/3": 7}, lag_s={"in/3": 2.5})
    hear(meters, view, replace(report("a-0", 7), progress=left))
    points, where = meters.points(), {"stream": "in", "partition": "3"}
    assert (points["partition.lag.rows"], points["partition.lag"]) == ([(where, 7.0)], [(where, 2.5)])
    assert points["stream.backlog.rows"] == [({"stream": "in", "stage": "a"}, 7)], "they are known, not estimated"


def test_tasks_that_wait_for_their_readers_or_warn_are_counted_as_long_as_they_do() -> None:
    meters, view, where = Meters(), view_of(MODEL), {"stage": "in-source"}

    def wait(*tasks: bool) -> None:
        for number, waits in enumerate(tasks):
            progress = Progress(waits_for_readers=waits, warning="Look there." if waits else "")
            said = replace(report(f"in-source-{number}", 7), progress=progress)
            view.work.tasks[said.task] = LocalTask(7, 1, 95.0, said)
        view.turn_at = (view.turn_at or 0.0) + 2.0
        meters.observer.turned(view)

    wait(True, True, False)
    for name in ("waiting_for_readers", "warned"):
        assert meters.points()[f"tasks.{name}"] == [(where, 2)]
    wait(False, False, False)
    for name in ("waiting_for_readers", "warned"):
        assert meters.points()[f"tasks.{name}"] == [(where, 0)]


def test_what_a_container_uses_is_shown() -> None:
    meters = Meters()
    meters.observer.container_uses(Use(1.5, 7 << 20, 1 << 30, 3 << 20, 9 << 20))
    points = meters.points()
    names = ("container.cpu", "container.memory", "container.heap", "container.heap.limit")
    assert [points[name][0][1] for name in names] == [1.5, 7 << 20, 3 << 20, 9 << 20]


def test_the_last_batch_of_a_task_that_has_left_the_view_is_counted_too() -> None:
    """Spark's figures of a batch come after its append, up to some seconds after the release. The next control blob,
    which tells that all have adopted the version, removes a released task from the view; and a task that came and went
    between two looks was never seen there."""
    meters, view = Meters(), view_of(MODEL)
    progress = Progress(batches=2, rows=100, rows_out=10, size=4_000, seconds=1.0)
    running = replace(report("a-0", 7), progress=progress)
    view.work.tasks["a-0"] = LocalTask(7, 1, 95.0)
    hear(meters, view, running)
    hear(meters, view, replace(running, phase=Phase.RELEASED))
    view.work.tasks = {}
    last = replace(progress, batches=3, rows=150, rows_out=15, seconds=2.0)
    hear(meters, view, replace(running, phase=Phase.RELEASED, progress=last, late=4))
    hear(meters, view, replace(running, task="b-0", progress=progress))
    view.turn_at = 110.0
    meters.observer.turned(view)
    points = meters.points()
    assert points["task.batch.duration"] == [({"stage": "a"}, 2.0), ({"stage": "b"}, 1.0)]
    assert points["task.rows"] == [
        ({"stage": "a", "direction": "in"}, 150),
        ({"stage": "a", "direction": "out"}, 15),
        ({"stage": "a", "direction": "late"}, 4),
        ({"stage": "b", "direction": "in"}, 100),
        ({"stage": "b", "direction": "out"}, 10),
        ({"stage": "b", "direction": "late"}, 0),
    ]


def test_a_report_that_is_repeated_or_late_counts_nothing_and_a_new_attempt_begins_at_nothing() -> None:
    meters, view = Meters(), view_of(MODEL)
    first = replace(report("a-0", 7), progress=Progress(batches=2, rows=100, seconds=1.0))
    second = replace(first, attempt=2, progress=Progress(batches=1, rows=7, seconds=1.0))
    view.work.tasks["a-0"] = LocalTask(7, 2, 95.0)
    for each in (first, first, second, first, second):
        hear(meters, view, each)
    meters.observer.turned(view)
    assert meters.points()["task.rows"][0] == ({"stage": "a", "direction": "in"}, 107)


def hear(meters: Meters, view: View, said: TaskReport) -> None:
    """A report comes in, at the coordinator's view and at its observer."""
    heard_task(view, said, 101.0)
    meters.observer.reported(said)
    meters.observer.turned(view)


def test_a_drain_shows_since_when_it_is_at_its_step_and_the_rows_to_do() -> None:
    drain = DrainNotification(
        "u", "r", step=DrainStep.FLUSH, ends={"in/0": (0, 9_000)}, history=("FREEZE", "FLUSH"), at_ms=(1_000, 60_000)
    )
    model = replace(MODEL, phase=RunPhase.DRAINING, drain=drain)
    meters, view = Meters(), leading(model)
    view.wall_ms = 72_500
    done = Progress(batches=1, rows=100, size=4_000)
    read = replace(report("a-0", 7), progress=done, read={"in/0": (0, 5_000), "in/1": (0, 7)})
    view.work.tasks["a-0"] = LocalTask(7, 1, 95.0, read)
    meters.observer.turned(view)
    points = meters.points()
    assert points["drain.step"] == [({}, 2)]
    assert points["drain.age"] == [({}, 12.5)]
    assert points["drain.rows"] == [({"stage": "a"}, 100)], "4,000 bytes, of which 40 made a row so far"
    view.own.control = replace(model, phase=RunPhase.DRAINED)
    view.work.tasks["a-0"].report = replace(read, read={"in/0": (0, 9_000)})
    view.turn_at = 102.0
    meters.observer.turned(view)
    points = meters.points()
    assert (points["drain.age"], points["drain.rows"]) == ([({}, 0.0)], [({"stage": "a"}, 0)])


def test_rows_to_do_are_not_known_before_the_ends_are() -> None:
    read = replace(report("a-0", 7), read={"in/0": (0, 5_000)})
    frozen = replace(MODEL, drain=DrainNotification("u", "r", step=DrainStep.FREEZE))
    assert rows_to_drain(None, read, 1 << 20) is None
    assert rows_to_drain(MODEL, read, 1 << 20) is None
    assert rows_to_drain(frozen, read, 1 << 20) is None


def test_each_step_of_a_drain_is_measured_once() -> None:
    asked = DrainNotification("u", "r", step=DrainStep.FREEZE, history=("FREEZE",), asked_ms=1_000, at_ms=(1_500,))
    flush = replace(asked, step=DrainStep.FLUSH, history=("FREEZE", "FLUSH"), at_ms=(1_500, 3_500))
    assert steps_taken(None, asked) == [("FREEZE", 0.5)]
    assert steps_taken(asked, asked) == []
    assert steps_taken(asked, flush) == [("FLUSH", 2.0)]
    assert steps_taken(replace(asked, uuid="another"), flush) == [("FREEZE", 0.5), ("FLUSH", 2.0)]
    assert steps_taken(flush, None) == []
    assert steps_taken(None, replace(flush, at_ms=(0, 3_500))) == [], "an earlier release told no times"
    meters, model = Meters(), replace(MODEL, phase=RunPhase.DRAINING, drain=asked)
    view = leading(MODEL)
    meters.observer.turned(view)
    view.own.control, view.turn_at = model, 102.0
    meters.observer.turned(view)
    assert meters.points()["drain.duration"] == [({"step": "FREEZE"}, 0.5)]


def test_rows_of_other_stages_count_from_the_freeze_on() -> None:
    """The metric counted sources alone, so a stage behind a shuffle had nothing to do, however much it had."""
    drain = DrainNotification("u", "r", step=DrainStep.FREEZE, history=("FREEZE",))
    plain = replace(MODEL, sources={"in": 2})
    frozen = replace(plain, drain=drain)
    done = Progress(batches=1, rows=100, size=4_000, behind={"by-key": 2_000, "in": 8_000})
    read = replace(report("a-0", 7), progress=done, read={"in/0": (0, 5_000)})
    flush = replace(frozen, drain=replace(drain, step=DrainStep.FLUSH, ends={"in/0": (0, 9_000)}))
    assert [rows_to_drain(each, read, 1 << 20) for each in (plain, frozen, flush)] == [None, 50, 150]
    assert rows_to_drain(frozen, replace(read, drain=DrainPhase.COMMITTED), 1 << 20) == 0
