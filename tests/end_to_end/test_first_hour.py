"""A newcomer types what docs/first-hour.md says, and is answered what stands there. Real processes, Spark, Azurite."""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "first-hour.md").read_text()
PATIENCE_S = 240.0
#: Kinds of blocks that are files; the name is the last one before the block.
FILES = ("python", "toml", "csv", "json")


def blocks() -> list[tuple[str, str, str]]:
    """The kind and text of each block, and what stands before it."""
    found = re.split(r"^```(\w*)\n(.*?)^```\n", PAGE, flags=re.MULTILINE | re.DOTALL)
    return list(zip(found[1::3], found[2::3], found[0::3], strict=False))


def as_run(line: str) -> list[str]:
    """A command of the page; `samza-azure` is this checkout's."""
    program, *arguments = shlex.split(line)
    return [sys.executable, "-m", "samza_azure", *arguments] if program == "samza-azure" else [program, *arguments]


def test_the_first_hour_goes_as_its_page_says(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "AZURE_STORAGE_CONNECTION_STRING"}
    dev: subprocess.Popen[str] | None = None
    compared = 0
    try:
        for kind, text, before in blocks():
            if kind in FILES:
                [*_, name] = re.findall(r"`([\w-]+\.\w+)`", before)
                (tmp_path / name).write_text(text)
            elif text.startswith("samza-azure dev"):
                dev = subprocess.Popen(
                    as_run(text.strip()), cwd=tmp_path, env=environment, text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                )  # fmt: skip
                environment["AZURE_STORAGE_CONNECTION_STRING"] = pasted(dev)
            elif kind == "console":
                for command in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                    line, *expected = command.splitlines()
                    answered(as_run(line), expected, tmp_path, environment)
                    compared += len(expected)
        assert compared == 10
        assert dev is not None and dev.poll() is None
        dev.send_signal(signal.SIGINT)
        assert dev.wait(60) == 0
    finally:
        if dev is not None:
            dev.kill()


def pasted(dev: "subprocess.Popen[str]") -> str:
    """The connection string in the line that dev prints. What it prints later is read, and thrown away."""
    assert dev.stdout is not None
    for line in dev.stdout:
        if found := re.search(r"export AZURE_STORAGE_CONNECTION_STRING='(.*)'", line):
            threading.Thread(target=dev.stdout.read, daemon=True).start()
            return found[1]
    raise AssertionError("dev has ended")


def answered(command: list[str], expected: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Run a command until it answers as the page says. Only `status` may take more than one try."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        environment = {**environment, "LC_ALL": "C"}
        ended = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert ended.returncode == 0 or "status" in command, ended.stderr
        if "status" not in command:
            assert not expected or ended.stdout.splitlines() == expected, ended.stderr
            return
        lines = ended.stdout.splitlines()
        if all(any(task in line and "RUNNING" in line for line in lines) for task in expected):
            return
        assert time.monotonic() < deadline, ended.stdout
        time.sleep(0.5)  # the pace of asking
