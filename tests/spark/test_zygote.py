"""Processes from the zygote, as Spark meets them: started like Python, ended like Python."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from samza_azure.spark.jvm import zygote

CONTAINER = """
import sys, signal
from pathlib import Path
from samza_azure.spark.jvm import zygote
print(zygote.executable(Path(sys.argv[1]), 60.0), flush=True)
zygote.start(Path(sys.argv[1]))
print("forked", flush=True)
signal.pause()
"""
SAYS = """
import json, os, sys, pyarrow
print(json.dumps([sys.argv[1:], os.environ.get("COLOUR"), os.getcwd(), os.getppid(), __name__]))
sys.exit(int(sys.stdin.read()))
"""
WAITS = "import signal, os; print(os.getpid()); signal.pause()"
FORKS = """
import os, signal, time
if os.fork() == 0:
    print(os.getpid())
signal.pause()
"""


LATE = """
import os, socket, sys
from samza_azure.spark.jvm import launcher
connection = socket.socket(socket.AF_UNIX)
watched, held = os.pipe()
launcher._request(connection, sys.argv[1], ["-m", "says"], watched)
connection.recv(1)
connection.send(b"late")
print(ord(connection.recv(1) or b"?"))
"""


@contextmanager
def a_container(directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that has forked a zygote, and the executable for Spark."""
    process = subprocess.Popen([sys.executable, "-c", CONTAINER, str(directory)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    executable = process.stdout.readline().strip()
    assert process.stdout.readline() == "forked\n"
    try:
        yield process, executable
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """One that lives on: tests may come in any order. The directory's name is long on purpose."""
    with a_container(tmp_path_factory.mktemp("a" * 120)) as made:
        yield made


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """Modules to run."""
    (tmp_path / "says.py").write_text(SAYS)
    (tmp_path / "waits.py").write_text(WAITS)
    (tmp_path / "forks.py").write_text(FORKS)
    return tmp_path


def test_a_child_has_what_its_launcher_was_given(
    container: tuple[subprocess.Popen[str], str], modules: Path, tmp_path: Path
) -> None:
    process, executable = container
    environment = {**os.environ, "PYTHONPATH": str(modules), "COLOUR": "grün"}
    ended = subprocess.run(
        [executable, "-m", "says", "a b", "c"],
        env=environment,
        cwd=tmp_path,
        input="7",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "gave no process" not in ended.stderr
    *said, parent, name = json.loads(ended.stdout)
    assert (said, name, ended.returncode) == ([["a b", "c"], "grün", str(tmp_path)], "__main__", 7)
    assert psutil.Process(parent).ppid() == process.pid  # the zygote's child, not one that imported all by itself


def test_an_error_is_printed_and_is_exit_code_one(container: tuple[subprocess.Popen[str], str], modules: Path) -> None:
    ended = subprocess.run(
        [container[1], "-m", "says"],
        env={**os.environ, "PYTHONPATH": str(modules)},
        input="no number",
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "ValueError: invalid literal" in ended.stderr


def test_a_child_dies_with_its_launcher(container: tuple[subprocess.Popen[str], str], modules: Path) -> None:
    launcher, child = waiting(container[1], modules)
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    psutil.wait_procs([child], timeout=10)
    assert not is_running(child)


def test_a_launcher_ends_with_its_child(container: tuple[subprocess.Popen[str], str], modules: Path) -> None:
    launcher, child = waiting(container[1], modules)
    child.kill()
    assert launcher.wait(10) == 1


def test_a_signal_of_the_request_that_comes_late_kills_no_child(
    container: tuple[subprocess.Popen[str], str], modules: Path
) -> None:
    # The kernel wakes who reads before it signals that there is data. So the signal may come after all was read.
    ended = subprocess.run(
        [sys.executable, "-c", LATE, str(Path(container[1]).with_name(zygote.ADDRESS))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(modules), *sys.path])},
        input="7",
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.splitlines()[-1] == "7"


def test_without_a_zygote_the_launcher_is_python(modules: Path, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CONTAINER.replace("zygote.start(Path(sys.argv[1]))", "raise SystemExit"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    launcher, process = waiting(ended.stdout.strip(), modules)
    assert process.pid == launcher.pid
    launcher.kill()
    launcher.wait()


def test_a_launcher_that_asks_for_nothing_holds_up_no_other(
    container: tuple[subprocess.Popen[str], str], modules: Path
) -> None:
    process, executable = container
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(address_for(Path(executable).with_name(zygote.ADDRESS)))
        launcher, child = waiting(executable, modules)
        assert child.ppid() in [each.pid for each in psutil.Process(process.pid).children()]
        launcher.kill()
        launcher.wait()


def test_a_zygote_that_hangs_is_not_waited_for(
    container: tuple[subprocess.Popen[str], str], modules: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    process, executable = container
    directory = Path(executable).parent
    [parent] = psutil.Process(process.pid).children()
    parent.suspend()
    try:
        launcher, child = waiting(zygote.executable(directory, patience_s=0.5), modules)
        assert child.pid == launcher.pid
        assert "The zygote gave no process for waits (timed out)." in capfd.readouterr().err
    finally:
        parent.resume()
        zygote.executable(directory, patience_s=60.0)
    launcher.kill()
    launcher.wait()
    launcher, child = waiting(executable, modules)
    assert child.ppid() == parent.pid
    launcher.kill()
    launcher.wait()


def test_children_and_what_they_fork_die_with_the_container(modules: Path, tmp_path: Path) -> None:
    with a_container(tmp_path) as (process, executable):
        launcher, child = waiting(executable, modules)
        parent, grandchild = waiting(executable, modules, "forks")
        process.kill()
        process.wait()
        psutil.wait_procs([child, grandchild], timeout=10)
        assert [each for each in (child, grandchild) if is_running(each)] == []
        assert (launcher.wait(10), parent.wait(10)) == (1, 1)


def waiting(executable: str, modules: Path, module: str = "waits") -> tuple[subprocess.Popen[str], psutil.Process]:
    """A launcher and the process behind it that says who it is, and waits."""
    environment = {**os.environ, "PYTHONPATH": str(modules), "PYTHONUNBUFFERED": "YES"}  # as Spark has it
    launcher = subprocess.Popen([executable, "-m", module], env=environment, stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    return launcher, psutil.Process(int(launcher.stdout.readline()))


def is_running(process: psutil.Process) -> bool:
    """Whether it is more than a zombie."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def address_for(path: Path) -> str:
    """A name for a socket that is short enough."""
    return f"/proc/self/fd/{os.open(path.parent, os.O_RDONLY)}/{path.name}"
