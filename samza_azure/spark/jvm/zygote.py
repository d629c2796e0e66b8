"""Spark's Python processes, forked from one that has imported what they need: 30 ms each instead of a second.

Spark starts a Python process per source and some more per session, each by running an executable that it believes to be
Python. Here that is `launcher.py`, which asks the zygote for a child with its own arguments, environment and open files
and ends when that child ends. Promised: a child looks to Spark as if it had been started afresh, it dies when its
launcher is killed, and it dies with the container, and what it forks with it. Not promised: that it imports a module
anew that is imported here. When the zygote does not answer, the launcher becomes Python itself, the slow way.
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
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from samza_azure.errors import ConfigError
from samza_azure.machine import die_with_parent

#: What Spark's Python processes import. Missing ones are left out: pyspark wants pandas, if it is there.
MODULES = (
    "pandas",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.worker",
    "samza_azure.spark.source.poller",
    "samza_azure.storage.connection",
)
ADDRESS = "zygote"
FILES = 3


def executable(directory: Path) -> str:
    """The script that Spark runs as `python`; plain Python where nothing in the directory may be executed."""
    launcher = Path(__file__).with_name("launcher.py")
    command = shlex.join([sys.executable, "-IS", str(launcher), sys.executable, str(directory / ADDRESS)])
    script = directory / "python"
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    script.chmod(0o700)
    return str(script) if os.access(script, os.X_OK) else sys.executable


def start(directory: Path, packages: Sequence[str] = ()) -> None:
    """Import what Spark's processes need, then fork the zygote. Call it while this process has no other thread.

    `packages` are the user's; ConfigError if one of them cannot be imported.
    """
    for name in MODULES:
        with suppress(ImportError):
            importlib.import_module(name)
    for name in packages:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise ConfigError(
                f"app.packages names {name}, which cannot be imported ({type(error).__name__}: {error}). "
                "Install it on each machine that runs a processor, or take it out of the list."
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
                os._exit(1)  # nothing of what the container does after this is ours to do


def _bind(listener: socket.socket, address: Path) -> None:
    """Listen at a path of any length, for this user only. A socket's own name is limited to 108 bytes."""
    folder = os.open(address.parent, os.O_RDONLY | os.O_DIRECTORY)
    before = os.umask(0o177)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{address.name}")
    finally:
        os.umask(before)
        os.close(folder)
    listener.listen(64)


def _serve(listener: socket.socket) -> NoReturn:
    """Fork for whoever asks, until the container dies."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are not waited for
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to answer
    _forget_files(listener.fileno())
    logging.root.handlers.clear()
    gc.collect()
    gc.freeze()  # what is here now stays shared
    zygote = os.getpid()
    while True:
        connection, _ = listener.accept()
        with connection, suppress(OSError):  # a machine that is full forks nothing, and the launcher hears no answer
            if os.fork() == 0:
                listener.close()
                _answer(connection, zygote)


def _forget_files(kept: int) -> None:
    """Close what the container had open: above all its socket to the supervisor, whose end must be seen there."""
    for name in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if name > 2 and name != kept:
            with suppress(OSError):
                os.close(name)


def _request(connection: socket.socket) -> tuple[list[str], dict[bytes, bytes], bytes, list[int]]:
    """What a launcher sends: its files, then three lists of strings, each string with a zero byte after it."""
    _, files, _, _ = socket.recv_fds(connection, 1, FILES)
    with connection.makefile("rb") as stream:
        arguments, environment, directory = (_strings(stream.read(int(stream.readline()))) for _ in range(3))
    pairs = (entry.partition(b"=") for entry in environment)
    return [each.decode() for each in arguments], {name: value for name, _, value in pairs}, directory[0], files


def _strings(data: bytes) -> list[bytes]:
    return data.split(b"\0")[:-1]


def _answer(connection: socket.socket, zygote: int) -> NoReturn:
    """In the new process: hear what it is to be, and be that. A launcher that hangs meanwhile holds up nobody else."""
    try:
        die_with_parent()
        if os.getppid() == zygote:
            with suppress(OSError, ValueError, IndexError):  # a launcher that was gone before it had asked
                arguments, environment, directory, files = _request(connection)
                _take(environment, directory, files)
                _die_with_launcher(connection)
                connection.send(b"\0")  # from now on the launcher waits for our end
                _become(connection, arguments)
    finally:
        os._exit(1)


def _take(environment: dict[bytes, bytes], directory: bytes, files: Sequence[int]) -> None:
    """Have the launcher's files, environment and directory."""
    for number, each in enumerate(files):
        os.dup2(each, number)
        os.close(each)
    sys.stdout = os.fdopen(1, "w", 1, closefd=False)  # what is printed is seen, though nobody flushes at the end
    os.chdir(directory)
    os.environb.clear()
    os.environb.update(environment)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [path for path in paths if path not in sys.path]


def _become(connection: socket.socket, arguments: Sequence[str]) -> NoReturn:
    """Be what the launcher was asked to be, a module run as `__main__`; then tell it the exit code."""
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


def _die_with_launcher(connection: socket.socket) -> None:
    """Spark kills a process by killing the launcher. The kernel sends us SIGTERM when its end of the socket closes."""
    ours = os.getpid()

    def after_fork() -> None:
        connection.close()
        if os.getppid() == ours:  # pyspark's daemon forks its workers, and one may be deep in a user's function
            die_with_parent()

    os.register_at_fork(after_in_child=after_fork)
    fcntl.fcntl(connection, fcntl.F_SETOWN, ours)
    fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(connection, fcntl.F_SETFL, os.O_ASYNC)
    with suppress(BlockingIOError):
        if not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            os._exit(1)  # it was killed before, or waits no longer
