"""The entry point of the commands: which there are, and what an error ends with.

Progress goes to stderr, results to stdout. Exit codes: 0 done, 1 the job failed, 2 wrong usage or configuration,
3 storage unreachable, 4 timed out, 5 access lost. A command's file is imported when the command runs: `run` must stay
small and beat within a second of its start.
"""

import gc
import importlib
import logging
import os
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from samza_azure.commands.terminal import say
from samza_azure.errors import SamzaAzureError, in_full

#: Each command with the first sentence of its help, so that `--help` imports none of them.
COMMANDS = {
    "run": "Run one processor, in the foreground.",
    "dev": "Azurite and some processors on this machine, in one live view. Ctrl-C ends them in order.",
    "azurite": "The storage emulator alone, in memory, until Ctrl-C.",
    "produce": "Put the rows of a file into a source stream, in file order.",
    "export": "Write the committed rows of a stream to a Parquet file.",
    "table": "Show a table: intervals, segments, sizes, locks, garbage, and what compaction would do.",
    "compact": "Merge the small segments of a table while others append to it.",
    "peek": "Print the first rows of a stream, a JSON object a line.",
    "follow": (
        "Print the rows of a stream as they are committed, a JSON object a line; at the end a token to go on from."
    ),
    "status": "Who leads, who is alive, who runs what, where each task stands, how far behind its sources it is.",
    "ui": "The status page in a browser: is it healthy, does it keep up, what happened. Until Ctrl-C.",
    "drain": "End the run for good: read no more, fire every window, commit, exit everywhere, clean up.",
    "stop": "All processors commit and exit; nothing is fired, and the next start resumes the run.",
    "rewind": "After a drain: let the next run read its sources again, from the beginning or from an event time on.",
    "delete": "Delete a drained run, a stream, or all of a job. Asks for a name to be typed. There is no way back.",
    "explain": (
        "The stages with their streams, keys and state; what the timings cost and promise. Asks Spark, and no storage."
    ),
    "check": "Find the mistakes of a job before it runs. Asks no storage; with --quick no Spark either.",
    "simulate": "Run a fleet under faults, in memory, from one seed, and print what happened.",
}


class Commands(TyperGroup):
    """The commands, each imported when it is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """As the parent does it, with the command itself in the place of its name."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and _loaded(name or ""), rest


def _loaded(name: str) -> Any:
    """A command from its file: the function `command` in it."""
    gc.disable()  # what is imported stays: looking through it again and again is a sixth of the time that it takes
    try:
        found = importlib.import_module(f"samza_azure.commands.{name}").command
    finally:
        gc.enable()
    gc.freeze()
    alone = _typer()
    alone.command(name)(found)
    return typer.main.get_command(alone)


def _typer(**more: Any) -> typer.Typer:
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, **more)


app = _typer(
    name="samza-azure",
    help="Stateful PySpark streaming jobs as a fleet of equal processors, coordinated by one Azure Storage account.",
    no_args_is_help=True,
    cls=Commands,
)


def _version(asked: bool) -> None:
    if asked:
        import importlib.metadata  # as long as all the rest of `--help` together

        print(f"samza-azure {importlib.metadata.version('samza-azure')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Which one it is.")
    ] = False,
) -> None:
    """What comes before a command."""


for _name, _sentence in COMMANDS.items():
    app.command(_name, help=_sentence)(lambda: None)


def main() -> NoReturn:
    """The entry point: run a command, and turn our errors into their exit codes and one message."""
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
    except OSError as error:  # a disk that is full, a folder that may not be written, a reader that has gone
        if not isinstance(error, BrokenPipeError):
            say(f"samza-azure: {str(error) or type(error).__name__}")
        code = 1
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is not written yet is not tried again
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if code is None or not hasattr(error, "format_message"):
            raise
        error.show()  # type: ignore[attr-defined]
    sys.exit(code if isinstance(code, int) else 0)


__all__ = ["COMMANDS", "app", "main"]
