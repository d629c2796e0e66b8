"""Fork Spark's Python processes from one that has imported what they need: 30 ms each instead of a second.

Spark starts a Python process per source and some more per session, each by running an executable that it takes for
Python. Here this is `launcher.py`. It asks the zygote for a child with its own arguments, environment and open files,
and ends when the child ends. If the zygote does not answer, the launcher becomes Python itself, which is slow.
Promised: to Spark a child looks like a fresh process; the child and its own children die when the launcher is killed
or the container dies. Not promised: that a child imports a module again that is imported here.
"""

import fcntl
import gc
import importlib
import logging
import os
import runpy
import shlex
import signal
import socket
import sys
import traceback
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from pyspark import util

from samza_azure.errors import ConfigError
from samza_azure.machine.processes import die_with_parent
from samza_azure.spark.jvm.launcher import APPENDED_PATH
from samza_azure.user_code import note_values

#: The modules that Spark's Python processes import. Missing ones are skipped: pyspark uses pandas if it is installed.
MODULES = (
    "pandas",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.worker",
    "samza_azure.tasks.poller",
    "samza_azure.storage.blobs",
    "samza_azure.storage.connection",
)
ADDRESS = "zygote"
#: What executors start as Python.
NAME = "python3"
FILES = 4


def executable(directory: Path, patience_s: float = 5.0) -> str:
    """The script that Spark runs as `python`; Python itself if files in the directory cannot be executed.

    `patience_s` is how long the script waits for the zygote's answer before it becomes Python itself.
    """
    launcher = Path(__file__).with_name("launcher.py")
    arguments = [sys.executable, str(directory / ADDRESS), str(patience_s)]
    command = shlex.join([sys.executable, "-IS", str(launcher), *arguments])
    script = directory / "python"
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    script.chmod(0o700)
    return str(script) if os.access(script, os.X_OK) else sys.executable


def on_path(python: str, environment: MutableMapping[str, str], directory: Path) -> str:
    """Put what `executable` returns first on the PATH, and return its name there: on another machine the same name is
    that machine's own Python.
    """
    folder = directory / "bin"
    folder.mkdir(exist_ok=True)
    script = folder / NAME
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(python)} "$@"\n')
    script.chmod(0o700)
    first = folder if os.access(script, os.X_OK) else Path(sys.executable).parent
    environment["PATH"] = os.pathsep.join([str(first), environment.get("PATH", os.defpath)])
    return NAME


def start(directory: Path, packages: Sequence[str] = ()) -> None:
    """Import what Spark's processes need, then fork the zygote. Call this while the process has no other thread.

    `packages` are the user's. Raise ConfigError if one of them cannot be imported.
    """
    _say_values()
    for name in MODULES:
        with suppress(ImportError):
            importlib.import_module(name)
    for name in packages:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise ConfigError(
                f"app.packages names {name}, which cannot be imported ({type(error).__name__}: {error}). "
                "Install it on each machine that runs a processor, or remove it from the list."
            ) from error
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        _bind(listener, directory / ADDRESS)
        parent = os.getpid()
        if os.fork() == 0:
            try:
                die_with_parent()
                if os.getppid() == parent:
                    _serve(listener)
            finally:
                os._exit(1)  # the zygote must not run the rest of the container's code


def _say_values() -> None:
    """Let an error of a user's function say what it was called with. pyspark's modules import what is replaced here."""
    to_spark = util.handle_worker_exception

    def handle_worker_exception(e: BaseException, *arguments: Any, **named: Any) -> None:
        note_values(e)
        to_spark(e, *arguments, **named)

    util.handle_worker_exception = handle_worker_exception


def _bind(listener: socket.socket, address: Path) -> None:
    """Listen at a path of any length, for this user only. The name of a socket is limited to 108 bytes."""
    folder = os.open(address.parent, os.O_RDONLY | os.O_DIRECTORY)
    before = os.umask(0o177)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{address.name}")
    finally:
        os.umask(before)
        os.close(folder)
    listener.listen(64)


def _serve(listener: socket.socket) -> NoReturn:
    """Fork a child for each launcher, until the container dies."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to answer
    _forget_files(listener.fileno())
    logging.root.handlers.clear()
    gc.collect()
    gc.freeze()  # keep the memory pages of all present objects shared
    zygote = os.getpid()
    while True:
        connection, _ = listener.accept()
        with connection, suppress(OSError):  # if the machine cannot fork, the launcher gets no answer
            if os.fork() == 0:
                listener.close()
                _answer(connection, zygote)


def _forget_files(kept: int) -> None:
    """Close the container's files. The supervisor must notice when its socket is closed, so no copy may stay open."""
    for name in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if name > 2 and name != kept:
            with suppress(OSError):
                os.close(name)


def _request(connection: socket.socket) -> tuple[list[str], dict[bytes, bytes], bytes, list[int]]:
    """Read what a launcher sends: its files, then three lists of strings, each string followed by a zero byte."""
    _, files, _, _ = socket.recv_fds(connection, 1, FILES)
    with connection.makefile("rb") as stream:
        arguments, environment, directory = (_strings(stream.read(int(stream.readline()))) for _ in range(3))
    pairs = (entry.partition(b"=") for entry in environment)
    return [each.decode() for each in arguments], {name: value for name, _, value in pairs}, directory[0], files


def _strings(data: bytes) -> list[bytes]:
    return data.split(b"\0")[:-1]


def _answer(connection: socket.socket, zygote: int) -> NoReturn:
    """In the child: read the request and run it. A launcher that hangs meanwhile does not block the zygote."""
    try:
        die_with_parent()
        if os.getppid() == zygote:
            with suppress(OSError, ValueError, IndexError):  # the launcher was gone before its request was complete
                arguments, environment, directory, (*files, launcher) = _request(connection)
                _take(environment, directory, files)
                _die_with_launcher(connection, launcher)
                connection.send(b"\0")  # from now on the launcher waits until this process ends
                _become(connection, arguments)
    finally:
        os._exit(1)


def _take(environment: dict[bytes, bytes], directory: bytes, files: Sequence[int]) -> None:
    """Take over the launcher's files, environment and directory."""
    for number, each in enumerate(files):
        os.dup2(each, number)
        os.close(each)
    sys.stdout = os.fdopen(1, "w", 1, closefd=False)  # line-buffered, since nothing flushes it at the end
    os.chdir(directory)
    os.environb.clear()
    os.environb.update(environment)
    sys.path[:0] = _folders("PYTHONPATH")
    sys.path += _folders(APPENDED_PATH)


def _folders(name: str) -> list[str]:
    """The folders in a variable of the environment that are not in `sys.path`."""
    return [path for path in os.environ.get(name, "").split(os.pathsep) if path and path not in sys.path]


def _become(connection: socket.socket, arguments: Sequence[str]) -> NoReturn:
    """Run the requested module as `__main__`, then send the exit code to the launcher."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["-m", *arguments[2:]]
    code = 1
    try:
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  # as Python itself does at the top
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
            connection.send(bytes([code & 0xFF]))
        os._exit(code & 0xFF)


def _die_with_launcher(connection: socket.socket, launcher: int) -> None:
    """Spark kills a process by killing its launcher. That closes the pipe's other end: the kernel sends us SIGTERM."""
    ours = os.getpid()

    def after_fork() -> None:
        connection.close()
        os.close(launcher)
        if os.getppid() == ours:  # pyspark's daemon forks workers, and one may be busy in a user's function
            die_with_parent()

    os.register_at_fork(after_in_child=after_fork)
    fcntl.fcntl(launcher, fcntl.F_SETOWN, ours)
    fcntl.fcntl(launcher, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(launcher, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    with suppress(BlockingIOError):  # nothing is ever written, so an answer means that the pipe is closed
        os.read(launcher, 1)
        os._exit(1)  # the launcher was killed before this, or no longer waits
