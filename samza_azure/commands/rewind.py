"""`samza-azure rewind`: the next run reads its sources again, from the beginning or from a time."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Annotated

import typer

from samza_azure.commands.backlog import outside
from samza_azure.commands.connect import connect
from samza_azure.commands.exclusive import Held, exclusively
from samza_azure.commands.job import Job, in_shell, load_seen
from samza_azure.commands.terminal import tell
from samza_azure.config import Config
from samza_azure.config.systems import BUILT_IN
from samza_azure.errors import ConfigError
from samza_azure.group.control import Control, RunPhase
from samza_azure.host.copies import keep_copy
from samza_azure.logs.names import source_log, source_partition, stream_and_partition
from samza_azure.logs.position import Position
from samza_azure.storage.interface import Blobs
from samza_azure.stream_io.listing import log_indexes
from samza_azure.stream_io.log import LogReader

#: The bytes of rows whose headers are read at a time.
AT_ONCE = 256 << 20


def command(
    job: Job,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="earliest, or a time like 2026-01-31T05:00Z: event time, or when rows came in outside.",
            show_default=False,
        ),
    ],
    stream: Annotated[str, typer.Option("--stream", help="Only this source stream; by default all.")] = "",
) -> None:
    """After a drain, let the next run read its sources again, from the beginning or from a time on.

    Example: samza-azure rewind job.toml --to earliest
    """
    time = None if to == "earliest" else time_of(to)
    config = load_seen(job)
    account = connect(config, create=False)
    blobs = account.blobs()

    async def act(held: Held) -> str:
        control = held.control
        if control is None or control.phase is RunPhase.NONE:
            raise ConfigError("No run was drained yet: the first run reads from the earliest rows anyway.")
        if control.phase is not RunPhase.DRAINED:
            raise ConfigError(
                f"Run {control.run_id} is not drained. A run in progress is never rewound: end it first, with "
                f"samza-azure drain {in_shell(config)} --wait."
            )
        # On a thread: it may take longer than the lease lasts, which is renewed meanwhile.
        back, again = await asyncio.to_thread(rewound, blobs, control, stream, time, config)
        if not again:
            return "Nothing to read again: the next run begins where the last one stopped."
        written = await held.write(replace(control, positions={**control.positions, **back}))
        await asyncio.to_thread(keep_copy, blobs, written)
        return (
            f"The next run reads {again} again. It begins with a changed pipeline, or: samza-azure run "
            f"{in_shell(config)} --new-run. The output of earlier runs stays beside its own; samza-azure delete "
            f"{in_shell(config)} --run {control.run_id} deletes the last run's."
        )

    tell(exclusively(config, account, act))


def rewound(
    blobs: Blobs, control: Control, stream: str, time: datetime | None, config: Config
) -> tuple[Mapping[str, Position], str]:
    """Where the next run is to begin in each source partition that is read again, and the number of those rows, for a
    message; empty if there are none.
    """
    chosen = sources(control, stream)
    stood = {partition: control.positions.get(partition, (0, 0)) for partition in chosen}
    elsewhere = {name for partition in chosen if (name := stream_and_partition(partition)[0]) in outside(config)}
    here = [each for each in chosen if stream_and_partition(each)[0] not in elsewhere]
    found = {each: beginning(blobs, each, None if time is None else round(time.timestamp() * 1e6)) for each in here}
    back = {partition: at for partition, at in found.items() if at < stood[partition]}
    said = [rows_between(blobs, back, stood)]
    for name in sorted(elsewhere):
        its = {each: at for each, at in stood.items() if stream_and_partition(each)[0] == name}
        again = outside_again(name, its, time, config)
        back = {**back, **again}
        if again:
            said.append(f"all rows of {name}" if time is None else f"what is left of {name} since {time.isoformat()}")
    return back, ", ".join(filter(None, said))


def outside_again(
    name: str, stood: Mapping[str, Position], time: datetime | None, config: Config
) -> Mapping[str, Position]:
    """The same of a stream from outside, as far as its connector can find rows by time."""
    declared = config.streams[name]
    if time is None:
        if declared.system in BUILT_IN and (start := declared.options.get("start", "oldest")) != "oldest":
            raise ConfigError(
                f"streams.{name}.options.start is {start!r}, and says where a stream begins that was never read. "
                "Remove the line, or name another --stream."
            )
        return {each: (0, 0) for each, at in stood.items() if at > (0, 0)}
    from samza_azure.pipeline.outside import outside as stream_outside  # with Arrow
    from samza_azure.systems.registry import factory_of

    admin = factory_of(declared.system, name).get_admin(stream_outside(name, declared, config))
    if (back_to := getattr(admin, "back_to", None)) is None:
        raise ConfigError(
            f"The rows of {name!r} come from outside, where its connector cannot find them by time. Use --to "
            "earliest, or name another --stream."
        )
    found = back_to(time, {stream_and_partition(each)[1]: at for each, at in stood.items()})
    return {source_partition(name, number): at for number, at in found.items()}


def time_of(text: str) -> datetime:
    """A time, which must have a zone."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"--to {text!r} cannot be used. Give earliest, or a time like 2026-01-31T05:00Z or 2026-01-31T06:00+01:00."
        ) from None
    if at.tzinfo is None:
        raise ConfigError(f"--to {text!r} has no zone. Write {text}Z for UTC, or {text}+01:00.")
    return at


def sources(control: Control, stream: str) -> list[str]:
    """The source partitions of the drained run, or of one stream of it, "orders/0" and so on."""
    if stream and stream not in control.sources:
        raise ConfigError(
            f"The drained run read no source stream {stream!r}. It read {', '.join(control.sources) or 'none'}."
        )
    wanted = [stream] if stream else list(control.sources)
    return [source_partition(name, number) for name in wanted for number in range(control.sources[name])]


def beginning(blobs: Blobs, partition: str, time_us: int | None) -> Position:
    """The beginning of a source partition's log, or its first record with a row of that event time or later."""
    prefix = source_log(partition)
    position: Position = log_indexes(blobs, f"{prefix}/").get(prefix, [0])[0], 0
    if time_us is None:
        return position
    reader = LogReader(blobs, prefix)
    while True:
        found = reader.scan(position, AT_ONCE)
        for part in found.parts:
            if part.greatest_us is None and part.least_us is None:
                raise ConfigError(
                    f"The rows of {stream_and_partition(partition)[0]!r} have no event time "
                    "(streams.<id>.event_time), so they cannot be found by time. Use --to earliest, or name another "
                    "--stream."
                )
            if part.greatest_us is not None and part.greatest_us >= time_us:
                return part.position
        position = found.end
        if found.at_end:
            return position


def rows_between(blobs: Blobs, back: Mapping[str, Position], stood: Mapping[str, Position]) -> str:
    """The number of rows of each stream between the positions, for a message; empty if there are none."""
    rows: dict[str, int] = {}
    for partition, begin in back.items():
        scans = LogReader(blobs, source_log(partition)).scans(begin, stood[partition])
        stream, _ = stream_and_partition(partition)
        rows[stream] = rows.get(stream, 0) + sum(found.rows for found in scans)
    return ", ".join(f"{number:,} rows of {stream}" for stream, number in rows.items() if number)
