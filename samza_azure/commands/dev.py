"""`samza-azure dev`: the emulator and a few processors on this machine, in one live view.

The data stays until dev ends: a drain ends the processors, and the emulator runs on, for `export` and the next run.
With `--data` the data outlives dev, too.
"""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.fleet import Fleet
from samza_azure.commands.job import Job, processors_of, refuse_unseen
from samza_azure.commands.local_systems import start_brokers, start_hubs
from samza_azure.commands.logs import last_entry
from samza_azure.commands.show import starting, status_view
from samza_azure.commands.status import Judge
from samza_azure.commands.terminal import console, counted, error_lines, if_interrupted, printable, say
from samza_azure.config import Config
from samza_azure.errors import ConfigError, SamzaAzureError, StorageUnavailable
from samza_azure.machine.processes import how_it_ended

VARIABLE = "AZURE_STORAGE_CONNECTION_STRING"
REFRESH_S = 1.0
PROCESSORS = 2
CORRECT = "Correct it; the processors start when it is saved."


def develop(job: Path, processors: int | None, data: Path | None, *, reload: bool, new_run: bool = False) -> int:
    """Run until Ctrl-C, or until processors fail. Return the highest of their exit codes."""
    with ExitStack() as ends:
        return _develop(job, processors, data, ends, reload=reload, new_run=new_run)


def _develop(
    job: Path, processors: int | None, data: Path | None, ends: ExitStack, *, reload: bool, new_run: bool
) -> int:
    local_hubs = start_hubs(job, ends, keeps_data=data is not None)
    local_brokers = start_brokers(job, ends, keeps_data=data is not None)
    if (config := _config(job)) is not None:
        _number(config, processors)
    checking = _check(job)  # while the emulator starts
    with Azurite(say=say, data=data).start() as emulator:
        os.environ[VARIABLE] = emulator.connection_string
        if (refused := _said_by(checking)) and not reload:
            _refuse_other_storage(Config.load(job), emulator)
            say(refused)
            return ConfigError.exit_code
        if refused and not _loads(job):
            say(f"{refused}\n{CORRECT}")
            refused = _until_it_loads(job)
        say(f"For other commands in another terminal:\n  export {VARIABLE}='{emulator.connection_string}'")
        for name, connect in local_hubs.items():
            say(f"  export {name}='{connect}'  # an Event Hubs on this machine, empty, and gone with dev")
        for name, brokers in local_brokers.items():
            say(f"  export {name}='{brokers}'  # a broker of Kafka's protocol on this machine, gone with dev")
        directory = Path(tempfile.mkdtemp(prefix="samza-azure-dev-"))
        fleet = Fleet(job, directory)
        _refuse_other_storage(fleet.config, emulator)
        view = _View(fleet, _number(fleet.config, processors), data, reload=reload, new_run=new_run)
        try:
            code = view.watch(refused)
        finally:
            fleet.stop()
    kept = f"The data is kept in {data}: {again(job, data)} goes on." if data else "The data is gone with it."
    say(f"The emulator has ended. {kept} The processors' logs are in {directory}.")
    return code


def again(job: Path, data: Path | None) -> str:
    """The command that goes on with the data."""
    return shlex.join(["samza-azure", "dev", str(job), *(["--data", str(data)] if data else [])])


def _config(job: Path) -> Config | None:
    """The job file as it is, before there is an account; None if it has mistakes, which the check reports."""
    try:
        return Config.load(job, reaches_storage=False)
    except ConfigError:
        return None


def _number(config: Config, asked: int | None) -> int:
    """How many processors there are to be. Raise `ConfigError` if none of them would be seen."""
    refuse_unseen(config)
    return processors_of(config, asked, PROCESSORS)


def _loads(job: Path) -> bool:
    try:
        Config.load(job)
    except ConfigError:
        return False
    return True


def _until_it_loads(job: Path) -> str:
    """Wait until the job file can be loaded: there is no fleet without it. Return the mistakes that are left."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the emulator ends with this process
    with if_interrupted("No processor was started."):
        while not _loads(job):
            time.sleep(REFRESH_S)
    return _said_by(_check(job))


def _check(job: Path) -> "subprocess.Popen[str]":
    """Start `check --quick` in the background."""
    command = [sys.executable, "-P", "-m", "samza_azure", "check", str(job), "--quick"]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=pipe, text=True, errors="replace")


def _said_by(checking: "subprocess.Popen[str]") -> str:
    """The mistakes that the check has found; empty if it has found none."""
    _, output = checking.communicate()
    return output.strip() if checking.returncode else ""


def _refuse_other_storage(config: Config, emulator: Azurite) -> None:
    """Raise `ConfigError` if the job file names another account, which a trial on this machine must not change."""
    connect = config.storage.connect
    if connect is None or connect.value != emulator.connection_string:
        raise ConfigError(
            f"{config.path} names a storage account, but dev runs its own emulator. Take the account from the "
            f'environment: azure.storage.connect = "${{{VARIABLE}}}". Or start processors with: samza-azure run.'
        )


class _View:
    """Starts the fleet, shows it, and starts it again when the code has changed."""

    def __init__(
        self, fleet: Fleet, processors: int, data: Path | None, *, reload: bool, new_run: bool = False
    ) -> None:
        self._fleet, self._processors, self._data, self._reload = fleet, processors, data, reload
        self._new_run = new_run  # for the first processors only: a changed file does not ask for another run
        self._is_explained = new_run  # whether it has been printed how the next run begins
        self._ends = 0  # Ctrl-C and SIGTERM so far
        self._seen = _code(fleet.job) if reload else {}
        self._is_live = sys.stderr.isatty()
        self._shown = ""
        self._killed = set[str]()  # the processors that a signal has ended
        self._have_joined = False  # whether the processors that were started last have rows
        self._live = Live(console=console(sys.stderr), auto_refresh=False)

    @cached_property
    def _judge(self) -> Judge:
        return Judge(self._fleet.config)

    def watch(self, refused: str) -> int:
        """Run until a signal, or until processors have failed and are not started again. Return the exit code."""
        signal.signal(signal.SIGINT, self._end)
        signal.signal(signal.SIGTERM, self._end)
        with self._live:
            if refused:
                self._say(f"{refused}\n{CORRECT}")
            else:
                self._start()
            code, is_explained = 0, bool(refused)
            while True:
                alive = self._fleet.alive()  # looked at once a turn: they may end while they are shown
                self._tell_killed(alive)
                if alive:
                    is_explained = False
                    self._show()
                else:
                    if not is_explained:
                        code, is_explained = self._ended(), True
                    if self._ends or (code and not self._reload):
                        return code
                if self._reload and not self._ends and self._has_changed():
                    self._start_again()
                time.sleep(REFRESH_S)

    def _start(self) -> None:
        for number in range(self._processors):
            if self._ends:  # a signal that came meanwhile was for all of them
                return
            self._fleet.start(f"dev-{number}", *(["--new-run"] if self._new_run else []))
        which = ", ".join(f"{name} is process {process.pid}" for name, process in self._fleet.processes.items())
        self._say(
            f"{counted(self._processors, 'processor')} started ({which}); their logs are in {self._fleet.directory}. "
            "Ctrl-C ends them in order."
        )
        self._have_joined = False
        self._killed.clear()
        self._update(starting(self._processors))
        self._new_run = False

    def _tell_killed(self, alive: list[str]) -> None:
        """Say which processors a signal has ended, unless dev has sent it."""
        for name, process in self._fleet.processes.items():
            if process.returncode is not None and process.returncode < 0 and name not in self._killed:
                self._killed.add(name)
                if not self._ends:
                    rest = f"; {', '.join(alive)} {'goes' if len(alive) == 1 else 'go'} on" if alive else ""
                    self._say(f"{name} {how_it_ended(process.returncode)}{rest}.")

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._ends += 1
        if alive := self._fleet.alive():
            how = "end in order; press Ctrl-C again to kill them" if self._ends == 1 else "are killed"
            self._say(f"{', '.join(alive)} {how}.")
        for name in alive:
            self._fleet.send(name, signal.SIGTERM if self._ends == 1 else signal.SIGKILL)

    def _show(self) -> None:
        try:
            shown = self._judge.document(*self._fleet.look())
        except StorageUnavailable as error:
            self._judge.forget()
            self._say(str(error))
            return
        except SamzaAzureError as error:
            if not self._ends:  # the second time it would kill them
                self._say(str(error))
                self._end(signal.SIGTERM, None)
            return
        if shown["phase"] == "DRAINED" and not self._is_explained:
            self._say(
                f"Run {shown['run_id']} in {self._data} is drained. A pipeline that has had its run waits or ends; "
                f"for the next run, which reads on from there: Ctrl-C, and {again(self._fleet.job, self._data)} "
                "--new-run. A changed pipeline begins it by itself."
            )
        self._is_explained = True
        self._have_joined |= shown["phase"] != "STOPPED"
        if self._have_joined:
            self._update(_in_one_line(shown), status_view(shown))

    def _update(self, line: str, view: RenderableType | None = None) -> None:
        """Show the view in place on a terminal; elsewhere print the line if it has changed."""
        if self._is_live:
            self._live.update(view or Text(line), refresh=True)
        elif line != self._shown:
            self._shown = line
            self._say(line)

    def _ended(self) -> int:
        """Print the messages of processors that ended, and whether the data stays. Return the highest exit code."""
        # A signal came from dev, before they listened, or from a user who tries what happens then.
        codes = {name: max(code, 0) for name, code in self._fleet.exit_codes(0.0).items()}
        endings: dict[tuple[int, str], list[str]] = {}
        for name, code in codes.items():
            if code:
                endings.setdefault((code, last_entry(self._fleet.log_file(name), name)), []).append(name)
        for (code, text), names in endings.items():
            self._say(f"{', '.join(names)} exited with {code}: {error_lines(text, 20)}")
        worst = max(codes.values(), default=0)
        if not self._ends and (self._reload or not worst):
            self._show()
            end = f"keeps the data in {self._data}" if self._data else "forgets the data (dev --data DIR keeps it)"
            more = " A change of the code starts the processors again." if self._reload else ""
            self._say(
                f"All processors have ended. The emulator runs on, for export and other commands; Ctrl-C ends it and "
                f"{end}.{more}"
            )
        return worst

    def _has_changed(self) -> bool:
        code = _code(self._fleet.job)
        changed, self._seen = code != self._seen, code
        return changed

    def _start_again(self) -> None:
        """Start the saved code, if it passes the check; otherwise the running processors go on."""
        if refused := _said_by(_check(self._fleet.job)):
            self._say(f"{refused}\nThe saved code is not started; the running processors go on.")
            return
        self._say("The code has changed: the processors start again.")
        for name in self._fleet.alive():
            self._fleet.send(name, signal.SIGTERM)
        while self._fleet.alive() and self._ends < 2:
            time.sleep(REFRESH_S / 10)
        if not self._ends:
            self._start()

    def _say(self, text: str) -> None:
        """Print above the live view, if there is one."""
        if self._is_live:
            self._live.console.print(Text(printable(text), overflow="fold"))
        else:
            say(text)


def _code(job: Path) -> dict[Path, int]:
    """The job file and the Python files beside it, with the times at which they were changed."""
    found = {}
    for path in [job, *_python_files(job.absolute().parent)]:
        with suppress(FileNotFoundError):  # it is being saved, or was deleted
            found[path] = path.stat().st_mtime_ns
    return found


def _python_files(directory: Path) -> Iterator[Path]:
    """The Python files below a folder, without hidden folders: Spark deletes files in that of the processors."""
    for folder, below, files in os.walk(directory):
        below[:] = [name for name in below if not name.startswith((".", "__"))]
        yield from (Path(folder, name) for name in files if name.endswith(".py") and not name.startswith("."))


def _in_one_line(shown: dict[str, Any]) -> str:
    """The status as one line, for output that is not a terminal."""
    phases = [task["phase"] for task in shown["tasks"]]
    tasks = ", ".join(f"{phases.count(phase)} {phase}" for phase in dict.fromkeys(phases))
    errors = [f"\n  {task['name']}: {task['error']['message']}" for task in shown["tasks"] if task["error"]]
    judged = shown["verdict"]
    return f"{judged['state'].upper()}: {judged['text']}" + (f" Tasks: {tasks}." if tasks else "") + "".join(errors)


def command(
    job: Job,
    processors: Annotated[
        int | None, typer.Option(min=1, max=64, help="Processors to start. [default: 2, or 1 in a group of one]")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="A folder that keeps the data; without it dev deletes it.", file_okay=False)
    ] = None,
    reload: Annotated[bool, typer.Option("--reload", help="Start the processors again when the code changes.")] = False,
    new_run: Annotated[
        bool, typer.Option("--new-run", help="With --data: begin the next run after a drained one.")
    ] = False,
) -> None:
    """Run Azurite and some processors on this machine, in one live view. Ctrl-C ends them in order.

    For a job that reads Event Hubs by a connection string in an environment variable that is not set, it also runs an
    Event Hubs on this machine; and likewise a broker, if tansu is installed, for one that reads Kafka's protocol.

    Example: samza-azure dev job.toml --processors 3 --reload
    """
    raise typer.Exit(develop(job, processors, data.resolve() if data else None, reload=reload, new_run=new_run))
