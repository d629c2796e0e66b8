"""A Spark cluster on this machine, of our own commands: each worker has an address of its own."""

import json
import math
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from samza_azure.machine.processes import die_with_parent
from samza_azure.spark.jvm import daemons
from samza_azure.spark.jvm.daemons import SECRET
from samza_azure.spark.jvm.java import Java

from .real_processes import JobOnAzurite, cleaned, daily, daily_rows

PATIENCE_S = 300.0
HOST = "127.0.0.1"
PIPELINE = """import os
import time

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from samza_azure import Application

app = Application()


@F.udf("double")
def minutes(delay):
    while os.path.exists(HOLD):
        with open(f"{HOLD}.at", "a") as at:
            at.write(f"{os.getpid()} ")
        time.sleep(0.02)
    return delay


@app.stage("flights", output="by-carrier", partition_by="carrier")
def clean(flights: DataFrame) -> DataFrame:
    return flights.where("dep_delay IS NOT NULL").select("carrier", "ts", minutes("dep_delay").alias("dep_delay"))


@app.stage("by-carrier", output="daily-delays")
def daily_delays(rows: DataFrame) -> DataFrame:
    return (
        rows.withColumn("dep_delay", minutes("dep_delay"))
        .withWatermark("ts", "1 hour")
        .groupBy(F.window("ts", "1 day"), "carrier")
        .agg(F.count("*").alias("flights"), F.avg("dep_delay").alias("delay"))
    )
"""
#: How much is shown of why a task has failed.
REASON = 300
#: Why an executor that leaves does not run a task that has just come. Spark raises it before a block is computed.
TURNED_AWAY = "org.apache.spark.storage.BlockSavedOnDecommissionedBlockManagerException"
#: The second stage alone.
WINDOWS_STREAMS = """
[job.coordinator.heartbeat]
interval = "1 s"
[streams.flights]
schema = "carrier string, ts timestamp, dep_delay double"
event_time = "ts"
"""
_CLEAN, _DAILY = '@app.stage("flights", output="by-carrier"', '@app.stage("by-carrier", output="daily-delays")'
WINDOWS = (
    PIPELINE.partition(_CLEAN)[0]
    + _DAILY.replace("by-carrier", "flights")
    + PIPELINE.partition(_DAILY)[2].replace("rows.with", 'rows.where("dep_delay IS NOT NULL").with')
)
#: Slower than in other tests: a machine of two cores has four more JVMs.
TIMING = """
[task]
state = "{state}"
warm.up = false
[spark]
master = "{master}"
executor.cores = 1
executor.memory = "600m"
driver.memory = "700m"
driver.port = {ports[0]}
driver.blockManager.port = {ports[1]}
samza_azure.state.port = {ports[2]}
sql.streaming.stateStore.maintenanceInterval = "5s"
"""
#: With it Spark notes what has run, and the trial sees it. Without it Spark has fewer listeners.
PAGE = """
ui.enabled = true
ui.port = {page}
ui.retainedStages = 2000
ui.retainedTasks = 20000
"""

AUTHENTICATED = f"""authenticate = true
"authenticate.secret" = "${{{SECRET}}}"
network.crypto.enabled = true
"""


class Cluster:
    """A master, and workers of one core each by the last number of their addresses. They die with this process."""

    def __init__(self, directory: Path, hidden: Path | None = None, secret: str = "") -> None:
        """With `hidden`, which needs root, workers see no file below that folder. With a `secret` all must know it."""
        self.directory, self._hidden, self.secret = directory, hidden, secret
        self.port, self.page = free_port(), free_port()
        self.master = self._started("master", ["--host", HOST, "--port", str(self.port), "--page", str(self.page)])
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        self.numbers: set[int] = set()  # of all that there ever were

    @property
    def url(self) -> str:
        """What a job file has as `spark.master`."""
        return f"spark://{HOST}:{self.port}"

    def add(self, *numbers: int, java: Java | None = None) -> None:
        """Start workers at 127.0.0.N, and wait until they are there. Their Java is the processor's unless given."""
        own = {} if java is None else {"JAVA_HOME": str(java.home)}
        for number in numbers:
            options = ["--master", self.url, "--host", f"127.0.0.{number}", "--cores", "1", "--memory-mib", "900"]
            folder = self.directory / f"worker-{number}"
            self.workers[number] = self._started(f"worker-{number}", [*options, "--dir", str(folder)], own)
            self.numbers.add(number)
        self._have_come(numbers)

    def add_without_python(self, *numbers: int, path: Path) -> None:
        """Start workers as Spark's own scripts do, with this folder as their PATH."""
        for number in numbers:
            folder = self.directory / f"worker-{number}"
            folder.mkdir()
            made = daemons.worker(self.url, f"127.0.0.{number}", 0, 1, 900, folder, os.environ)
            self.workers[number] = self._run(f"worker-{number}", made.command, {**made.environment, "PATH": str(path)})
            self.numbers.add(number)
        self._have_come(numbers)

    def _have_come(self, numbers: Iterable[int]) -> None:
        self.until("workers", lambda: {f"127.0.0.{number}" for number in numbers} <= set(self.states("ALIVE")))

    def refuses_strangers(self) -> None:
        """A worker that does not know the secret does not become one."""
        known, self.secret = self.secret, ""
        folder = self.directory / "stranger"
        options = ["--master", self.url, "--host", "127.0.0.99", "--cores", "1", "--memory-mib", "900"]
        stranger = self._started("worker-99", [*options, "--dir", str(folder)])
        self.secret, log = known, self.directory / "worker-99.log"
        self.until("a refusal", lambda: "Failed to connect to master" in log.read_text())
        assert "127.0.0.99" not in self.states("ALIVE")
        tree = [each for top in [psutil.Process(self.master.pid)] for each in [top, *top.children(recursive=True)]]
        ports = {each.laddr.port for one in tree for each in one.net_connections() if each.status == "LISTEN"}
        assert ports == {self.port, self.page}  # the page needs none; its buttons end applications
        stranger.kill()
        stranger.wait()

    def states(self, state: str) -> list[str]:
        """The addresses of the workers in this state, as the master sees them."""
        return [each["host"] for each in self.asked().get("workers", []) if each["state"] == state]

    def know_that_leave(self, addresses: set[str]) -> bool:
        """Whether the master gives no more to these workers. One without an executor may have ended already."""
        workers = self.asked().get("workers", [])
        return bool(workers) and not addresses & {each["host"] for each in workers if each["state"] == "ALIVE"}

    def asked(self) -> dict[str, Any]:
        """What the master says; nothing while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.page}/json/", timeout=10) as said:
                found: dict[str, Any] = json.load(said)
                return found
        except (OSError, ValueError):  # its page may be up before it has anything to say
            return {}

    def remove_applications(self) -> None:
        """Let the master end all applications, as it ends one whose executors fail again and again: by its page."""
        url = f"http://{HOST}:{self.page}"
        with urllib.request.urlopen(url, timeout=10) as said:
            forms = re.findall(r'<form action="app/kill/".*?</form>', said.read().decode(), re.DOTALL)
        assert forms
        for each in forms:
            fields = dict(re.findall(r'<input [^>]*name="(\w+)"[^>]*value="([^"]*)"', each))
            data = urllib.parse.urlencode(fields).encode()
            with urllib.request.urlopen(f"{url}/app/kill/", data, timeout=10):
                pass

    def executors(self, number: int) -> list[psutil.Process]:
        """The executors of a worker."""
        try:
            below = psutil.Process(self.workers[number].pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [each for each in below if "CoarseGrainedExecutorBackend" in " ".join(_command(each))]

    def kill(self, number: int) -> None:
        """Kill a worker and its executors, unannounced."""
        for each in [*self.executors(number), psutil.Process(self.workers[number].pid)]:
            each.send_signal(signal.SIGKILL)
        self.workers.pop(number).wait()

    def until(self, what: str, holds: Callable[[], object]) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"{what}: {self.asked()} {self.said()}"
            time.sleep(0.1)  # the pace of asking

    def said(self) -> str:
        """What the daemons have logged."""
        return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in sorted(self.directory.glob("*.log")))

    def close(self) -> None:
        """Kill all of it."""
        for number in [*self.workers]:
            self.kill(number)
        self.master.kill()
        self.master.wait()

    def _started(
        self, name: str, options: list[str], environment: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-P", "-m", "samza_azure", re.sub(r"-\d+$", "", name), *options]
        if self._hidden is not None and name != "master":
            hide = f"mount -t tmpfs none {shlex.quote(str(self._hidden))} && exec {shlex.join(command)}"
            command = ["unshare", "-m", "sh", "-c", hide]
        return self._run(name, command, {**os.environ, SECRET: self.secret, **(environment or {})})

    def _run(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )


@dataclass(frozen=True, slots=True)
class Failure:
    """A task of Spark that has failed."""

    stage: str  # with its attempt
    task: int
    executor: str
    address: str
    reason: str  # in a line

    def __str__(self) -> str:
        return f"task {self.task} of stage {self.stage} at executor {self.executor} on {self.address}: {self.reason}"


def turned_away(failures: Iterable[Failure]) -> int:
    """How many executors have turned a task away, since they leave: it asked to keep its rows before it computed any.

    The driver gave it to them in the instant in which they were told. It gives none later, and an executor of one core
    has one at a time, so each turns away one at most.
    """
    return len({each.executor for each in failures if each.reason.startswith(TURNED_AWAY)})


class Driver:
    """What the driver of a processor says of its executors and tasks."""

    def __init__(self, page: int) -> None:
        self._url = f"http://127.0.0.1:{page}/api/v1/applications"

    def asked(self, path: str) -> list[dict[str, Any]]:
        """A list from Spark's own interface. Nothing while it does not answer."""
        try:
            found: list[dict[str, Any]] = json.loads(self.said(path))
            return found
        except (OSError, ValueError):
            return []

    def said(self, path: str) -> str:
        """What Spark's own interface says."""
        with urllib.request.urlopen(self._url, timeout=20) as said:
            [app, *_] = json.load(said)
        with urllib.request.urlopen(f"{self._url}/{app['id']}/{path}", timeout=20) as said:
            text: str = said.read().decode()
            return text

    def executors(self, path: str = "executors") -> list[dict[str, Any]]:
        """Those that are active, or all."""
        return [each for each in self.asked(path) if each["id"] not in ("driver", "fallback")]

    def failed(self) -> tuple[int, int]:
        """How many tasks have failed, and how many attempts of stages."""
        stages = self.asked("stages")
        return sum(each["numFailedTasks"] for each in stages), sum(each["status"] == "FAILED" for each in stages)

    def failures(self) -> list[Failure]:
        """The tasks that have failed."""
        return [
            Failure(
                f"{stage['stageId']}.{stage['attemptId']}",
                task["taskId"],
                task["executorId"],
                task["host"],
                " ".join(task.get("errorMessage", "no reason").split())[:REASON],
            )
            for stage in self.asked("stages")
            if stage["numFailedTasks"]
            for task in self.asked(f"stages/{stage['stageId']}/{stage['attemptId']}/taskList?status=failed&length=100")
        ]

    def addresses_at_work(self) -> list[int]:
        """The last numbers of the addresses of executors that run a task."""
        at_work = [each["hostPort"].split(":")[0] for each in self.executors() if each["activeTasks"]]
        return [int(address.rpartition(".")[2]) for address in at_work]


#: Executors of another locale, with a smaller stack, or that read a null as a value, have other rows or none.
SAME_ROWS = {
    "-Duser.language=en",
    "-Duser.country=US",
    "-Dfile.encoding=UTF-8",
    "-Xss4m",
    "-Darrow.enable_null_check_for_get=false",
}


class Trial:
    """A processor on a cluster of two workers, whose batches wait at a Python function while a strike is made."""

    def __init__(
        self,
        folder: Path,
        flights: pa.Table,
        state: str,
        *,
        hidden: bool = False,
        secret: str = "",
        more: str = "",
        cores: int = 2,
        shown: bool = True,
    ) -> None:
        """`more` are settings of Spark. Only with its page, `shown`, there is what `driver` says."""
        self._begun, self._state, self._hold = time.monotonic(), state, folder / "hold"
        (folder / "cluster").mkdir()
        (folder / "job").mkdir()
        self.cluster = Cluster(folder / "cluster", hidden=folder / "job" if hidden else None, secret=secret)
        self.page = free_port()
        self.driver = Driver(self.page)
        self._ports = [free_port() for _ in range(3)]
        settings = TIMING.format(state=state, master=self.cluster.url, ports=self._ports)
        settings += f"cores.max = {cores}\n" + more
        if shown:
            settings += PAGE.format(page=self.page)
        if secret:
            settings += AUTHENTICATED
        self.world = JobOnAzurite(folder / "job", flights, timing=settings, environment={SECRET: secret})
        (self.world.directory / "pipeline.py").write_text(PIPELINE.replace("HOLD", repr(str(self._hold))))

    def start(self) -> None:
        """Start the processor, and wait until its tasks run."""
        self.cluster.add(2, 3)
        self.say("two workers are up")
        self.world.start("p0")
        self.say("the processor runs")

    def hold_batch(self, rows: int) -> list[int]:
        """Produce rows, and wait until a batch waits. Return the last numbers of the addresses of its executors."""
        self._waits.unlink(missing_ok=True)  # a batch may have written it once more when it was let go
        self._hold.touch()
        if rows:
            self.world.produce(rows)
        at_work: list[int] = []
        self.cluster.until("a running batch", lambda: at_work or at_work.extend(self._at_work()))
        return at_work

    @property
    def _waits(self) -> Path:
        """Which Python processes wait at the function."""
        return self._hold.with_suffix(".at")

    def _at_work(self) -> list[int]:
        return self.above(self._waits.read_text()) if self._waits.exists() else []

    def above(self, pids: str) -> list[int]:
        """The last numbers of the addresses of the workers that these Python processes, of executors, are below."""
        found = set()
        for pid in pids.split():
            with suppress(psutil.NoSuchProcess):
                found |= {each.pid for each in psutil.Process(int(pid)).parents()}
        return [number for number, worker in self.cluster.workers.items() if worker.pid in found]

    def free_batch(self) -> None:
        """Let batches go on."""
        self._hold.unlink(missing_ok=True)
        self._waits.unlink(missing_ok=True)

    def strike(self, rows: int, what: str, act: Callable[[list[int]], object], *, fails: bool) -> None:
        """Produce rows, and strike in the middle of the batch that reads them. Then each row is there once.

        `act` gets the last numbers of the addresses of the workers that run a task. `fails` is whether tasks of Spark
        fail of it. If not, none did that had computed anything.
        """
        before, known = self.failed(), self.failures()
        at_work = self.hold_batch(rows)
        self.say("a batch waits")
        at = time.monotonic()
        act(at_work)
        self.free_batch()
        self.appended()
        took = time.monotonic() - at
        tasks, stages = (now - then for now, then in zip(self.failed(), before, strict=True))
        self.say(f"{what}: exact after {took:.0f} s; {tasks} tasks and {stages} stages failed")
        failures = [each for each in self.failures() if each not in known]
        for each in failures:
            self.say(str(each))
        as_expected = tasks if fails else tasks == turned_away(failures)
        assert as_expected and not stages, f"{what}: {tasks} tasks and {stages} stages failed: {[*map(str, failures)]}"

    def failures(self) -> list[Failure]:
        """The tasks of Spark that have failed."""
        return self.driver.failures()

    def failed(self) -> tuple[int, int]:
        """How many tasks of Spark have failed, and how many attempts of stages."""
        return self.driver.failed()

    def appended(self) -> None:
        """All rows so far have been read, and what came of them is there once."""
        self.world.exact()

    def all_is_read(self, but: str = "") -> None:
        """No task has rows to read, by what the processor has said after this call, but those of this stage."""
        since = math.ceil(time.time() * 1000)
        self.world.fleet.wait_until(
            "no rows to read",
            lambda shown: (
                all(
                    task["progress"]
                    and task["progress"]["appended_ms"]
                    and task["progress"]["behind"]
                    and not any(task["progress"]["behind"].values())
                    for task in shown["tasks"]
                    if task["stage"] != but
                )
                and time.time() * 1000 > since + 3000
            ),  # two heartbeats
            300,
        )

    def kill_executors(self, at_work: list[int]) -> None:
        """Kill the executors of the running batches."""
        for number in at_work:
            for each in self.cluster.executors(number):
                each.send_signal(signal.SIGKILL)

    def kill_worker(self, at_work: list[int]) -> None:
        """Kill a worker with the executor of a running batch."""
        self.cluster.kill(at_work[0])

    def restart(self, rows: int) -> None:
        """Kill the processor, and start it again: executors load the state that its tasks have restored."""
        at = time.monotonic()
        self.world.fleet.send("p0", signal.SIGKILL)
        self.world.fleet.exit_codes(PATIENCE_S)
        self.world.start("p0")
        self.world.produce(rows)
        self.world.exact()
        self.say(f"kill -9 of the processor: exact after {time.monotonic() - at:.0f} s")

    def remove_application(self, rows: int) -> None:
        """The master removes the processor's application: its container ends, and the next one goes on."""
        at = time.monotonic()
        self.cluster.remove_applications()
        said = self.world.fleet.log_file("p0")
        self.cluster.until("the container's end", lambda: "(Spark has ended its application: " in said.read_text())
        self.world.produce(rows)
        self.world.exact()
        self.say(f"removal of the application by the master: exact after {time.monotonic() - at:.0f} s")

    def decommission(self, numbers: list[int]) -> None:
        """Tell workers to leave. Their batches end when the master knows."""
        workers = {number: self.cluster.workers.pop(number) for number in numbers}
        for worker in workers.values():
            worker.send_signal(signal.SIGTERM)
        addresses = {f"127.0.0.{number}" for number in numbers}
        self.cluster.until("decommissioned", lambda: self.cluster.know_that_leave(addresses))
        self.free_batch()
        at = time.monotonic()
        for number, worker in workers.items():
            code = worker.wait(PATIENCE_S)
            self.say(f"worker {number} has left {time.monotonic() - at:.1f} s after its batch went on, code {code}")
            assert code == 0, self.cluster.said()

    def listens_where_it_should(self) -> None:
        """At the ports of the job file, as a firewall has them."""
        tree = self.world.tree("p0")
        found = {each.laddr.port for process in tree for each in process.net_connections() if each.status == "LISTEN"}
        assert set(self._ports) <= found, found

    def computes_alike(self) -> None:
        """Executors have what rows depend on: locale, time zone, the seed of hashes, room for deep plans."""
        below = chain.from_iterable(psutil.Process(each.pid).children(True) for each in self.cluster.workers.values())
        executors = [each for each in below if "CoarseGrainedExecutorBackend" in " ".join(_command(each))]
        assert executors
        for each in executors:
            assert {*_command(each)} >= SAME_ROWS, _command(each)
            assert {"TZ": "UTC", "PYTHONHASHSEED": "0"}.items() <= each.environ().items()

    def shows_no_secret(self) -> None:
        """Neither Spark's pages nor a log has what opens the state; its plans have where it is."""
        pages = {path: self.driver.said(path) for path in ("environment", "sql?details=true&length=99", "stages")}
        logs = [*self.cluster.directory.rglob("stderr"), *self.cluster.directory.glob("*.log")]
        logs += [self.world.fleet.log_file("p0"), *self.world.directory.rglob("container.log")]
        pages |= {str(path): path.read_text(errors="replace") for path in logs}
        assert "rest-csrf.custom-header" in pages["environment"]
        assert "webhdfs://" in pages["sql?details=true&length=99"]
        assert len(logs) > 5
        secrets = ["X-Secret-", *filter(None, [self.cluster.secret])]
        assert not [path for path, text in pages.items() for secret in secrets if secret in text]
        commands = [" ".join(_command(each)) for each in psutil.process_iter()]
        assert not self.cluster.secret or not [each for each in commands if self.cluster.secret in each]

    def errors(self) -> list[str]:
        """Why tasks have failed, as the status has it."""
        return [*self.errors_by_stage().values()]

    def errors_by_stage(self) -> dict[str, str]:
        """The same of one task of each stage."""
        tasks = self.world.fleet.status()["tasks"]
        return {task["stage"]: task["error"]["message"] for task in tasks if task["error"]}

    def late(self) -> dict[str, int]:
        """How many rows each stage has left out since they were too late, as the status has it."""
        found: Counter[str] = Counter()
        for task in self.world.fleet.status()["tasks"]:
            found[task["stage"]] += task["late"]
        return {stage: rows for stage, rows in found.items() if rows}

    def drained(self, late: int = 0) -> None:
        """Drain. What was emitted is that of a batch, without so many rows at the end."""
        assert self.world.drained() == {"p0": 0}
        found = daily_rows(self.world.stream("daily-delays"))
        assert found == daily(self.world.flights.slice(0, self.world.produced - late))
        self.say(f"drained: {self.world.produced:,} rows with state in {self._state} are equal to the batch")

    def close(self) -> None:
        """End all of it, and show what the processor has said if something was wrong."""
        if sys.exc_info()[0]:
            print(self.world.fleet.log_file("p0").read_text()[-2500:])
        self.world.close()
        self.cluster.close()

    def say(self, what: str) -> None:
        """Print a line with the time and the load of the machine."""
        print(f"{time.monotonic() - self._begun:6.0f} s  load {os.getloadavg()[0]:4.1f}  {what}", flush=True)


class Quick(Trial):
    """A trial with one task, one executor and without Spark's page: Spark has fewer listeners then."""

    def __init__(self, folder: Path, flights: pa.Table) -> None:
        quick = 'driver.extraJavaOptions = "-XX:TieredStopAtLevel=1"\n'
        super().__init__(folder, flights, "memory", cores=1, shown=False, more=quick)
        self.world.carries(WINDOWS_STREAMS, WINDOWS.replace("HOLD", repr(str(self._hold))))

    def start_with(self, rows: int) -> None:
        """Start the processor beside its workers, with rows to read, of which the first batch waits."""
        self._hold.touch()
        self.world.fleet.start("p0")
        self.world.produce(rows)
        self.cluster.add(2, 3)
        self.say("two workers are up")

    def failures(self) -> list[Failure]:
        """Without its page Spark tells of none."""
        return []

    def failed(self) -> tuple[int, int]:
        """How many executors the driver has lost without a notice: a task of each."""
        logs = self.world.directory.rglob("container.log")
        return sum(log.read_text().count("Lost executor") for log in logs), 0

    def appended(self) -> None:
        """Each row so far is in a batch that was appended, once. What came of it is seen when the trial has drained."""
        self.cluster.until("all rows", lambda: self._rows_appended() >= self.world.produced)
        assert self._rows_appended() == self.world.produced

    def _rows_appended(self) -> int:
        return sum(task["progress"]["rows"] for task in self.world.fleet.status()["tasks"] if task["progress"])


def play_quickly(folder: Path, flights: pa.Table, rows: int, late: int) -> None:
    """The worker of a batch leaves, told beforehand, and the other one takes its place. Then its executor is killed,
    in a batch whose rows are too late: by the watermark of the batch before it, as Spark has it.
    """
    trial = Quick(folder, ending_late(flights, rows, late))
    part = (rows - late) // 2

    def leave(at_work: list[int]) -> None:
        trial.world.produce(part)  # the batch before the late one
        trial.decommission(at_work)

    try:
        trial.start_with(part)
        trial.strike(0, "decommissioning of the worker", leave, fails=False)
        trial.strike(late, "kill -9 of the executor", trial.kill_executors, fails=True)
        found = trial.late()  # counted with the rows that were appended
        trial.computes_alike()
        trial.drained(late)
        assert found == {"daily_delays": cleaned(flights.slice(0, late)).num_rows}, found
    finally:
        trial.close()


def play_without_python(folder: Path, flights: pa.Table, rows: int) -> None:
    """Workers that have no Python compute what needs none. A stage with a Python function says what it lacks, and goes
    on when a worker has come that has it.
    """
    trial = Trial(folder, flights, "memory", cores=1, shown=False)
    pipeline = trial.world.directory / "pipeline.py"
    pipeline.write_text(pipeline.read_text().replace('minutes("dep_delay").alias("dep_delay"))', '"dep_delay")', 1))
    (folder / "empty").mkdir()
    try:
        trial.cluster.add_without_python(2, path=folder / "empty")
        trial.world.start("p0")
        trial.world.produce(rows)
        trial.world.exact()
        trial.say("the stage without a Python function is exact")
        said: list[str] = []
        trial.cluster.until("an error", lambda: said or said.extend(trial.errors()))
        trial.say(said[0])
        assert "and there is none. Put Python 3." in said[0], said[0]
        trial.cluster.add(3)
        trial.cluster.kill(2)
        trial.drained()
    finally:
        trial.close()


def ending_late(flights: pa.Table, rows: int, late: int) -> pa.Table:
    """The first rows, of which so many at the end are the very first ones again."""
    return pa.concat_tables([flights.slice(0, rows - late), flights.slice(0, late)])


def play(folder: Path, flights: pa.Table, rows: int, state: str, *, hidden: bool = False, short: bool = False) -> None:
    """One run, from the start to a drain; in `short` with two strikes, and with a secret of the cluster."""
    trial = Trial(folder, flights, state, hidden=hidden, secret="the secret of a cluster" if short else "")
    part = rows // (2 if short else 6)
    try:
        trial.start()
        trial.strike(part, "kill -9 of the executors of running batches", trial.kill_executors, fails=True)
        trial.cluster.add(4)
        trial.strike(part, "decommissioning of the workers of running batches", trial.decommission, fails=False)
        if not short:
            trial.cluster.add(5, 6)
            trial.strike(part, "kill -9 of a worker of a running batch", trial.kill_worker, fails=True)
            trial.restart(part)
            trial.remove_application(part)
            trial.cluster.add(7, 8)
            others = [*trial.cluster.workers][:-2]
            trial.strike(part, "decommissioning of all old workers", lambda _: trial.decommission(others), fails=False)
        if trial.cluster.secret:
            trial.cluster.refuses_strangers()
        trial.listens_where_it_should()
        trial.shows_no_secret()
        trial.drained()
    finally:
        trial.close()


def _command(process: psutil.Process) -> list[str]:
    try:
        found: list[str] = process.cmdline()
        return found
    except psutil.Error:
        return []


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
