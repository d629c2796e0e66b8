"""`samza-azure delete`: a drained run, a stream, a named reader, or everything, for good."""

import asyncio
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated

import typer

from samza_azure.commands.connect import connect, look
from samza_azure.commands.exclusive import Held, exclusively
from samza_azure.commands.job import Job, in_shell, load, load_seen
from samza_azure.commands.terminal import say, tell
from samza_azure.config import Config
from samza_azure.errors import ConfigError
from samza_azure.group.control import NAME, Control, RunPhase
from samza_azure.group.drain import is_forgotten
from samza_azure.group.rows import LEADER, MEMBERS, RECORD, REQUESTS
from samza_azure.host.copies import keep_copy
from samza_azure.logs.names import (
    BINDING,
    FOLDERS,
    RUNS,
    large_prefix,
    run_folder,
    stream_and_partition,
    stream_folder,
)
from samza_azure.names import READER, STREAM
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import CALL_S, DELETE_MAX, Blobs
from samza_azure.storage.limits import HINTS, OF_TABLES, READERS, hint_name
from samza_azure.stream_io.listing import log_indexes, runs_in, stream_of, streams
from samza_azure.stream_io.produced import PRODUCED, forget_keys, has_keys, mark_deleted
from samza_azure.stream_io.reader import forget_reader
from samza_azure.stream_io.retention import readers_of

NamesAndSizes = Sequence[tuple[str, int]]


def command(
    job: Job,
    run: Annotated[str, typer.Option("--run", help="A drained run: its rows in all streams.")] = "",
    stream: Annotated[str, typer.Option("--stream", help="A source or output stream, of all runs.")] = "",
    reader: Annotated[
        str | None, typer.Option("--reader", help="With --stream: only forget this named reader of it.")
    ] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="All data of the job in the account: runs, streams, tables, files, its group."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")] = False,
) -> None:
    """Delete a drained run, a stream, or all of a job, after a name was typed. It cannot be undone.

    Example: samza-azure delete job.toml --run 1764000000000-1f2e3d4c
    """
    if sum(map(bool, (run, stream, everything))) != 1 or (reader is not None and not stream):
        raise ConfigError("Say what to delete: --run ID, --stream ID, --stream ID --reader NAME, or --all.")
    if reader is not None:
        READER.checked(reader)  # an empty one, as of a variable that is not set, is not the whole stream
    config = load(job) if reader else load_seen(job)
    account = connect(config, create=False, to_empty=everything)
    if reader:
        forget_reader(account.readers(), stream, reader)
        tell(f"The reader {reader} of {stream} is forgotten: retention no longer waits for it.")
    elif run:
        tell(delete_run(config, account, run, yes=yes))
    elif stream:
        tell(delete_stream(config, account, stream, yes=yes))
    else:
        tell(delete_all(config, account, yes=yes))


def delete_run(config: Config, account: Account, run: str, *, yes: bool) -> str:
    """Delete the logs of a drained run. Its id stays known, so that no old code begins the run again."""
    control, _ = look(config, account)
    past = () if control is None else control.past
    blobs = account.blobs()
    is_old = control is not None and is_forgotten(control, run) and run in runs_in(blobs)
    if run not in past and not is_old:
        left = [each for each in past if blobs.list(run_folder(each))]
        current = control is not None and run == control.run_id and control.phase is not RunPhase.NONE
        why = (
            f"Run {run} is not drained: samza-azure drain {in_shell(config)} --wait ends it, --all deletes it with the "
            "rest."
            if current
            else f"No drained run has the id {run!r}."
        )
        raise ConfigError(f"{why} Drained runs with rows: {', '.join(left) or 'none'}.")
    found = blobs.list(run_folder(run))
    confirm(f"This deletes {sized(found)} of the drained run {run}.", run, yes=yes)
    if control is not None:
        keep_copy(blobs, control)  # without one that knows the run as drained, `recover` would miss its logs
    return deleted(f"run {run}", found, delete(blobs, found, lambda: None))


def delete_stream(config: Config, account: Account, stream: str, *, yes: bool) -> str:
    """Delete the logs of a source stream, or of an output stream in all runs, and forget its named readers and
    idempotence keys."""
    blobs = account.blobs()
    found = list(blobs.list(stream_folder(STREAM.checked(stream))))
    outputs = {} if found else log_indexes(blobs, RUNS)
    for prefix, indexes in outputs.items():
        if stream_of(blobs, prefix, indexes[0]) == stream:
            found += [*blobs.list(f"{prefix}/"), *blobs.list(f"{large_prefix(prefix)}/")]
    is_source = not any(name.startswith(RUNS) for name, _ in found)
    if not found and not _is_half_deleted(config, account, stream):
        raise ConfigError(f"No log holds the stream {stream!r}. Known streams: {', '.join(streams(blobs)) or 'none'}.")
    keys = account.transactions(PRODUCED)

    async def act(held: Held) -> str:
        refuse_unless_over(config, held.control, f"the stream {stream}")
        named = sorted(readers_of(account.readers(), stream))
        also = f" Its named readers are forgotten: {', '.join(named)}." if named else ""
        what = f"This deletes {sized(found)} of the stream {stream}, of all runs.{also}"
        await asyncio.to_thread(confirm, what, stream, yes=yes)  # on a thread, so that the lease is renewed meanwhile
        await asyncio.to_thread(mark_deleted, keys, stream)
        kept = await asyncio.to_thread(delete, blobs, found, held.check)
        if not kept and held.control is not None and is_source:
            # After the logs: a crash in between leaves a run that cannot begin, rather than one that reads rows twice.
            left = {name: at for name, at in held.control.positions.items() if stream_and_partition(name)[0] != stream}
            written = await held.write(replace(held.control, positions=left))
            await asyncio.to_thread(keep_copy, blobs, written)
        for row in await held.table.query(HINTS, timeout=CALL_S):
            if hint_name(row.key).startswith(stream_folder(stream)):
                await held.table.delete(HINTS, row.key, etag=row.etag, timeout=CALL_S)
        for name in named:
            forget_reader(account.readers(), stream, name)
        if not kept:
            await asyncio.to_thread(forget_keys, keys, stream)
        return deleted(f"stream {stream}", found, kept)

    return exclusively(config, account, act)


def _is_half_deleted(config: Config, account: Account, stream: str) -> bool:
    """Whether a deletion of the stream has ended between its logs and what refers to them."""
    control, _ = look(config, account)
    return (
        any(stream_and_partition(name)[0] == stream for name in (control.positions if control is not None else ()))
        or any(name.startswith(stream_folder(stream)) for name in account.hints().poll())
        or bool(readers_of(account.readers(), stream))
        or has_keys(account.transactions(PRODUCED), stream)
    )


def delete_all(config: Config, account: Account, *, yes: bool) -> str:
    """Delete all logs, tables, files and rows of the job. The container and the table stay, empty, and are released:
    they no longer belong to each other and to this job.
    """
    blobs = account.blobs()

    def listed() -> NamesAndSizes:
        there = blobs.list("") if account.has_container(config.storage.container) else []  # else only its table is left
        return [each for each in there if each[0] != BINDING]

    every = listed()
    first = [each for each in every if each[0].startswith(FOLDERS)]
    others = [name for name, _ in every if not name.startswith(FOLDERS) and name != NAME]

    async def act(held: Held) -> str:
        where = f"the container {config.storage.container} and the table {config.storage.table}"
        what = f"This deletes everything of {config.app.name!r} in {where}: {sized(first)}."
        await asyncio.to_thread(confirm, what, config.app.name, yes=yes)
        await asyncio.to_thread(account.begin_to_empty)  # first: if that is refused, nothing was changed
        if held.lease_id:
            # Before its logs go: a processor that has just started finds a group that has never run.
            epoch = held.control.epoch + 1 if held.control is not None else 0
            await held.write(Control(group_id=uuid.uuid4().hex, epoch=epoch))
        await asyncio.to_thread(mark_deleted, account.transactions(PRODUCED))
        # Listed again: what producers have created before they could see the mark is there now.
        found = [each for each in await asyncio.to_thread(listed) if each[0].startswith(FOLDERS)]
        kept = await asyncio.to_thread(delete, blobs, found, held.check)
        if not kept:
            await asyncio.to_thread(forget_keys, account.transactions(PRODUCED))
        for partition in (
            REQUESTS,
            HINTS,
            READERS,
            *await asyncio.to_thread(account.partitions, OF_TABLES),  # by their rows: the job file may have lost one
            RECORD,
            LEADER,
            MEMBERS,
        ):
            held.check()
            for row in await held.table.query(partition, timeout=CALL_S):
                await held.table.delete(partition, row.key, etag=row.etag, timeout=CALL_S)
        if not kept:
            # Under the lease of the control blob: a processor that waits for it binds them again before it creates one.
            await asyncio.to_thread(account.unbind)
        else:
            await asyncio.to_thread(account.end_emptying)
        if held.lease_id and not kept:
            await held.blob.release(held.lease_id, timeout=CALL_S)
            held.lease_id = ""
            kept |= await asyncio.to_thread(delete, blobs, [(NAME, 0)], lambda: None)
        some = ", ".join(others[:3]) + " and others" * (len(others) > 3)
        stay = f" {len(others)} blobs outside its folders stay, such as exports to az://: {some}." if others else ""
        return deleted(config.app.name, found, kept) + stay

    return exclusively(config, account, act, damaged=True)


def refuse_unless_over(config: Config, control: Control | None, what: str) -> None:
    """Raise `ConfigError` if a run is in progress: it relies on its streams."""
    if control is not None and control.phase not in (RunPhase.NONE, RunPhase.DRAINED):
        raise ConfigError(
            f"Run {control.run_id} is not drained, and {what} is part of it. End it first: samza-azure drain "
            f"{in_shell(config)} --wait, while a processor runs."
        )


def confirm(what: str, word: str, *, yes: bool, back: str = "It cannot be undone.", done: str = "deleted") -> None:
    """Raise `ConfigError` unless `yes` is set or the user types the word."""
    if yes:
        return
    say(f"{what} {back}\nType {word} to go on:")
    if sys.stdin is None or sys.stdin.readline().strip() != word:
        raise ConfigError(f"Nothing was {done}: that is not the name. In a script, use --yes.")


def delete(blobs: Blobs, found: NamesAndSizes, check: Callable[[], None]) -> dict[str, str]:
    """Delete the blobs; return those that were kept, with their error codes. `check` raises if we must not go on."""
    kept: dict[str, str] = {}
    for start in range(0, len(found), DELETE_MAX):
        check()
        kept |= blobs.delete_many([name for name, _ in found[start : start + DELETE_MAX]])
    return kept


def sized(found: NamesAndSizes) -> str:
    """The number of blobs and their size."""
    return f"{len(found):,} blobs, {sum(size for _, size in found) / (1 << 20):,.1f} MiB"


def deleted(what: str, found: NamesAndSizes, kept: dict[str, str]) -> str:
    """The message on what was deleted. Raise `ConfigError` if something was kept."""
    if not kept:
        return f"Deleted {what}: {sized(found)}."
    name, code = next(iter(kept.items()))
    raise ConfigError(
        f"{len(kept)} of {len(found)} blobs of {what} could not be deleted, for example {name} ({code}). The rest was "
        "deleted. If a policy or a legal hold keeps them, run this command again when it has ended."
    )
