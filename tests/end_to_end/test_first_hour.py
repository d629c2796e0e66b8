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


def name_of(before: str) -> str:
    """The name of the file whose content follows this text."""
    return re.findall(r"`([\w-]+\.\w+)`", before)[-1]


def as_run(line: str, python: str = sys.executable) -> list[str]:
    """A command of the page; `samza-azure` is that of this Python."""
    program, *arguments = shlex.split(line)
    return [python, "-m", "samza_azure", *arguments] if program == "samza-azure" else [program, *arguments]


def test_the_first_hour_goes_as_its_page_says(tmp_path: Path) -> None:
    play(tmp_path)


def play(folder: Path, python: str = sys.executable) -> None:
    """Type what the page says into a shell in this folder, and compare what is answered."""
    environment = {name: value for name, value in os.environ.items() if name != "AZURE_STORAGE_CONNECTION_STRING"}
    environment["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1"  # an hour that takes one does not pay for more
    dev: subprocess.Popen[str] | None = None
    said: list[str] = []
    compared = 0
    try:
        for kind, text, before in blocks():
            if kind in FILES:
                (folder / name_of(before)).write_text(text)
            elif text.startswith("samza-azure dev"):
                dev = subprocess.Popen(
                    as_run(text.strip(), python), cwd=folder, env=environment, text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                )  # fmt: skip
                environment["AZURE_STORAGE_CONNECTION_STRING"] = pasted(dev, said)
            elif kind == "console":
                for command in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                    line, *expected = command.splitlines()
                    if line.startswith("kill "):
                        os.kill(number_of("dev-1", said), signal.SIGKILL)
                        continue
                    answered(as_run(line, python), expected, folder, environment)
                    compared += len(expected)
        assert compared == 17
        assert dev is not None and dev.poll() is None
        dev.send_signal(signal.SIGINT)
        assert dev.wait(60) == 0
    finally:
        if dev is not None:
            dev.kill()


def pasted(dev: "subprocess.Popen[str]", said: list[str]) -> str:
    """The connection string in the line that dev prints. What it prints later is added to `said`."""
    assert dev.stdout is not None
    for line in dev.stdout:
        if found := re.search(r"export AZURE_STORAGE_CONNECTION_STRING='(.*)'", line):
            threading.Thread(target=said.extend, args=(dev.stdout,), daemon=True).start()
            return found[1]
    raise AssertionError("dev has ended")


def number_of(processor: str, said: list[str]) -> int:
    """The process that a processor is, as dev has said it."""
    found = re.search(rf"\b{processor} is process (\d+)", "".join(said))
    assert found is not None, said
    return int(found[1])


def like(line: str) -> str:
    """A line without what differs each time: whatever has a digit in it, which processor leads, and spaces."""
    return " ".join(re.sub(r"\S*\d\S*", "#", line.replace("(leads)", "")).split())


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
        if set(map(like, expected)) <= set(map(like, ended.stdout.splitlines())):
            return
        assert time.monotonic() < deadline, ended.stdout
        time.sleep(2)  # the pace of asking: a status takes most of a second of a processor
