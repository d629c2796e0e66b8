"""A mistake of a first hour in front of a command: what is on the screen, how it ends, and whether the remedy works."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from samza_azure.commands.dev import VARIABLE
from samza_azure.commands.fleet import Fleet, all_running
from tests.commands.mistakes import JOB, PIPELINE, Mistake

COLUMNS = 100
PATIENCE_S = 180.0
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


_LINE = re.compile(r"(?:(?<=job\.toml, line )|(?<=\] is in line ))\d+")


def _behind_the_account(line: re.Match[str]) -> str:
    """Where a line of `JOB` is behind the two that `write` adds to the account."""
    number = int(line[0])
    return str(number + 2 if number > JOB[: JOB.index("connect")].count("\n") + 1 else number)


class Screen:
    """A command on a terminal of its own, and all that was shown there."""

    def __init__(self, folder: Path, environment: dict[str, str], *arguments: str) -> None:
        self._master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            command(*arguments), cwd=folder, env={**environment, "TERM": "xterm"},
            stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal, start_new_session=True,
        )  # fmt: skip
        os.close(terminal)
        self._shown = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # the other end of the terminal is closed
            while data := os.read(self._master, 1 << 16):
                self._shown += data
        os.close(self._master)

    @property
    def text(self) -> str:
        """What was shown, without colours and movements."""
        return ESCAPE.sub("", self._shown.decode(errors="replace"))

    def ended(self) -> int:
        """Wait for the end of the command; its exit code."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "samza_azure", *arguments]  # as the script: without the present folder


def flat(text: str) -> str:
    """Without spaces and line breaks: a terminal folds long lines."""
    return "".join(text.split())


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(0.2)  # the pace of asking


class Play:
    """One mistake, in a folder and a container of the account of its own."""

    def __init__(self, folder: Path, connect: str, mistake: Mistake) -> None:
        self.folder, self.mistake = folder, mistake
        self.job = folder / "job.toml"
        self.nowhere = {name: value for name, value in os.environ.items() if name != VARIABLE}  # dev brings its account
        self.environment = {**self.nowhere, VARIABLE: connect}
        folder.mkdir()

    def write(self, text: str) -> tuple[str, str]:
        """The job and the pipeline with this text in the place of the right one; what they are then."""
        job, pipeline = (each.replace(self.mistake.right, text).replace("MODULE", "shop") for each in (JOB, PIPELINE))
        (self.folder / "shop.py").write_text(pipeline)
        account = f'connect = "${{{VARIABLE}}}"\ncontainer = "{self.folder.name}"\ntable = "{self.folder.name}"'
        own = f'\n[processor]\ndir = "{self.folder / "processors"}"\n'
        self.job.write_text(job.replace('connect = "${NO_SUCH_VARIABLE}"', account) + own)
        return job, pipeline

    def mistaken(self) -> None:
        self.write(self.mistake.wrong)

    def remedied(self) -> tuple[str, str]:
        return self.write(self.mistake.remedy or self.mistake.right)

    def ended(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command(*arguments), cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip

    def is_printed(self, shown: str) -> None:
        """The message is there, with its place and the line to paste."""
        for told in (*self.mistake.told, self.mistake.advised):
            part = _LINE.sub(_behind_the_account, told)
            assert flat(part.replace("MODULE", "shop")) in flat(shown), f"{part!r} is not shown:\n{shown}"
        places = (f"{self.folder / 'shop.py'}, line ", str(self.job))
        assert any(flat(place) in flat(shown) for place in places), f"no file is named:\n{shown}"
        assert "Traceback" not in shown, shown

    def check(self) -> "subprocess.CompletedProcess[str]":
        return self.ended("check", str(self.job), *([] if self.mistake.needs_spark else ["--quick"]))

    def is_refused_by_check(self) -> None:
        ended = self.check()
        self.is_printed(ended.stderr)
        assert (ended.returncode, ended.stdout) == (2, "")

    def is_refused_by_run(self) -> None:
        ended = self.ended("run", str(self.job), "--id", "one")
        self.is_printed(ended.stderr)
        assert ended.returncode == 2

    def is_refused_by_dev(self) -> None:
        screen = Screen(self.folder, self.nowhere, "dev", str(self.job), "--processors", "1")
        try:
            code = screen.ended()
        finally:
            screen.process.kill()
        self.is_printed(screen.text)
        assert code == 2

    def passes_check(self) -> None:
        ended = self.check()
        assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr

    def runs(self) -> None:
        fleet = Fleet(self.job, self.folder / "logs", self.environment)
        try:
            fleet.start("one")
            fleet.wait_until("all tasks run", all_running, PATIENCE_S)
            fleet.send("one", signal.SIGTERM)
            assert fleet.exit_codes(PATIENCE_S) == {"one": 0}
        finally:
            fleet.stop()

    def is_mended_in_dev(self) -> None:
        """While `dev --reload` shows the mistake, the remedy is saved, and all tasks run."""
        self.mistaken()
        screen = Screen(self.folder, self.nowhere, "dev", str(self.job), "--processors", "1", "--reload")
        try:
            told = _LINE.sub(_behind_the_account, self.mistake.told[0]).replace("MODULE", "shop")
            until(lambda: flat(told) in flat(screen.text), "the mistake")
            self.remedied()
            until(lambda: "1processorstarted" in flat(screen.text), "a processor")
            [connect] = set(re.findall(rf"export {VARIABLE}='(.*)'", screen.text))
            fleet = Fleet(self.job, self.folder / "logs", {**self.environment, VARIABLE: connect})
            fleet.wait_until("all tasks run", all_running, PATIENCE_S)
            screen.process.send_signal(signal.SIGINT)
            assert screen.ended() == 0
        finally:
            screen.process.kill()
