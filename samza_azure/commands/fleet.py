"""Several processors on this machine, and their status, read from the account: for `dev`, the demo and tests."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from samza_azure.config import LOG, Config
from samza_azure.errors import StorageUnavailable, TimedOut
from samza_azure.group.control import Control
from samza_azure.group.rows import ProcessorRow
from samza_azure.host.status import document, read
from samza_azure.logs.names import source_log, source_partition
from samza_azure.machine.processes import die_with_parent
from samza_azure.storage.connection import Account
from samza_azure.stream_io.log import LogReader

POLL_S = 0.1


class Fleet:
    """Processors of one job, each with a log file in `directory`. They die with this process."""

    def __init__(self, job: Path, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        self.job, self.directory = job, directory
        self.environment = {**os.environ, **(environment or {})}
        self.config = Config.load(job, environment=self.environment)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        directory.mkdir(parents=True, exist_ok=True)

    def start(self, processor_id: str, *options: str) -> None:
        """Start one processor. Call it on the main thread: the processor dies with the thread that started it."""
        command = [sys.executable, "-P", "-m", "samza_azure", "run", str(self.job), "--id", processor_id, *options]
        with self.log_file(processor_id).open("ab") as output:
            self.processes[processor_id] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def log_file(self, processor_id: str) -> Path:
        """The path of the processor's log."""
        return self.directory / f"{processor_id}.log"

    def send(self, processor_id: str, number: signal.Signals) -> None:
        """Send a signal to one processor's supervisor."""
        self.processes[processor_id].send_signal(number)

    def alive(self) -> list[str]:
        """The ids of the processors that run."""
        return [name for name, process in self.processes.items() if process.poll() is None]

    def exit_codes(self, timeout_s: float) -> dict[str, int]:
        """Wait until all have ended by themselves; return their exit codes. Raise `TimedOut` if they do not."""
        deadline = time.monotonic() + timeout_s
        codes = {}
        for name, process in self.processes.items():
            try:
                codes[name] = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise TimedOut(f"Processor {name} still runs after {timeout_s:g} s.") from None
        return codes

    def stop(self) -> None:
        """Kill all processors that still run; their children die with them."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
        for process in self.processes.values():
            process.wait()

    def status(self) -> dict[str, Any]:
        """The status document, read from the account now."""
        return document(self.config.app.name, *self.look())

    def look(self) -> tuple[Control | None, list[ProcessorRow]]:
        """The control blob and the processors' rows, read from the account now."""
        return asyncio.run(self._look())

    async def _look(self) -> tuple[Control | None, list[ProcessorRow]]:
        account = Account.from_config(self.config.storage)
        try:
            account.ensure_created()
            return await read(account)
        finally:
            await account.aclose()

    def unread(self, shown: Mapping[str, Any]) -> int:
        """Rows of the source streams that no appended batch has read yet. `shown` is a status document."""
        sources = {
            name: stream.partitions
            for name, stream in self.config.streams.items()
            if stream.schema and stream.system == LOG
        }
        begin = {
            source_partition(name, number): (0, 0)
            for name, partitions in sources.items()
            for number in range(partitions)
        }
        account = Account.from_config(self.config.storage)
        try:
            return sum(
                LogReader(account.blobs(), source_log(partition)).scan((blob, position)).rows
                for partition, (blob, position) in {**begin, **shown["read"]}.items()
            )
        finally:
            account.close()

    def wait_until(self, what: str, holds: Callable[[dict[str, Any]], bool], timeout_s: float) -> dict[str, Any]:
        """Poll the status until `holds`; return it. An account that does not answer is asked again. Raise `TimedOut`
        with the last status, or what was said in place of it, otherwise.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                shown = self.status()
                if holds(shown):
                    return shown
                last = f"The status was {shown}."
            except StorageUnavailable as error:
                last = str(error)
            if time.monotonic() > deadline:
                raise TimedOut(f"Not within {timeout_s:g} s: {what}. {last}")
            time.sleep(POLL_S)


def all_running(shown: dict[str, Any]) -> bool:
    """Whether there are tasks, and every task is RUNNING."""
    return bool(shown["tasks"]) and all(task["phase"] == "RUNNING" for task in shown["tasks"])
