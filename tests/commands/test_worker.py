"""The worker of a cluster, without a cluster: what it is told, and that it leaves."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from samza_azure import cli
from samza_azure.errors import ConfigError
from samza_azure.machine.addresses import own_address
from samza_azure.spark.jvm import daemons
from samza_azure.spark.query.beside import modules_in
from samza_azure.tasks.out_of_memory import too_large, why_too_large
from tests.host.fake_metadata import FakeMetadata

LOST = (
    "Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure: Lost task 0.3: "
    "ExecutorLostFailure (executor 7 exited caused by one of the running tasks) Reason: Command exited with code {code}"
)


@pytest.mark.parametrize("master", ["host:7077", "spark://host", "local[2]"])
def test_a_master_that_is_no_cluster_is_refused(master: str) -> None:
    with pytest.raises(ConfigError, match=r"is no cluster\. Write it as spark://host:port"):
        cli.app(["worker", "--master", master], standalone_mode=False)


def test_executors_find_this_python_and_options_of_the_environment_count() -> None:
    environment = {**os.environ, "PATH": "/usr/bin", daemons.OPTIONS: "-Dspark.worker.timeout=7"}
    made = daemons.worker("spark://h:1", "127.0.0.2", 3, 900, Path("/d"), environment)
    assert made.environment["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "/usr/bin"]
    assert {"-Dspark.decommission.enabled=true", "-Dspark.worker.timeout=7"} <= {*made.command}
    assert made.command[made.command.index(daemons.WORKER) + 1 :] == [
        "--host", "127.0.0.2", "--webui-port", "0", "--cores", "3", "--memory", "900m", "--work-dir", "/d/executors",
        "spark://h:1",
    ]  # fmt: skip


def test_the_address_is_that_from_which_the_master_is_reached() -> None:
    assert own_address("127.0.0.9", 7077) == "127.0.0.1"
    assert own_address("no.such.host.invalid", 7077) == "127.0.0.1"


def test_modules_and_packages_beside_a_job_are_sent_and_other_files_are_not(tmp_path: Path) -> None:
    for name in ("pipeline.py", "shop/__init__.py", "shop/deep/prices.py", ".venv/lib/x.py", "data/rows.csv", "a/b.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [str(path.relative_to(tmp_path)) for path in modules_in(tmp_path)]
    assert found == ["pipeline.py", "shop/__init__.py", "shop/deep/prices.py"]


def test_an_executor_that_lacked_memory_is_told_from_one_that_was_killed() -> None:
    for code in (52, 137):
        cause = why_too_large(RuntimeError(LOST.format(code=code)))
        assert cause is not None
        said = too_large("t-0", 3, 10, 1 << 20, cause, 1 << 10, {"spark.executor.memory": "600m"})
        assert said.endswith("raise spark.executor.memory (now 600m) or give its stage more tasks.")
    assert why_too_large(RuntimeError(LOST.format(code=143))) is None


#: What leaves as the JVM of a worker does: told by SIGPWR its executor ends a while later, and SIGTERM ends itself.
WORKER = """
import signal, subprocess, sys
executor = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
signal.signal(signal.SIGPWR, lambda *_: {how})
print("up", flush=True)
while True:
    signal.pause()
"""
LIVE = """
import signal, subprocess, sys
from samza_azure.commands.worker import NOTICES, Leaving, live
signal.pthread_sigmask(signal.SIG_BLOCK, [*NOTICES, signal.SIGCHLD])
unblocked = lambda: signal.pthread_sigmask(signal.SIG_SETMASK, ())
worker = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, preexec_fn=unblocked)
worker.stdout.readline()
print("up", flush=True)
sys.exit(live(worker, float(sys.argv[2]), Leaving(sys.argv[3]) if len(sys.argv) > 3 else None))
"""


def leaving(how: str, patience_s: float, *metadata: str) -> "subprocess.Popen[str]":
    """A worker that is up."""
    command = [sys.executable, "-c", LIVE, WORKER.format(how=how), str(patience_s), *metadata]
    made = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert made.stdout is not None and made.stdout.readline() == "up\n"
    return made


@pytest.mark.parametrize("notice", [signal.SIGTERM, signal.SIGPWR, signal.SIGINT])
def test_a_worker_waits_for_its_executors_when_it_leaves(notice: signal.Signals) -> None:
    worker = leaving("(executor.communicate(b'go'), executor.wait())", 60)
    worker.send_signal(notice)
    _, said = worker.communicate(timeout=60)
    assert (worker.returncode, "its executors had ended" in said) == (0, True), said


def test_executors_that_do_not_end_in_time_are_counted() -> None:
    worker = leaving("None", 0.2)
    worker.send_signal(signal.SIGTERM)
    _, said = worker.communicate(timeout=60)
    assert (worker.returncode, "1 process of executors did not end in time" in said) == (1, True), said


def test_a_scheduled_event_is_a_notice_and_approved_when_the_worker_has_left() -> None:
    with FakeMetadata() as metadata:
        metadata.schedule("Freeze", in_s=1.0, lasts_s=9)
        worker = leaving("(executor.communicate(b'go'), executor.wait())", 60, metadata.url)
        event = metadata.schedule("Preempt", in_s=30.0)
        _, said = worker.communicate(timeout=60)
        assert (worker.returncode, metadata.approved) == (0, [event]), said


@pytest.mark.long  # tests/end_to_end/test_cluster.py has one that leaves a cluster
def test_a_worker_whose_master_is_not_there_leaves_all_the_same(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "samza_azure", "worker", "--master", "spark://127.0.0.1:1", "--dir", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        said = ""
        while "Connecting to master" not in said:
            line = worker.stderr.readline()
            assert line, said
            said += line
        worker.send_signal(signal.SIGTERM)
        said += worker.stderr.read()
        assert (worker.wait(60), "its executors had ended" in said) == (0, True), said
