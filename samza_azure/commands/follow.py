"""`samza-azure follow`: the rows of a stream as they are committed."""

import shlex
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from samza_azure.commands.connect import connect
from samza_azure.commands.job import Job, load
from samza_azure.commands.terminal import say
from samza_azure.errors import ConfigError
from samza_azure.names import READER
from samza_azure.storage.interface import NamedRows
from samza_azure.stream_io.reader import Reader, Start
from samza_azure.stream_io.retention import stand_of
from samza_azure.stream_io.values.json_lines import as_lines


class _Ended(Exception):
    """Raised on a signal."""


def command(
    job: Job,
    stream: Annotated[str, typer.Argument(help="A stream of the pipeline, or a source.", show_default=False)],
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            help="earliest, latest, or the token of an earlier follow; with --name it counts the first time. "
            "[default: latest]",
        ),
    ] = "",
    until_now: Annotated[bool, typer.Option("--until-now", help="End at the rows that are committed now.")] = False,
    name: Annotated[
        str | None,
        typer.Option("--name", help="A reader's name: retention waits for it, and the next follow goes on here."),
    ] = None,
) -> None:
    """Print the rows of a stream as they are committed, one JSON object per line, and at the end a token to go on
    from.

    Example: samza-azure follow job.toml daily-delays --from earliest --until-now
    """
    if name is not None:
        READER.checked(name)  # also an empty one, as of a variable that is not set
    config = load(job)
    account = connect(config, create=False)
    if name:
        begin = _beginning(account.readers(), stream, name, begin, job.name)
    start: Start = "earliest" if begin == "earliest" else "latest"
    token = "" if begin in ("earliest", "latest") else begin
    reader = Reader.of(config, account, stream, start=start, token=token, until_now=until_now, name=name or "")
    if not reader.has_logs:
        if until_now:
            raise ConfigError(reader.absent())
        say(f"{reader.absent()} Waiting for new rows.")
    end = _End()
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    printed = reader.token
    try:
        for table in reader:
            end.is_printing = True
            sys.stdout.write(as_lines(table))
            sys.stdout.flush()
            printed = reader.token  # a table that was printed in part is printed again
            if name:
                reader.commit()
            end.is_printing = False
            if end.signals:
                break
    except _Ended:
        pass
    finally:
        end.is_over = True
        say(f"To go on from here: --from {printed}")
        for number, handler in before.items():
            signal.signal(number, handler)


def _beginning(positions: NamedRows, stream: str, name: str, begin: str, job: str) -> str:
    """Where the reader of this name begins: `begin` counts only while it has no position; empty: at its position.

    A token also counts instead of a position that cannot be read.
    """
    try:
        known = stand_of(positions, stream, name)
    except ConfigError:
        if begin in ("", "earliest", "latest"):
            raise
        return begin
    if known is None:
        if not begin:
            say(f"The reader {name!r} is new: it begins with the rows from now on. All rows: --from earliest, once.")
        return begin
    if begin:
        say(
            f"The reader {name!r} goes on where it stood; --from counts only the first time. To begin elsewhere, "
            f"forget it first: samza-azure delete {shlex.quote(str(job))} --stream {stream} --reader {name}"
        )
    return ""


class _End:
    """Ends the wait for rows on SIGTERM or Ctrl-C, but not between the lines of a table and its token: they would be
    printed again. A second signal ends it there, too, since the reader of the pipe may hang. Signals are ignored while
    the token is printed: `timeout` sends each one twice."""

    def __init__(self) -> None:
        self.is_printing = self.is_over = False
        self.signals = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.signals += 1
        if not self.is_over and (not self.is_printing or self.signals > 1):
            self.is_over = True
            raise _Ended
