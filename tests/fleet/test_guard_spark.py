"""Three guards of a real Spark job with a real checkpoint: what was killed, frozen or cut off leaves each row once.

They take minutes. `tests/fleet/test_guard.py` plays the same with a command that starts at once.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark
import pytest

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.spark.jvm.java import find_java

from .guards import Guards

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

JOB = Path(__file__).with_name("guarded_job.py")
NAMES = ("g0", "g1", "g2")
#: As in tests/end_to_end: Spark and the group share two cores.
TIMING = """
job.coordinator.heartbeat.interval = "1 s"
job.coordinator.heartbeat.timeout = "5 s"
job.coordinator.leader.timeout = "3 s"
job.coordinator.scan.interval = "0.5 s"
"""


@pytest.fixture
def guards(emulator: Azurite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guards]:
    monkeypatch.setenv("JAVA_HOME", str(find_java(os.environ).home))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    made = Guards(emulator, tmp_path, profile="default", shutdown_ms=10_000, more=TIMING, patience_s=240.0)
    yield made
    made.close()


def committed(folder: Path) -> list[int]:
    """The values in the files that the sink's own log names, as Spark reads them."""
    log = folder / "out" / "_spark_metadata"
    numbers = sorted(
        (int(path.name.split(".")[0]), path) for path in log.glob("[0-9]*") if not path.name.endswith(".tmp")
    )
    compact = max((number for number, path in numbers if path.suffix == ".compact"), default=-1)
    found: set[str] = set()
    for number, path in numbers:
        if number > compact or (number == compact and path.suffix == ".compact"):
            found |= {json.loads(line)["path"] for line in path.read_text().splitlines()[1:]}
    files = [Path(each.removeprefix("file://")) for each in found]
    return sorted(json.loads(line)["value"] for file in files for line in file.read_text().splitlines())


def test_a_spark_job_has_each_row_once_through_kill_freeze_cut_off_and_outage(guards: Guards, tmp_path: Path) -> None:
    spark_submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [*guards.witness("exec"), str(spark_submit), str(JOB), str(tmp_path / "job")]
    for name in NAMES:
        guards.start(name, command, "--checkpoint", str(tmp_path / "job" / "checkpoint"))
    guards.starts(1)

    def goes_on() -> None:
        before = len(committed(tmp_path / "job"))
        guards.until("new rows", lambda: len(committed(tmp_path / "job")) > before + 20)

    goes_on()
    for strike in ("kill", "freeze", "cut off", "freeze the keeper"):
        victim, before = guards.owner(), len(guards.noted())
        match strike:
            case "kill":
                victim.process.kill()
                victim.process.wait()
            case "freeze":
                victim.process.send_signal(signal.SIGSTOP)
            case "freeze the keeper":
                os.kill(victim.keeper, signal.SIGSTOP)
                victim.cut_off()
            case "cut off":
                victim.cut_off()
        assert guards.starts(before + 1) != victim.name, strike
        goes_on()
        victim.join()
        if strike == "kill":
            guards.start(victim.name, command)
        victim.process.send_signal(signal.SIGCONT)
    before = len(guards.noted())
    services = [guards.emulator.pid, guards.emulator.table_pid]
    for service in services:
        os.kill(service, signal.SIGSTOP)
    owner = guards.folder / f"{guards.owner().name}.log"
    known = owner.read_text().count("no heartbeat was accepted in time")
    guards.until("ended", lambda: owner.read_text().count("no heartbeat was accepted in time") > known)
    for service in services:
        os.kill(service, signal.SIGCONT)
    guards.starts(before + 1)
    goes_on()
    assert guards.command("stop", "--wait").returncode == 0
    assert [each.process.wait() for each in guards.guards.values()] == [0, 0, 0], guards.said()
    rows = committed(tmp_path / "job")
    assert rows == list(range(len(rows)))


def test_a_zombie_is_stopped_at_its_next_batch_by_the_token(guards: Guards, tmp_path: Path) -> None:
    """Guard and keeper are frozen, and the job is not: so there are two, which nobody can prevent."""
    job = tmp_path / "job"
    batches = job / "batches"
    for name in NAMES:
        guards.start(name, [sys.executable, str(JOB), str(job), "checked"])

    def written() -> list[tuple[int, int, int, str]]:
        lines = batches.read_text().splitlines() if batches.exists() else []
        return [
            (int(token), int(number), int(process), values) for token, number, process, values in map(str.split, lines)
        ]

    guards.until("batches", lambda: len(written()) > 5)
    old, _, zombie, _ = written()[-1]
    [victim] = [
        each
        for each in guards.guards.values()
        if zombie in [process.pid for process in psutil.Process(each.process.pid).children(recursive=True)]
    ]
    frozen = [victim.keeper, victim.process.pid]
    for process in frozen:
        os.kill(process, signal.SIGSTOP)
    try:
        guards.until(
            "a successor writes", lambda: len({token for token, *_ in written()}) == 2 and written()[-1][0] > old
        )
        guards.until("the zombie ends by itself", lambda: psutil.Process(zombie).status() == psutil.STATUS_ZOMBIE)
        count = len(written())
        guards.until("the successor goes on", lambda: len(written()) > count + 5)
    finally:
        for process in frozen:
            os.kill(process, signal.SIGCONT)
    tokens = [token for token, *_ in written()]
    assert tokens == sorted(tokens)
    values = {number: rows for _, number, _, rows in written()}
    assert ",".join(values[number] for number in sorted(values)) == ",".join(map(str, range(5 * len(values))))
