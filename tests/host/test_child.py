"""The log that a container writes, seen by the process that started it."""

import subprocess
import sys
from pathlib import Path

import pytest

from samza_azure.host.child import LOG_BYTES, Child, last_error


def test_a_long_log_is_cut_and_kept_once_beside_while_others_write_to_it(tmp_path: Path) -> None:
    """For a year the JVM writes to the descriptor that it was given at its start."""
    log = tmp_path / "container.log"
    log.write_bytes(b"before\n" * (LOG_BYTES // 7 + 1))
    child = Child(tmp_path / "no-such-job.toml", tmp_path / "container", log)
    try:
        assert log.stat().st_size < LOG_BYTES
        assert (tmp_path / "container.log.1").read_bytes().startswith(b"before\n")
        child.end(60)
        with log.open("ab") as container:
            container.write(b"x" * LOG_BYTES)
            container.flush()
            child.cut_log()
            container.write(b"after\n")

        assert log.read_bytes() == b"after\n"
        assert (tmp_path / "container.log.1").read_bytes().endswith(bytes(LOG_BYTES).replace(b"\0", b"x"))
        child.cut_log()
        assert log.read_bytes() == b"after\n"
    finally:
        child.kill()


def test_the_environment_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Arrow's own allocator had given to threads that had ended was never given back. The user may choose another.

    Hashes are not the user's choice: a key that is made of one would differ between processors.
    """
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    child = Child(tmp_path / "no-such-job.toml", tmp_path / "container", tmp_path / "container.log")
    try:
        environment = dict(
            each.split("=", 1) for each in Path(f"/proc/{child.pid}/environ").read_text().split("\0") if each
        )
    finally:
        child.kill()
    program = "import pyarrow; print(pyarrow.default_memory_pool().backend_name)"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "system\n"
    assert environment["MALLOC_ARENA_MAX"] == "4"
    assert environment["PYTHONHASHSEED"] == "0"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", ""),
        ("2026 INFO all is well\n", ""),
        ("Traceback (most recent call last):\n  File x\nValueError: no [red] file\n", "ValueError: no [red] file"),
        (
            "java.lang.OutOfMemoryError: Java heap space\n\tat x.Y.z(Y.java:1)\n",
            "java.lang.OutOfMemoryError: Java heap space",
        ),
        (
            "java.io.IOException: No space left on device\n\tat x\nsamza_azure.errors.SamzaAzureError: it ended\nbye\n",
            "java.io.IOException: No space left on device",
        ),
        ("A java.lang.X: 1\nCaused by: org.a.BException: two\n", "org.a.BException: two"),
    ],
)
def test_the_last_error_of_a_dead_container_is_quoted(tmp_path: Path, log: str, said: str) -> None:
    (tmp_path / "container.log").write_text(log)
    assert last_error(tmp_path / "container.log") == said


def test_the_error_of_an_earlier_container_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "container.log").write_text("ValueError: old\n")
    assert last_error(tmp_path / "container.log", since=16) == ""
    assert last_error(tmp_path / "container.log", since=1 << 20) == "ValueError: old"  # the log was cut since


def test_a_container_that_left_no_log_said_nothing(tmp_path: Path) -> None:
    assert last_error(tmp_path / "container.log") == ""
