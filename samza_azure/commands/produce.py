"""`samza-azure produce`: put the rows of files into a source stream, in file order.

All files are checked against the stream's schema before the first row is written, so a row that does not fit leaves no
partial result. How an ambiguous value was read (a time without a zone, NA) is printed, for each format alike.

Lines of text files that do not fit can be set aside. The file of bad lines is there as a whole before the first row is
written, and an idempotence key is one of the other lines: so each line is in one of both, once, whatever is killed.
"""

import hashlib
import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated

import pyarrow as pa
import typer

from samza_azure.commands.bad_lines import BadLine, sort_out
from samza_azure.commands.connect import connect, connect_if_there, look
from samza_azure.commands.job import Job, in_shell, load
from samza_azure.commands.mistaken_files import check_whole
from samza_azure.commands.row_files import LacksColumn, Seen, check, chunks, files_in
from samza_azure.commands.terminal import ProgressLine, say, tell
from samza_azure.config import Config
from samza_azure.errors import ConfigError
from samza_azure.group.control import Control, RunPhase
from samza_azure.logs.operations import Pause
from samza_azure.names import IDEMPOTENCE_KEY
from samza_azure.storage.connection import Account
from samza_azure.stream_io.ddl import arrow_schema
from samza_azure.stream_io.driver import back_off
from samza_azure.stream_io.produced import PRODUCED, Production
from samza_azure.stream_io.source_stream import SourceWriter, source_of

#: The flushes per second with a rate.
FLUSHES_PER_S = 5.0
STDIN = Path("-")
#: The most bad lines that an error names.
TOLD = 20
#: While the storage does not answer, one try in this many is reported.
SAID_EACH = 12


def produce(
    config: Config,
    account: Account | None,
    stream: str,
    given: Sequence[Path],
    *,
    key: str | None,
    rate: float | None,
    dry_run: bool,
    progress: Callable[[int, int], None],
    say: Callable[[str], None],
    once: str = "",
    bad_lines: Path | None = None,
) -> int:
    """Write all rows and return their number. While the storage does not answer, wait and report it.

    With `once`, an idempotence key, the rows that are stored under it already are neither written nor counted. Without
    an account rows are only checked. `bad_lines` is the file for the lines that do not fit.
    """
    settings = source_of(config, stream)
    schema = arrow_schema(settings.schema or "")
    if settings.key and key not in (None, *settings.key[:1]):
        raise ConfigError(
            f"streams.{stream}.key is {', '.join(settings.key)}, but --key is {key}. Leave --key out; or change the "
            "line in the job file and write into another stream."
        )
    key = None if settings.key else key
    files = list(files_in(given))
    for file in files:
        check_whole(file, schema.names)

    def fits(file: Path) -> Seen:
        seen = Seen()
        check(seen, file, stream, schema, settings.event_time, key)
        return seen

    def sorted_out(file: Path) -> Iterator[bytes | BadLine]:
        return sort_out(file, schema, settings.event_time, key)

    with tempfile.TemporaryDirectory() as folder:
        aside = None
        if bad_lines is not None:  # first, since it decides which rows those of an idempotence key are
            aside = _Aside(bad_lines, Path(folder))
            files = [aside.without_bad_lines(file, fits, sorted_out) for file in files]
        content = _digest(files) if once else ""
        if (
            account
            and once
            and (known := Production(account.transactions(PRODUCED), stream, once, content).find()) is not None
        ):
            if known.rows is not None:
                say(f"All {known.rows} rows of {once!r} are in {stream} already.")
                return 0
            say(f"Rows of {once!r} are in {stream} already; they are skipped.")
        seen = _checked(files, fits, sorted_out, stream)
        for line in seen.lines():
            say(line)
        if aside is not None and aside.count:
            if not dry_run:
                aside.deliver()
            say(f"{aside.count} lines that do not fit {'would be' if dry_run else 'are'} set aside in {bad_lines}.")
        if dry_run or account is None:
            return seen.rows
        paced = _Paced(rate, progress, seen.rows)
        options = {"flush_rows": paced.at_once, "wait": lambda pause: _wait(pause, say)}
        writer = SourceWriter.of(config, account, stream, once=once, content=content, **options)
        try:
            for chunk in itertools.chain.from_iterable(chunks(Seen(), file, schema, key) for file in files):
                paced.write(writer, chunk, key)
            writer.close()
        except KeyboardInterrupt:
            whole = ", ".join(str(file) for file in given)
            say(
                f"\nInterrupted. The first {paced.written} rows of {whole} are stored, and perhaps some of the next "
                f"{paced.at_once}."
            )
            if once:
                say(f"The same command goes on from there: --once {once} skips the rows that are stored.")
            raise
    if writer.rows_of_the_future:
        say(
            f"{writer.rows_of_the_future} of the rows are more than {settings.max_future_s:g} s ahead of this "
            f"machine's clock (streams.{stream}.max_future). They are stored, but do not advance event time."
        )
    return paced.written - writer.rows_skipped


class _Paced:
    """Writes rows, at most `rate` a second."""

    def __init__(self, rate: float | None, progress: Callable[[int, int], None], rows: int) -> None:
        self._rate, self._progress, self._rows = rate, progress, rows
        self.at_once = 10_000 if rate is None else max(1, round(rate / FLUSHES_PER_S))
        self.written, self._begun = 0, time.monotonic()

    def write(self, writer: SourceWriter, chunk: pa.Table, key: str | None) -> None:
        """Write a chunk, and wait as the rate says. Rows that were stored before take no time."""
        for start in range(0, chunk.num_rows, self.at_once):
            rows = chunk.slice(start, self.at_once)
            writer.write(rows, key)
            writer.flush()
            self.written += rows.num_rows
            self._progress(self.written, self._rows)
            if self._rate is not None:
                fresh = self.written - writer.rows_skipped
                self._begun = self._begun if fresh else time.monotonic()
                time.sleep(max(0.0, self._begun + fresh / self._rate - time.monotonic()))


class _Aside:
    """The lines that do not fit, as they are found, and the file that they come into."""

    def __init__(self, to: Path, folder: Path) -> None:
        self._to, self._folder, self._lines = to, folder, folder / "bad-lines"
        self.count = 0

    def without_bad_lines(
        self, file: Path, fits: Callable[[Path], Seen], sorted_out: Callable[[Path], Iterator[bytes | BadLine]]
    ) -> Path:
        """The file, or a copy of it that has only the lines that fit."""
        try:
            fits(file)
            return file
        except LacksColumn:
            raise
        except ConfigError:
            copy = self._folder / str(self.count) / file.name.removesuffix(".gz")
            copy.parent.mkdir()
            before = self.count
            with copy.open("wb") as good, self._lines.open("a") as bad:
                for each in sorted_out(file):
                    if isinstance(each, BadLine):
                        bad.write(each.as_json())
                        self.count += 1
                    else:
                        good.write(each)
            if self.count == before:
                raise
            return copy

    def deliver(self) -> None:
        """Make the file, whole. Raise ConfigError if it is there with other lines."""
        if self._to.exists():
            if self._to.read_bytes() != self._lines.read_bytes():
                raise ConfigError(f"{self._to} is there already, with other lines. Name another file for --bad-lines.")
            return
        beside = self._to.with_name(f".{self._to.name}.unfinished")
        shutil.copyfile(self._lines, beside)
        beside.replace(self._to)


def _checked(
    files: Sequence[Path],
    fits: Callable[[Path], Seen],
    sorted_out: Callable[[Path], Iterator[bytes | BadLine]],
    stream: str,
) -> Seen:
    """What the check of all files has seen. Raise ConfigError that names their bad lines, at most `TOLD` of them."""
    seen, bad = Seen(), list[BadLine]()
    for file in files:
        try:
            seen.add(fits(file))
        except LacksColumn:
            raise
        except ConfigError:
            found = (each for each in sorted_out(file) if isinstance(each, BadLine))
            some = list(itertools.islice(found, TOLD - len(bad)))
            if not some:
                raise
            bad += some
            if len(bad) == TOLD:
                break
    if bad:
        more = [f"These are the first {TOLD}; there may be more."] * (len(bad) == TOLD)
        remedy = (
            "Nothing was written. Correct this; or store the other lines, and set bad ones aside: --bad-lines FILE."
        )
        raise ConfigError("\n".join([*(each.told(stream) for each in bad), *more, remedy]))
    return seen


def refuse_other_partitions(config: Config, control: Control | None, stream: str) -> None:
    """Raise ConfigError if the run in progress reads another number of partitions: it would miss rows."""
    if control is None or control.phase in (RunPhase.NONE, RunPhase.DRAINED):
        return
    ours, theirs = source_of(config, stream).partitions, control.sources.get(stream)
    if theirs not in (None, ours):
        raise ConfigError(
            f"Run {control.run_id} reads {theirs} partitions of {stream}, and the job file has streams.{stream}."
            f"partitions = {ours}. Nothing was written. Produce with streams.{stream}.partitions = {theirs}; for "
            f"another number drain the run first: samza-azure drain {in_shell(config)} --wait."
        )


def _digest(files: Sequence[Path]) -> str:
    """A digest of the contents of all files, and of where each ends."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        try:
            with file.open("rb") as data:
                digest.update(hashlib.file_digest(data, hashlib.blake2b).digest())
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror}.") from None
    return digest.hexdigest()


def _wait(pause: Pause, say: Callable[[str], None]) -> None:
    if pause.tries % SAID_EACH == SAID_EACH // 2:
        say("The storage account does not answer; waiting for it. Nothing is lost. Ctrl-C gives up.")
    back_off(pause)


@contextmanager
def _without_stdin(given: Sequence[Path], stdin: IO[bytes]) -> Iterator[list[Path]]:
    """The paths, with a copy of standard input for `-`: it is read twice, first to check it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "stdin.jsonl"
        if STDIN in given:
            with copy.open("wb") as out:
                shutil.copyfileobj(stdin, out)
        yield [copy if path == STDIN else path for path in given]


def command(
    job: Job,
    stream: Annotated[str, typer.Argument(help="A source stream of the job file.", show_default=False)],
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Parquet, CSV or JSON lines, also .gz; a folder of them; or - for JSON lines from standard input.",
            show_default=False,
        ),
    ],
    key: Annotated[str | None, typer.Option(help="The column that decides the partition; else round robin.")] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, max=1e9, help="Rows per second; without it: as fast as possible.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check the rows; write nothing.")] = False,
    once: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Store each row once, however often this command is run or killed: what is stored under this key, for "
            "example the file's name, is skipped. Other files under the same key are refused.",
        ),
    ] = None,
    bad_lines: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Store the other lines, and set those of CSV and JSON lines that do not fit aside in this file: as "
            "JSON lines, with file, line, error and text.",
        ),
    ] = None,
) -> None:
    """Put the rows of files into a source stream, in file order.

    Example: samza-azure produce job.toml flights flights.parquet --key dest
    """
    if once is not None:
        IDEMPOTENCE_KEY.checked(once)  # an empty one, as of a variable that is not set, would store rows twice
    config = load(job)
    account = connect_if_there(config) if dry_run else connect(config)
    refuse_other_partitions(config, look(config, account)[0] if account else None, stream)
    with _without_stdin(files, sys.stdin.buffer) as given:
        shown = ProgressLine(f"produce {stream}")
        rows = produce(
            config,
            account,
            stream,
            given,
            key=key,
            rate=rate,
            dry_run=dry_run,
            progress=shown,
            say=say,
            once=once or "",
            bad_lines=bad_lines,
        )
    tell(f"{rows} rows fit {stream}; nothing was written" if dry_run else f"{rows} rows into {stream}")
