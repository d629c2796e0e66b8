"""The entry point: the list of commands, and the exit code of each error.

Progress goes to stderr, results to stdout. Exit codes: 0 done, 1 the job failed, 2 wrong usage or configuration,
3 storage unreachable, 4 timed out, 5 access lost, 8 left something open; of `status` also 6 not all is well, 7 nobody
runs. A command's file is imported when the command runs: `run` must stay small and send its first heartbeat within a
second of its start.
"""

import gc
import importlib
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from samza_azure.commands.terminal import say
from samza_azure.errors import ConfigError, SamzaAzureError, Verdict, in_full
from samza_azure.extras import SPARK, to_install

#: Each command with the first paragraph of its help, so that `--help` imports none of them.
COMMANDS = {
    "run": "Run one processor, in the foreground.",
    "dev": "Run Azurite and some processors on this machine, in one live view. Ctrl-C ends them in order.",
    "guard": "Run any command on one of several machines at a time; the others stand by and take over.",
    "master": "Run the master of a Spark cluster, in the foreground, for those who have no cluster.",
    "worker": "Run a worker of a Spark cluster, in the foreground. It is decommissioned before it goes.",
    "executor": "Run an executor of a Spark cluster on Kubernetes: what its pods run, and nobody by hand.",
    "azurite": "Run only the storage emulator, in memory, until Ctrl-C.",
    "produce": "Put the rows of files into a source stream, in file order.",
    "export": "Write the committed rows of a stream to a file, a folder of files, or the account.",
    "table": "Show a table: intervals, segments, sizes, locks, garbage, and what compaction would do.",
    "compact": "Merge the small segments of a table while others append to it.",
    "peek": "Print the first rows of a stream, one JSON object per line.",
    "follow": (
        "Print the rows of a stream as they are committed, one JSON object per line, and at the end a token to go on "
        "from."
    ),
    "status": "Show who leads, who is alive, who runs what, where each task is, how far behind its sources it is.",
    "ui": "Serve the status page to a browser, until Ctrl-C: is it healthy, does it keep up, what happened.",
    "drain": "End the run for good: read no more, fire every window, commit, exit everywhere, clean up.",
    "decommission": (
        "Tell one processor that it will go: it hands its tasks over while there is time, and waits without tasks."
    ),
    "stop": "Make all processors commit and exit; no window is fired, and the next start resumes the run.",
    "rewind": "After a drain, let the next run read its sources again, from the beginning or from a time on.",
    "positions": "Print where another job has stopped reading a hub or topic, as a line of the job file.",
    "recover": (
        "Bring a job back whose control.json was deleted or is older than its logs, as after a fail-over of the "
        "account."
    ),
    "delete": "Delete a drained run, a stream, or all of a job, after a name was typed. It cannot be undone.",
    "explain": (
        "Show the stages with their streams, keys and state, and what the timings cost and promise. Starts Spark, but "
        "reads no storage."
    ),
    "check": "Find the mistakes of a job before it runs. Reads no storage; with --quick, starts no Spark either.",
    "verify": (
        "Try whether the job's account does what all safety rests on, in a container and table made for it. Takes 20 s."
    ),
}


class Commands(TyperGroup):
    """The commands, each imported when it is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Resolve as the parent does, but load the command that the name stands for."""
        if args and args[0].endswith(".toml"):
            command = next((each for each in args[1:] if each in COMMANDS), "check")
            ctx.fail(f"The command comes first: samza-azure {command} {shlex.quote(args[0])}")
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and _loaded(name or ""), rest


def _loaded(name: str) -> Any:
    """Import a command from its file: the function `command` in it."""
    gc.disable()  # what is imported is never garbage; searching it for some takes a sixth of the time of the import
    try:
        found = importlib.import_module(f"samza_azure.commands.{name}").command
    finally:
        gc.enable()
    gc.freeze()
    alone = command_line()
    alone.command(name)(_placing(found))
    return typer.main.get_command(alone)


def _placing(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command; its errors say in which line of the job file the key stands that they are about."""

    @wraps(command)
    def placing(**arguments: Any) -> Any:
        try:
            return command(**arguments)
        except ConfigError as error:
            if isinstance(job := arguments.get("job"), Path):
                from samza_azure.commands.job import note_line

                note_line(error, job)
            raise

    return placing


def command_line(**more: Any) -> typer.Typer:
    """A command line as ours are: errors reach `main`, help is plain text."""
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, **more)


app = command_line(
    name="samza-azure",
    help="Stateful PySpark streaming jobs as a fleet of equal processors, coordinated by one Azure Storage account.",
    no_args_is_help=True,
    cls=Commands,
)


def _version(asked: bool) -> None:
    if asked:
        import importlib.metadata  # takes as long as all the rest of `--help`

        print(f"samza-azure {importlib.metadata.version('samza-azure')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """The options before the command."""


for _name, _sentence in COMMANDS.items():
    app.command(_name, help=_sentence)(lambda: None)


def _example(error: Exception) -> str:
    """The last sentence of a command's help, which shows its use, for an error about its arguments."""
    command = getattr(getattr(error, "ctx", None), "command", None)
    return "".join(re.findall(r"Example: .*", getattr(command, "help", None) or "")[-1:])


def main(app: typer.Typer = app) -> NoReturn:
    """Run a command, and turn our errors into one message and an exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("azure").setLevel(logging.ERROR)
    try:
        code = app(standalone_mode=False)
        if sys.stdout is not None:  # it may have been closed
            sys.stdout.flush()
    except SamzaAzureError as error:
        say(f"samza-azure: {in_full(error)}")
        code = error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        code = 1
    except OSError as error:  # the disk is full, a folder is not writable, the reader of a pipe has gone
        if not isinstance(error, BrokenPipeError):
            say(f"samza-azure: {str(error) or type(error).__name__}")
        code = 1
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # at exit Python flushes stdout, which would fail again
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyspark":
            raise
        say(f"samza-azure: pyspark is not installed. Run: {to_install(SPARK)}.")
        code = Verdict.REFUSED
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if code is None or not hasattr(error, "format_message"):
            raise
        error.show()  # type: ignore[attr-defined]
        if example := _example(error):
            say(f"\n{example}")
    sys.exit(code if isinstance(code, int) else 0)


__all__ = ["COMMANDS", "app", "command_line", "main"]
