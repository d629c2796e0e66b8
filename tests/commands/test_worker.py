"""The worker of a cluster, without a cluster: what it is told, and that it leaves."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from samza_azure import cli
from samza_azure.commands.worker import Leaving, only_one
from samza_azure.errors import ConfigError, SamzaAzureError
from samza_azure.host.decommission import ROUTE, listen
from samza_azure.machine.addresses import own_address
from samza_azure.machine.clock import wall_ms
from samza_azure.spark.jvm import daemons
from samza_azure.spark.jvm.java import find_java
from samza_azure.spark.jvm.settings import settings_of
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


def test_a_java_with_which_no_executor_starts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the wheel. The master would start executors again and again, and then remove the application."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    java = find_java(os.environ)
    with pytest.raises(ConfigError, match=r"No executor would start .* Install a whole Java .* in JAVA_HOME\.") as said:
        cli.app(["worker", "--master", "spark://127.0.0.1:7", "--host", "127.0.0.9"], standalone_mode=False)
    assert str(java.home) in str(said.value)
    given = ["--add-modules", daemons.MODULE, "-version"]
    refused = subprocess.run([java.binary, *given], capture_output=True, text=True, check=False)
    assert f"Module {daemons.MODULE} not found" in refused.stdout + refused.stderr


def test_executors_find_this_python_and_options_of_the_environment_count() -> None:
    environment = {**os.environ, "PATH": "/usr/bin", daemons.OPTIONS: "-Dspark.worker.timeout=7"}
    made = daemons.worker("spark://h:1", "127.0.0.2", 7, 3, 900, Path("/d"), environment)
    assert made.environment["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "/usr/bin"]
    assert {"-Dspark.decommission.enabled=true", "-Dspark.worker.timeout=7"} <= {*made.command}
    assert made.command[made.command.index(daemons.WORKER) + 1 :] == [
        "--host", "127.0.0.2", "--port", "7", "--webui-port", "0", "--cores", "3", "--memory", "900m",
        "--work-dir", "/d/executors", "spark://h:1",
    ]  # fmt: skip


def test_a_second_worker_of_a_cluster_at_one_address_is_refused() -> None:
    """Of another cluster, or at another address, it is none; and when the first one has ended, its address is free."""
    cluster = f"spark://127.0.0.1:{os.getpid()}"
    with only_one(cluster, "127.0.0.7"):
        with pytest.raises(ConfigError, match=r"Another worker of .* has the address 127\.0\.0\.7 .* by --host"):
            cli.app(["worker", "--master", cluster, "--host", "127.0.0.7"], standalone_mode=False)
        only_one(f"{cluster}0", "127.0.0.7").close()
        only_one(cluster, "127.0.0.8").close()
    only_one(cluster, "127.0.0.7").close()
    only_one(cluster, f"{'a' * 63}.{'b' * 63}.example").close()  # longer than the name of a socket


def test_the_secret_of_a_cluster_is_on_no_command_line() -> None:
    """And no door of the master is without it: Spark refuses the other one only if the secret is a setting."""
    assert "-Dspark.master.rest.enabled=false" in daemons.master("h", 1, 0, os.environ).command
    for environment, is_asked in (({**os.environ, daemons.SECRET: "a long secret"}, True), ({**os.environ}, False)):
        made = daemons.worker("spark://h:1", "127.0.0.2", 0, 1, 900, Path("/d"), environment)
        assert ("-Dspark.authenticate=true" in made.command) == is_asked
        assert not [each for each in made.command if "a long secret" in each]
        found = {name for name, value in made.environment.items() if "a long secret" in value}
        assert found == ({"_SPARK_AUTH_SECRET"} if is_asked else set())


def test_a_pod_runs_the_executor_that_its_environment_describes() -> None:
    pod = dict.fromkeys(daemons.OF_A_POD, "x") | {"SPARK_EXECUTOR_ID": "7", "SPARK_EXECUTOR_POD_IP": "10.0.0.9"}
    options = {"SPARK_JAVA_OPT_10": "-Dlast=1", "SPARK_JAVA_OPT_2": "-Xss4m"}
    environment = {**os.environ, **pod, **options, "SPARK_EXECUTOR_MEMORY": "600m", "PATH": "/usr/bin"}
    made = daemons.executor(environment)
    command = [*made.command]
    assert command.index("-Xss4m") < command.index("-Dlast=1") < command.index(daemons.EXECUTOR)
    assert "-Xmx600m" in command
    assert command[command.index("--executor-id") + 1] == "7"
    assert command[command.index("--hostname") + 1] == made.environment["SPARK_LOCAL_IP"] == "10.0.0.9"
    assert made.environment["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "/usr/bin"]


def test_an_executor_that_nobody_has_asked_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*daemons.OF_A_POD, daemons.MEMORY):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"SPARK_DRIVER_URL, .* are missing .*Kubernetes"):
        cli.app(["executor"], standalone_mode=False)


def test_executors_in_pods_need_no_right_but_to_pods(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("samza_azure.config.spark.own_address", lambda host, port: f"{host}:{port}")
    made = settings_of({"spark.master": "k8s://https://kubernetes.default.svc"}, tmp_path)
    assert made["spark.driver.host"] == "kubernetes.default.svc:443"
    for key in ("executor.disableConfigMap", "driver.service.deleteOnTermination", "driver.ownPersistentVolumeClaim"):
        assert made[f"spark.kubernetes.{key}"] == ("true" if "disable" in key else "false")
    assert made["spark.decommission.enabled"] == "true"
    assert "spark.kubernetes.executor.disableConfigMap" not in settings_of({"spark.master": "local"}, tmp_path)


def test_the_address_is_that_from_which_the_master_is_reached() -> None:
    assert own_address("127.0.0.9", 7077) == "127.0.0.1"


def test_a_master_whose_name_is_not_known_is_an_error_and_says_what_to_write() -> None:
    """An address of a guess, such as 127.0.0.1, would be told to others, who would wait for it in vain."""
    with pytest.raises(SamzaAzureError, match=r"reaches no\.such\.host\.invalid is not known .* Write .* as --host\."):
        cli.app(["worker", "--master", "spark://no.such.host.invalid:7077"], standalone_mode=False)
    chosen = {"spark.master": "spark://no.such.host.invalid:7077"}
    with pytest.raises(SamzaAzureError, match=r"as spark\.driver\.host in the job file\."):
        settings_of(chosen, Path("/d"))


@pytest.mark.parametrize(("address", "said"), [("127.0.1.1", "no other machine"), (None, "has no address")])
def test_a_master_that_nobody_would_reach_is_refused(
    monkeypatch: pytest.MonkeyPatch, address: str | None, said: str
) -> None:
    """As where Debian has written the name of the machine into /etc/hosts."""

    def known(*_: object, **__: object) -> list[object]:
        if address is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", known)
    with pytest.raises(ConfigError, match=rf"This machine's name .*{said}.*Add --host ADDRESS"):
        cli.app(["master"], standalone_mode=False)


def test_modules_and_packages_beside_a_job_are_sent_and_other_files_are_not(tmp_path: Path) -> None:
    for name in ("pipeline.py", "shop/__init__.py", "shop/deep/prices.py", ".venv/lib/x.py", "data/rows.csv", "a/b.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [str(path.relative_to(tmp_path)) for path in modules_in(tmp_path)]
    assert found == ["pipeline.py", "shop/__init__.py", "shop/deep/prices.py"]


IN_A_POD = "Reason: \nThe executor with id 7 exited with exit code 137(SIGKILL, possible container OOM)."


def test_an_executor_whose_pod_lacked_memory_is_told() -> None:
    cause = why_too_large(RuntimeError(LOST.partition("Reason: ")[0] + IN_A_POD))
    assert cause is not None
    assert "raise spark.executor.memory" in too_large("t-0", 3, 10, 1 << 20, cause, 1 << 10, {})


@pytest.mark.parametrize(
    ("code", "said"), [(52, "takes more memory than there is"), (137, "for lack of memory, or somebody has")]
)
def test_an_executor_that_lacked_memory_is_told_from_one_that_was_killed(code: int, said: str) -> None:
    cause = why_too_large(RuntimeError(LOST.format(code=code)))
    assert cause is not None
    message = too_large("t-0", 3, 10, 1 << 20, cause, 1 << 10, {"spark.executor.memory": "600m"})
    assert said in message
    assert message.endswith("raise spark.executor.memory (now 600m) or give its stage more tasks.")


def test_an_executor_that_was_told_to_end_did_not_lack_memory() -> None:
    assert why_too_large(RuntimeError(LOST.format(code=143))) is None


#: What leaves as the JVM of a worker does: told by SIGPWR its executor ends a while later, and SIGTERM ends itself.
WORKER = """
import signal, subprocess, sys
executor = subprocess.Popen([sys.executable, "-c", {executor!r}], stdin=subprocess.PIPE)
signal.signal(signal.SIGPWR, lambda *_: {how})
print(executor.pid, flush=True)
while True:
    signal.pause()
"""
#: One that ends when it is told, or its worker has ended.
ENDS = "input()"
#: One that hangs.
HANGS = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
LIVE = """
import signal, subprocess, sys
from samza_azure.commands.worker import NOTICES, Leaving, live
from samza_azure.host.decommission import listen
from samza_azure.machine.processes import adopt_orphans
adopt_orphans()
signal.pthread_sigmask(signal.SIG_BLOCK, [*NOTICES, signal.SIGCHLD])
unblocked = lambda: signal.pthread_sigmask(signal.SIG_SETMASK, ())
worker = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, preexec_fn=unblocked)
executor = int(worker.stdout.readline())
metadata, port = sys.argv[3:]
leaving = Leaving(metadata or None)
if port:
    listen(leaving, {"worker": "w"}, int(port))
print(executor, flush=True)
sys.exit(live(worker, float(sys.argv[2]), leaving))
"""


def leaving(how: str, patience_s: float, metadata: str = "", port: str = "") -> "subprocess.Popen[str]":
    """A worker that is up."""
    return with_executor(how, patience_s, metadata, port, executor=ENDS)[0]


def with_executor(
    how: str, patience_s: float, metadata: str = "", port: str = "", *, executor: str
) -> tuple["subprocess.Popen[str]", int]:
    """A worker that is up, and the id of its executor."""
    worker = WORKER.format(how=how, executor=executor)
    command = [sys.executable, "-c", LIVE, worker, str(patience_s), metadata, port]
    made = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert made.stdout is not None
    return made, int(made.stdout.readline())


@pytest.mark.parametrize("notice", [signal.SIGTERM, signal.SIGPWR, signal.SIGINT])
def test_a_worker_waits_for_its_executors_when_it_leaves(notice: signal.Signals) -> None:
    worker = leaving("(executor.communicate(b'go'), executor.wait())", 60)
    worker.send_signal(notice)
    _, said = worker.communicate(timeout=60)
    assert (worker.returncode, "its executors had ended" in said) == (0, True), said


def test_executors_that_do_not_end_in_time_are_counted_and_killed() -> None:
    worker, at_work = with_executor("None", 0.2, executor=HANGS)
    worker.send_signal(signal.SIGTERM)
    _, said = worker.communicate(timeout=60)
    assert (worker.returncode, "1 of their processes were killed" in said) == (1, True), said
    assert not Path(f"/proc/{at_work}").exists()


def test_no_executor_lives_longer_than_a_worker_that_has_ended_by_itself() -> None:
    worker, at_work = with_executor("exit(3)", 60, executor=HANGS)
    os.kill(int(Path(f"/proc/{at_work}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGPWR)
    _, said = worker.communicate(timeout=60)
    assert (worker.returncode, "exited with code 3, without a notice" in said) == (1, True), said
    assert not Path(f"/proc/{at_work}").exists()


def test_a_scheduled_event_is_a_notice_and_approved_when_the_worker_has_left() -> None:
    with FakeMetadata() as metadata:
        metadata.schedule("Freeze", in_s=1.0, lasts_s=9)
        worker = leaving("(executor.communicate(b'go'), executor.wait())", 60, metadata.url)
        event = metadata.schedule("Preempt", in_s=30.0)
        _, said = worker.communicate(timeout=60)
        assert (worker.returncode, metadata.approved) == (0, [event]), said


def test_a_request_on_its_port_is_a_notice_with_a_deadline() -> None:
    port = free_port()
    worker = leaving("None", 60, port=str(port))
    url = f"http://127.0.0.1:{port}{ROUTE}"
    with urllib.request.urlopen(url, timeout=30) as said:
        assert json.load(said) == {"processor": "", "worker": "w", "state": "SCHEDULABLE"}
    body = json.dumps({"why": "scale-in", "by_ms": wall_ms() + 300}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as said:
        found = json.load(said)
    assert (found["state"], found["why"]) == ("DECOMMISSIONING", "scale-in")
    _, log = worker.communicate(timeout=60)
    assert (worker.returncode, "1 of their processes were killed" in log) == (1, True), log


def test_a_port_for_notices_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"Port {port} of 127\.0\.0\.1 cannot be opened"):
            listen(Leaving(None), {}, port)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


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
