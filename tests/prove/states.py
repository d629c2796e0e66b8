"""What `status`, its exit code, the page, the metrics and the alerts say of a fleet that is not well, and how soon.

One fleet of three processors with Spark, in the profile "default", on Azurite. Each state is brought about for real,
and ended again; meanwhile everything is asked about once a second. From the tenth second on no answer may say anything
else, nor may any after the first one that said it, until the fleet has healed itself. `python tests/prove/states.py`
prints a line for each state and takes about eleven minutes; names of states play only those, in their order.
"""

import io
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from infra.check.prometheus import install  # noqa: E402
from samza_azure.commands.connect import connect  # noqa: E402
from samza_azure.commands.show import status_view  # noqa: E402
from samza_azure.commands.status import Onlooker  # noqa: E402
from samza_azure.errors import StorageUnavailable  # noqa: E402
from tests.end_to_end.real_processes import JobOnAzurite, daily, daily_rows, with_patience  # noqa: E402
from tests.prove.alerts import Prometheus  # noqa: E402

#: From here on everything has to say it; and how long a state lasts that does not heal by itself.
SOON_S, LASTS_S = 10.0, 30.0
#: How long a fleet may take to be well, in seconds.
PATIENCE_S = 240.0
NAMES = ("p0", "p1", "p2")
#: The profile as it is, and a C1 compiler: a JVM that lives for a minute spends more on the second than that saves.
SETTINGS = '[processor]\nport = {port}\n[spark]\ndriver.extraJavaOptions = "-XX:TieredStopAtLevel=1"\n'
#: A file of this name beside the pipeline makes its function fail, or wait, at the rows of the carrier of that name.
FAILS, HANGS = "FAILS", "HANGS"
FUNCTION = f"""
import os
import time


@F.udf("boolean")
def is_fine(carrier: str) -> bool:
    marked = os.path.join({{folder!r}}, carrier)
    if carrier == "{FAILS}" and os.path.exists(marked):
        raise ValueError("this row cannot be processed")
    while carrier == "{HANGS}" and os.path.exists(marked):
        open(marked + ".reached", "w").close()
        time.sleep(0.1)
    return True


@app.stage("flights\""""
#: The alerts of Azure Monitor on our metrics.
OBSERVED = (ROOT / "infra" / "azure" / "observe.bicep").read_text()
AZURES = dict(re.findall(r"^    name: '([\w-]+)'\n(?:    .*\n)*?    query: '([^']*)'", OBSERVED, re.MULTILINE))
Metrics: TypeAlias = dict[str, dict[str, list[float]]]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: when it was asked for and when it came, in seconds since the state began."""

    asked_s: float
    came_s: float
    what: Any


@dataclass(slots=True)
class State:
    """A state: how it is brought about and ended, and what the answers in each column are to say."""

    name: str
    says: dict[str, Callable[[Any], bool]]
    heals: bool = False
    alerts: set[str] = field(default_factory=set)  # of Prometheus: pending or firing, so their condition holds
    azures: set[str] = field(default_factory=set)  # the same of Azure Monitor
    afterwards: set[str] = field(default_factory=set)  # alerts of Prometheus once it is well again


# What is asked.


def status(world: JobOnAzurite) -> tuple[int, str]:
    """Exit code and text of the command, in a line."""
    ended = world.command("status")
    return ended.returncode, " ".join((ended.stdout + ended.stderr).split())


def looked(world: JobOnAzurite) -> dict[str, Any]:
    """What the command finds, without the second that its start takes, and the text that it prints."""
    config = world.fleet.config
    try:
        shown = Onlooker(config, connect(config, create=False)).sure()
    except StorageUnavailable as error:
        return {"verdict": {"exit_code": error.exit_code, "text": str(error), "state": ""}, "behind": {}, "said": ""}
    file = io.StringIO()
    Console(file=file, width=200).print(status_view(shown))
    return {**shown, "said": " ".join(file.getvalue().split())}


def get(url: str) -> str | None:
    """A body; None if nothing answers."""
    try:
        with urllib.request.urlopen(url, timeout=7) as answer:
            return str(answer.read().decode())
    except OSError:
        return None


def scraped(ports: Sequence[int]) -> Metrics:
    """The values of each metric of each processor that answers."""
    found: Metrics = {}
    for port in ports:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=1) as answer:
            for metric, name, value in re.findall(
                r'^samza_azure_(\w+)\{.*processor="(\w+)".*\} (\S+)$', answer.read().decode(), re.MULTILINE
            ):
                found.setdefault(name, {}).setdefault(metric, []).append(float(value))
    return found


def reasons(ports: Sequence[int]) -> list[str]:
    """What each processor that answers says at /readyz: "ready", or why not."""
    found = []
    for port in ports:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1):
                found.append("ready")
        except urllib.error.HTTPError as error:
            found.append(json.load(error)["reason"])
        except OSError:
            continue
    return found


def azures(metrics: Metrics) -> set[str]:
    """Which alerts of Azure Monitor would see what they look for in one collection of these metrics."""
    holds = {
        "no-leader": most(metrics, "leader") < 1,
        "tasks-not-running": most(metrics, "group_tasks_running") < most(metrics, "group_tasks"),
        "processors-missing": most(metrics, "group_members") < len(NAMES),
    }
    for name, query in AZURES.items():
        if found := re.search(r'Name == "samza_azure\.([\w.]+)" and Sum (>=?) (\d+)$', query):
            metric, how, bound = found[1].replace(".", "_"), found[2], float(found[3])
            value = max(most(metrics, metric), most(metrics, f"{metric}_seconds"))
            holds.setdefault(name, value >= bound if how == ">=" else value > bound)
    return {name for name, is_so in holds.items() if is_so}


def most(metrics: Metrics, name: str) -> float:
    """The largest value of a metric over all processors; -1 if there is none."""
    return max((value for each in metrics.values() for value in each.get(name, [])), default=-1.0)


def first_words(text: str) -> str:
    """The beginning of a sentence: its end may have a figure."""
    return " ".join(text.split()[:4])


def hangs(name: str, text: str) -> bool:
    """Whether a text says that the container of a processor does."""
    return f"The container of {name} has ended or hangs." in text or f"{name}, whose container has ended" in text


class Onlookers:
    """Ask about the fleet again and again, each on a thread of its own."""

    def __init__(self, world: JobOnAzurite, page: str, prometheus: Prometheus, ports: Sequence[int]) -> None:
        self._asks: dict[str, Callable[[], Any]] = {
            "status": lambda: looked(world),
            "page": lambda: json.loads(get(f"{page}state.json") or "{}"),
            "metrics": lambda: scraped(ports),
            "readyz": lambda: reasons(ports),
            "alerts": lambda: set(prometheus.alerts()),
        }
        self.page = page
        self.answers: dict[str, list[Answer]] = {}
        self.seen = self.answers  # of the last state, until the next one
        self._begun = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keep what is answered from now on."""
        self.answers, self._begun = {name: [] for name in self._asks}, time.monotonic()
        over = threading.Event()
        threads = [threading.Thread(target=self._go_on, args=(name, over)) for name in self._asks]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            over.set()
            for each in threads:
                each.join()

    def begins(self) -> None:
        """The state begins now: earlier answers do not count, nor do those on their way."""
        self._begun = time.monotonic()
        for found in self.answers.values():
            found.clear()

    def _go_on(self, name: str, over: threading.Event) -> None:
        while not over.is_set():
            asked, begun = time.monotonic(), self._begun
            what = self._asks[name]()
            if begun == self._begun:
                self.answers[name].append(Answer(asked - begun, time.monotonic() - begun, what))
            over.wait(max(0.0, asked + 1.0 - time.monotonic()))

    def until(self, holds: dict[str, Callable[[Any], bool]], within_s: float) -> dict[str, float]:
        """Wait until the last answers in all columns are as wished; when each of them was so, for the last time on."""
        deadline = time.monotonic() + within_s
        while True:
            last = {name: self.answers[name][-1:] for name in holds}
            if all(found and holds[name](found[0].what) for name, found in last.items()):
                return {name: since(self.answers[name], holds[name]) for name in holds}
            if time.monotonic() > deadline:
                raise SystemExit(f"Not within {within_s:g} s: {last}")
            time.sleep(0.2)  # the pace of asking


def since(answers: list[Answer], holds: Callable[[Any], bool]) -> float:
    """When the answers began to be as wished and stayed so."""
    place = len(answers)
    while place and holds(answers[place - 1].what):
        place -= 1
    return answers[place].came_s


WELL: dict[str, Callable[[Any], bool]] = {
    "status": lambda found: found["verdict"]["exit_code"] == 0 and "RUNNING: Run" in found["said"],
    "page": lambda found: found["verdict"]["state"] == "running",
    "metrics": lambda found: (
        len(found) == most(found, "group_members")
        and sum(sum(each["leader"]) for each in found.values()) == 1
        and most(found, "group_tasks_running") == most(found, "group_tasks") > 0
    ),
}


def in_short(column: str, what: Any) -> str:
    """What is worth printing of a wrong answer."""
    if column == "metrics":
        return ", ".join(f"{name} {most(what, name):g}" for name in ("leader", "group_tasks", "group_tasks_running"))
    if column not in ("status", "page") or "tasks" not in what:
        return str(what)[:300]
    return f"{what['verdict']} {[(each['name'], each['owner'], each['phase'], each['why']) for each in what['tasks']]}"


def mistakes(state: State, answers: dict[str, list[Answer]]) -> Iterator[str]:
    """What was said too late, or besides. A fleet that heals itself is well once: `status`, which names the processor,
    does not say it again, and no other column is well before `status` has said it for the last time. Later a task may
    move to the new container, as after a join, and the metrics show a moment without it.
    """
    healed_s = max((each.asked_s for each in answers["status"] if state.says["status"](each.what)), default=0.0)
    for column, says in state.says.items():
        said = [says(each.what) for each in answers[column]]
        first = said.index(True) if True in said else len(said)
        if first == len(said):
            yield f"{column} never said it"
        is_well = [column in WELL and WELL[column](each.what) for each in answers[column]]
        for place, each in enumerate(answers[column]):
            if place > first and state.heals:
                later = zip(said[place:], answers[column][place:], strict=True)
                is_wrong = is_well[place] and any(again and at.asked_s <= healed_s for again, at in later)
            else:
                is_wrong = not said[place] and (place > first or each.asked_s >= SOON_S)
            if is_wrong:
                yield f"{column} after {each.asked_s:.1f} s: {in_short(column, each.what)}"


def shown(state: State, answers: dict[str, list[Answer]]) -> str:
    """After how many seconds each column said it, and the exit codes in their order."""
    times = []
    for column, says in state.says.items():
        first = next((each for each in answers[column] if says(each.what)), None)
        times.append(f"{column} {f'{first.came_s:.1f} s' if first is not None else '-'}")
    codes = dict.fromkeys(each.what["verdict"]["exit_code"] for each in answers["status"])
    fired = set[str]().union(*(each.what for each in answers["alerts"]))
    prometheus = ", ".join(sorted(each.removeprefix("SamzaAzure") for each in fired)) or "none"
    azure = ", ".join(sorted(set[str]().union(*(azures(each.what) for each in answers["metrics"])))) or "none"
    return f"{', '.join(times)} | exit codes {', '.join(map(str, codes))} | {prometheus} | {azure}"


class Play:
    """The fleet, what looks at it, and the states."""

    def __init__(self, world: JobOnAzurite, folder: Path, ports: Sequence[int]) -> None:
        self.world, self.folder, self.ports = world, folder, ports
        self.rows: list[pa.Table] = []
        self.wrong: list[str] = []

    def begin(self) -> None:
        """Start everything, and wait until it is well."""
        self.produce("AA", 200)
        self.world.start(*NAMES)
        self.prometheus = Prometheus(self.folder, {str(port): port for port in self.ports}, "flights")
        command = [sys.executable, "-m", "samza_azure", "ui", str(self.world.fleet.job), "--port", "0"]
        self.ui = subprocess.Popen(command, env=self.world.fleet.environment, stderr=subprocess.PIPE, text=True)
        assert self.ui.stderr is not None
        found = re.search(r"http://\S+/", self.ui.stderr.readline())
        assert found is not None
        self.onlookers = Onlookers(self.world, found[0], self.prometheus, self.ports)

    def end(self) -> None:
        """End what this has started itself."""
        for process in (self.ui, self.prometheus.process):
            process.kill()
            process.wait()

    def produce(self, carrier: str, count: int) -> None:
        """Rows of one carrier, over all partitions of the source."""
        at, begun = len(self.rows), datetime(2024, 1, 1, tzinfo=UTC)
        table = pa.table(
            {
                "carrier": [carrier] * count,
                "ts": pa.array(
                    [begun + timedelta(hours=at, seconds=n) for n in range(count)], pa.timestamp("us", "UTC")
                ),
                "dep_delay": [float(n) for n in range(count)],
                "dest": [f"d{n}" for n in range(count)],
            }
        )
        self.rows.append(table)
        pq.write_table(table, self.folder / f"rows-{at}.parquet")
        ended = self.world.command("produce", "flights", str(self.folder / f"rows-{at}.parquet"), "--key", "dest")
        assert ended.returncode == 0, ended.stderr

    def play(
        self,
        state: State,
        bring: Callable[[], None],
        back: Callable[[], None],
        lasts_s: float = LASTS_S,
    ) -> None:
        """From a fleet that is well into a state and back. Print what was said meanwhile, and keep what was wrong."""
        looks = self.onlookers
        with looks.watching():
            looks.until(WELL, PATIENCE_S)
            bring()
            looks.begins()
            if state.heals:
                while time.monotonic() < looks._begun + LASTS_S:
                    time.sleep(0.2)  # how long it may take to be said
                looks.until(WELL, PATIENCE_S)
            else:
                while time.monotonic() < looks._begun + lasts_s:
                    time.sleep(0.2)  # how long the state lasts
                self._commands_say(state.name, looks.answers["status"][-1].what["verdict"])
        looks.seen = looks.answers
        wrong = [*mistakes(state, looks.answers)]
        line = shown(state, looks.answers)
        for wanted, found in (
            (state.alerts, set[str]().union(*(each.what for each in looks.answers["alerts"]))),
            (state.azures, set[str]().union(*(azures(each.what) for each in looks.answers["metrics"]))),
        ):
            if missing := wanted - found:
                wrong.append(f"no alert {missing}")
        with looks.watching():
            back()
            looks.begins()
            after = looks.until({**WELL, "alerts": lambda found: state.afterwards <= found}, PATIENCE_S)
        print(f"{state.name} | {line} | well after {', '.join(f'{name} {at:.1f}' for name, at in after.items())}")
        for each in wrong:
            print(f"  WRONG: {each}", flush=True)
        self.wrong += wrong

    def _hang(self) -> None:
        """Bring rows at which the function waits, and wait until a batch has come to them."""
        reached = self.folder / f"{HANGS}.reached"
        reached.unlink(missing_ok=True)
        (self.folder / HANGS).touch()
        self.produce(HANGS, 50)
        deadline = time.monotonic() + PATIENCE_S
        while not reached.exists():
            assert time.monotonic() < deadline, "no batch came to the rows"
            time.sleep(0.1)  # the pace of looking

    # The states.

    def unread(self) -> None:
        """The function waits at a row: the tasks run, and their input stays unread."""
        mark = self.folder / HANGS

        def bring() -> None:
            self._hang()
            self.produce("AA", 400)

        says: dict[str, Callable[[Any], bool]] = {
            "status": lambda found: sum(task["behind"]["rows"] or 0 for task in found["tasks"] if task["behind"]) > 0,
            "page": lambda found: (found["keeping_up"]["backlog"] or 0) > 0,
            "metrics": lambda found: most(found, "stream_backlog_rows") > 0,
        }
        self.play(State("rows stay unread", says), bring, mark.unlink)

    def stopped(self) -> None:
        """All have left in order, and rows come."""

        def bring() -> None:
            assert self.world.command("stop", "--wait").returncode == 0
            self.world.fleet.exit_codes(60)
            self.produce("AA", 400)

        says: dict[str, Callable[[Any], bool]] = {
            "status": lambda found: (
                found["verdict"]["exit_code"] == 7
                and "STOPPED: No processor runs." in found["said"]
                and sum(each["rows"] for each in found["behind"].values()) == 400
            ),
            "page": lambda found: found["verdict"]["state"] == "stopped" and found["keeping_up"]["backlog"] != 0,
            "metrics": lambda found: not found,
        }
        self.play(
            State("stopped, and 400 rows come", says, alerts={"SamzaAzureNoLeader"}, azures={"no-leader"}),
            bring,
            lambda: self._start(*NAMES),
        )

    def outage(self) -> None:
        """The account takes connections, and answers nothing."""
        says: dict[str, Callable[[Any], bool]] = {
            "status": lambda found: found["verdict"]["exit_code"] == 3,
            "page": lambda found: found["verdict"]["state"] == "away",
            "metrics": lambda found: most(found, "heartbeat_age_seconds") > 4,
            "readyz": lambda found: set(found) == {"storage"},
        }
        self.play(
            State(
                "the account does not answer",
                says,
                alerts={"SamzaAzureHeartbeatsLate", "SamzaAzureStorageFails"},
                azures={"heartbeats-late"},
            ),
            lambda: self.world.emulator_signal(signal.SIGSTOP),
            lambda: self.world.emulator_signal(signal.SIGCONT),
        )

    def silent_leader(self) -> None:
        """The leader's supervisor stands still."""
        leader = self.world.fleet.status()["leader"]
        says: dict[str, Callable[[Any], bool]] = {
            "status": lambda found: found["verdict"]["exit_code"] == 6 and leader in found["verdict"]["text"],
            "page": lambda found: found["verdict"]["state"] != "running" and leader in found["verdict"]["text"],
            "metrics": lambda found: leader not in found,
        }
        self.play(
            State(
                "the leader is silent",
                says,
                heals=True,
                alerts={"SamzaAzureProcessorsMissing"},
                azures={"processors-missing"},
            ),
            lambda: self.world.fleet.send(leader, signal.SIGSTOP),
            lambda: self.world.fleet.send(leader, signal.SIGCONT),
        )

    def frozen_jvm(self) -> None:
        """The JVM of a follower stands still."""
        shown = self.world.fleet.status()
        name = next(each["owner"] for each in shown["tasks"] if each["owner"] != shown["leader"])
        jvm = self.world.jvm(name)
        says: dict[str, Callable[[Any], bool]] = {
            "status": lambda found: found["verdict"]["exit_code"] == 6 and hangs(name, found["verdict"]["text"]),
            "page": lambda found: hangs(name, found["verdict"]["text"]),
            "metrics": lambda found: most(found, "group_tasks_running") < most(found, "group_tasks"),
            "readyz": lambda found: "container" in found,
        }
        self.play(
            State(
                "a JVM is frozen",
                says,
                heals=True,
                alerts={"SamzaAzureTasksNotRunning"},
                azures={"tasks-not-running"},
            ),
            jvm.suspend,
            lambda: with_patience(jvm.resume),
        )

    def failing(self) -> None:
        """A task fails at a row wherever it is tried: first it is trouble, then the run fails."""
        mark = self.folder / FAILS

        def bring() -> None:
            mark.touch()
            self.produce(FAILS, 50)

        def back() -> None:
            if set(self.world.fleet.exit_codes(PATIENCE_S).values()) != {1}:
                self.wrong.append(f"a run that failed ended with {self.world.fleet.exit_codes(0)}")
            day = json.loads(get(f"{self.onlookers.page}day.json") or "{}")
            failed = [(each["task"], each["times"]) for each in day.get("failures", ())]
            print(f"  failures of the last day: {failed}")
            tries = Counter[str]()
            for task, times in failed:
                tries[task] += times if task else 0
            if not 3 <= max(tries.values(), default=0) <= self.world.fleet.config.task.restart_limit + 1:
                self.wrong.append("the record of the last day has not the tries that have failed")
            tasks = [task for each in self.onlookers.seen["status"] for task in each.what.get("tasks", ())]
            most_tries, most_starts = (max(task[name] for task in tasks) for name in ("failed_tries", "restarts"))
            print(f"  most failed_tries {most_tries}, most restarts {most_starts}")
            if most_tries < 3 or most_starts < 2:
                self.wrong.append("tries and restarts were not counted")
            mark.unlink()
            self._start(*NAMES)

        says: dict[str, Callable[[Any], bool]] = {
            "status": lambda found: (
                (found["verdict"]["exit_code"] == 6 and "TROUBLE: " in found["said"])
                or (found["verdict"]["exit_code"] == 1 and "this row cannot be processed" in found["verdict"]["text"])
            ),
            "page": lambda found: found["verdict"]["state"] in ("trouble", "failed"),
            "metrics": lambda found: (
                most(found, "group_tasks_running") < most(found, "group_tasks") or most(found, "leader") < 1
            ),
        }
        self.play(
            State(
                "a task fails",
                says,
                alerts={"SamzaAzureTasksNotRunning", "SamzaAzureNoLeader"},
                azures={"tasks-not-running", "no-leader"},
                afterwards={"SamzaAzureRunFailed"},
            ),
            bring,
            back,
            lasts_s=90,
        )

    def _commands_say(self, name: str, verdict: dict[str, Any]) -> None:
        """The same as processes: the text with its exit code, and the document with 0, unless nothing can be read."""
        code, text = status(self.world)
        if code != verdict["exit_code"] or first_words(verdict["text"]) not in text:
            self.wrong.append(f"{name}: the command ended with {code}, and said {text}")
        ended = self.world.command("status", "--json")
        found = json.loads(ended.stdout)["verdict"]["exit_code"] if ended.returncode == 0 else ended.returncode
        if found != verdict["exit_code"]:
            self.wrong.append(f"{name}: --json ended with {ended.returncode}, and has {found}")

    def unreachable(self) -> None:
        """What waits for an answer ends in ten seconds while the account gives none, and says that."""
        begun = time.monotonic()
        self.world.command("status", "--help")
        start_s = time.monotonic() - begun
        self.world.emulator_signal(signal.SIGSTOP)
        try:
            for line in (["status"], ["drain"], ["drain", "--cancel"], ["stop"], ["stop", "--wait"]):
                begun = time.monotonic()
                ended = self.world.command(*line)
                took_s = time.monotonic() - begun - start_s
                said = " ".join(ended.stderr.split())
                print(f"{' '.join(line)} without the account: {ended.returncode} after {took_s:.1f} s: {said[:200]}")
                if ended.returncode != 3 or took_s > SOON_S or "If that lasts, start samza-azure dev" not in said:
                    self.wrong.append(f"{line}: {ended.returncode} after {took_s:.1f} s, {said}")
        finally:
            self.world.emulator_signal(signal.SIGCONT)
        with self.onlookers.watching():
            self.onlookers.until(WELL, PATIENCE_S)

    def cancelled(self) -> None:
        """The function waits at a row, so a drain cannot flush: what it waits for is named, and it is cancelled."""
        mark = self.folder / HANGS
        self._hang()
        for arguments, code, says in (
            (("--wait", "--timeout", "10"), 4, "It goes on, and nothing is lost. "),
            (("--cancel",), 0, "is cancelled; the run goes on."),
        ):
            ended = self.world.command("drain", *arguments)
            said = " ".join((ended.stdout + ended.stderr).split())
            print(f"drain {' '.join(arguments)}: {ended.returncode}, {said}")
            if ended.returncode != code or says not in said:
                self.wrong.append(f"drain {arguments}: {ended.returncode}, {said}")
            metrics, (_, text) = scraped(self.ports), status(self.world)
            step, age_s = most(metrics, "drain_step"), most(metrics, "drain_age_seconds")
            print(f"  drain.step {step:g}, drain.age {age_s:.1f}: {text[:300]}")
        mark.unlink()
        with self.onlookers.watching():
            self.onlookers.until(
                {**WELL, "metrics": lambda found: WELL["metrics"](found) and most(found, "drain_step") == 0}, PATIENCE_S
            )

    def dead(self) -> None:
        """All are killed."""

        def bring() -> None:
            for each in [process for name in NAMES for process in self.world.tree(name)]:
                with_patience(each.kill)
            self.world.fleet.exit_codes(10)

        says: dict[str, Callable[[Any], bool]] = {
            "status": lambda found: found["verdict"]["exit_code"] in (6, 7) and "RUNNING: " not in found["said"],
            "page": lambda found: found["verdict"]["state"] in ("looking", "no leader", "trouble", "stopped"),
            "metrics": lambda found: not found,
        }
        self.play(
            State("all are dead", says, alerts={"SamzaAzureNoLeader"}, azures={"no-leader"}),
            bring,
            lambda: self._start(*NAMES),
        )

    def _start(self, *names: str) -> None:
        self.world.start(*names)

    def drain(self) -> None:
        """The JVM of a follower stands still when a drain begins: it is named, and the drain ends."""
        shown = self.world.fleet.status()
        name = next(each["owner"] for each in shown["tasks"] if each["owner"] != shown["leader"])
        self.world.kill_at(name, "container", "REQUESTED", signal.SIGSTOP, self.world.jvm(name).pid)
        drain = self.world.drain_begins()
        while self.world.kills_to_come():
            time.sleep(0.1)  # the pace of looking
        begun = time.monotonic()
        said: list[tuple[float, str]] = []

        def listen() -> None:
            said.extend((time.monotonic() - begun, line.rstrip()) for line in drain.stderr or ())

        listener = threading.Thread(target=listen)
        listener.start()
        found, named = [], None
        while drain.poll() is None:
            asked, verdict = time.monotonic() - begun, looked(self.world)["verdict"]
            found.append((asked, verdict))
            if named is None and hangs(name, verdict["text"]):
                named = time.monotonic() - begun
        listener.join()
        for at, line in said:
            print(f"  drain --wait, {at:.1f} s: {line}")
        told = next((at for at, line in said if hangs(name, line)), None)
        code, text = status(self.world)
        print(
            f"a JVM is frozen in a drain | status {named and round(named, 1)}, drain --wait {told and round(told, 1)}"
            f" | exit code of drain {drain.returncode}, of status {code} | drained after {said[-1][0]:.1f} s"
        )
        during = {verdict["exit_code"] for _, verdict in found if hangs(name, verdict["text"])}
        if named is None or told is None or max(named, told) > SOON_S or drain.returncode or code or during != {6}:
            self.wrong.append(f"the frozen JVM in a drain: {found} {text}")
        codes = self.world.fleet.exit_codes(60)
        print(f"  exit codes of the processors: {codes}")
        if daily_rows(self.world.stream("daily-delays")) != daily(self.world.rows_up_to_positions()):
            self.wrong.append("the output is not that of one batch over all rows that were read")


def free_port() -> int:
    """A port from which on the processors find theirs: each takes the first free one, also after a restart."""
    with socket.create_server(("127.0.0.1", 0)) as any_port:
        return min(int(any_port.getsockname()[1]), 65_000)


def main(*names: str) -> None:
    """Play the states, and say what was wrong."""
    if not install():
        raise SystemExit("There is no prometheus here. On Debian run apt-get update first.")
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        first = free_port()
        world = JobOnAzurite(folder, pa.table({}), more=SETTINGS.format(port=first), timing="")
        pipeline = folder / "pipeline.py"
        changed = pipeline.read_text().replace(
            '@app.stage("flights"', FUNCTION.lstrip().replace("{folder!r}", repr(str(folder))), 1
        )
        pipeline.write_text(changed.replace('NOT NULL").', 'NOT NULL").where(is_fine("carrier")).'))
        play = Play(world, folder, range(first, first + len(NAMES)))
        try:
            play.begin()
            for name in names or (
                "unread",
                "cancelled",
                "outage",
                "unreachable",
                "silent_leader",
                "frozen_jvm",
                "failing",
                "dead",
                "stopped",
                "drain",
            ):
                getattr(play, name)()
            play.end()
        finally:
            world.close()
    if play.wrong:
        raise SystemExit("\n".join([f"{len(play.wrong)} answers were wrong:", *play.wrong]))


if __name__ == "__main__":
    main(*sys.argv[1:])
