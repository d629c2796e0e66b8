"""`samza-azure recover`: a job whose control blob was lost, or is older than its logs, goes on with the next start."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated

import typer

from samza_azure.commands.backlog import AT_ONCE, ends_of
from samza_azure.commands.connect import connect
from samza_azure.commands.exclusive import Held, exclusively
from samza_azure.commands.job import Job, in_shell, load_seen
from samza_azure.commands.terminal import say, tell
from samza_azure.config import Config
from samza_azure.errors import ConfigError, CorruptState, TooOld
from samza_azure.group import control as control_blob
from samza_azure.group.control import NAME, Control, RunPhase
from samza_azure.group.recovery import ABSURD, Evidence, LastOfLog, lost, needs_recovery, recovered
from samza_azure.group.rows import LEADER, leader_row
from samza_azure.host.copies import KEPT, keep_copy
from samza_azure.host.status import members
from samza_azure.logs.names import (
    COPIES,
    FILES,
    RUNS,
    TABLES,
    copy_revision,
    run_folder,
    source_partition,
    stage_and_number,
    task_log,
    task_name,
)
from samza_azure.logs.record import NEEDS, READ, SHUT_DOWN
from samza_azure.messages import partitions_of
from samza_azure.outcomes import Missing
from samza_azure.storage.connection import Account
from samza_azure.storage.interface import CALL_S, Blobs
from samza_azure.storage.limits import LEASED_BYTES_MAX
from samza_azure.stream_io.listing import first_blobs, runs_in, stream_of
from samza_azure.stream_io.log import LogReader
from samza_azure.streams.offset import Offset
from samza_azure.tasks.checkpoint_files import plan_of

#: No more copies than this are tried, the newest ones: whoever may write into the container may have put many there.
LOOKED_AT = 10 * KEPT


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest value of the control blob that is known, and which blob holds it."""

    name: str
    control: Control


def command(
    job: Job,
    yes: Annotated[bool, typer.Option("--yes", help="Do it. Without this, only show what would be done.")] = False,
) -> None:
    """Bring a job back whose control.json was deleted or is older than its logs, as after a fail-over of the account.

    It takes the newest copy of control.json that is known, and raises its numbers above all that the logs and rows have
    used. No processor may run. The next start of all processors goes on with the run.

    Example: samza-azure recover job.toml --yes
    """
    config = load_seen(job)
    account = connect(config, create=False)
    tell(recover(config, account, yes=yes))


def recover(config: Config, account: Account, *, yes: bool) -> str:
    """Do it, or only say what would be done."""
    blobs = account.blobs()

    async def act(held: Held) -> str:
        if held.damage:
            say(held.damage)
        copies = await asyncio.to_thread(copies_in, blobs)
        newest = newest_of(held.control, copies)
        if newest is None:
            raise ConfigError(await asyncio.to_thread(_nothing_known, config, blobs, held))
        known = await _known(held, newest.control, blobs, [each.revision for each in copies.values()])
        say(_found(held.control, newest, known))
        if troubles := lost(newest.control, known):
            raise ConfigError("\n".join([*troubles, _way_out(config)]))
        if not needs_recovery(held.control, newest.control, known):
            return f"Nothing to recover: {NAME} is the newest that is known, and no log is ahead of it."
        after = recovered(newest.control, known, time.time_ns() // 1_000_000)
        what = f"{NAME} of revision {after.revision}, epoch {after.epoch}, from {newest.name}"
        if not yes:
            return f"This would write {what}. Nothing was changed: do it with --yes."
        await held.write(after)
        await asyncio.to_thread(keep_copy, blobs, after)
        return f"Wrote {what}. Start the processors: {_what_next(after)}"

    return exclusively(config, account, act, damaged=True, only_looks=not yes)


def copies_in(blobs: Blobs) -> Mapping[str, Control]:
    """The newest copies of the control blob that can be read, by the names of their blobs, the newest one first.

    Raise `TooOld` if the newest one is of a later release: the others speak of what was before it.
    """
    found: dict[str, Control] = {}
    listed = blobs.list(COPIES)
    for name, size in reversed(listed[-LOOKED_AT:]):
        if len(found) == KEPT:
            return found
        try:
            copy = _copy(blobs, name, size)
        except TooOld as error:
            if not found:
                raise TooOld(f"The newest copy, {name},", error.needs, error.knows) from None
            say(f"The copy {name} is left out: {error}")
            continue
        except CorruptState as error:
            say(f"The copy {name} is left out: {error}")
            continue
        if copy is not None:
            found[name] = copy
    if len(listed) > LOOKED_AT:
        say(f"{len(listed) - LOOKED_AT} older copies are left out. To have them tried, delete those named above.")
    return found


def _copy(blobs: Blobs, name: str, size: int) -> Control | None:
    """A copy; None if it was deleted since it was listed. Raise `CorruptState` if it is none."""
    revision = copy_revision(name)
    if revision is None or revision >= ABSURD:
        raise CorruptState("No copy of a control blob has this name", blob=name)
    if size > LEASED_BYTES_MAX:
        raise CorruptState(f"No control blob has {size} bytes", blob=name)
    span = blobs.read(name, 0, LEASED_BYTES_MAX)  # it may have been replaced meanwhile
    if isinstance(span, Missing):
        return None
    copy = control_blob.decode(bytes(span.data))
    if copy.revision != revision or max(copy.epoch, copy.version) >= ABSURD:
        raise CorruptState("It has a revision, a version or an epoch that this copy cannot have", blob=name)
    return copy


def newest_of(current: Control | None, copies: Mapping[str, Control]) -> Newest | None:
    """The newest value of the group's blob. Raise `ConfigError` if the copies are those of another group."""
    found = [Newest(name, each) for name, each in copies.items()]
    found += [Newest(NAME, current)] if current is not None else []
    groups: dict[str, list[str]] = {}
    for each in found:
        groups.setdefault(each.control.group_id, []).append(each.name)
    if len(groups) > 1:
        whose = "; ".join(f"of {group} {', '.join(names)}" for group, names in groups.items())
        raise ConfigError(
            f"{NAME} and its copies below {COPIES} belong to {len(groups)} groups: {whose}. A samza-azure delete JOB "
            "--all that was interrupted leaves that: run it again. Otherwise a new group was begun here after the "
            "control blob of an earlier one was lost, or a blob was put here from elsewhere: delete the blobs of the "
            "group that is not to go on, and run this command again."
        )
    return max(found, key=lambda each: each.control.revision, default=None)


async def _known(held: Held, base: Control, blobs: Blobs, revisions: Sequence[int]) -> Evidence:
    """What the logs and rows say."""
    row = await held.table.get(LEADER, LEADER, timeout=CALL_S)
    leader = leader_row(row.etag, row.values) if row is not None else None
    said = [each.adopted for each in await members(held.table)]
    said += [leader.version] if leader is not None else []
    logs = await asyncio.to_thread(_logs, blobs, base)
    used = [each for each in said if each < ABSURD]
    used += [*revisions, *(each.generation for each in logs.values() if each.generation < ABSURD)]
    epoch = leader.epoch if leader is not None and leader.epoch < ABSURD else 0
    partitions = [source_partition(name, number) for name, count in base.sources.items() for number in range(count)]
    ends = await asyncio.to_thread(ends_of, blobs, {*partitions, *base.positions})
    return Evidence(max(used, default=0), epoch, logs, await asyncio.to_thread(runs_in, blobs), ends)


def _logs(blobs: Blobs, base: Control) -> dict[str, LastOfLog]:
    """The last record of each log of the run's tasks, and up to where the task has read others."""
    listed = dict(first_blobs(blobs, run_folder(base.run_id))) if base.run_id else {}
    logs = {task: log for task in base.tasks if (log := task_log(base.run_id, task)) in listed}
    numbers: dict[str, list[int]] = {}
    for stage, number in map(stage_and_number, base.tasks):
        numbers.setdefault(stage, []).append(number)
    one_of = {stage_and_number(task)[0]: log for task, log in logs.items()}

    def last(task: str) -> LastOfLog:
        reader = LogReader(blobs, logs[task])
        found = reader.tail()
        assert found is not None, "it is listed with its size"
        head = found.header
        read = {partition: (at[0], at[1]) for partition, at in head.meta.get(READ, {}).items()}
        # A task that is no query has no plan: then the first blob that it still needs is all that is known.
        needs = {log: (blob, 0) for log, blob in head.meta.get(NEEDS, {}).items()}
        stands = {each: needs[log] for each, log in logs.items() if log in needs}
        stage, number = stage_and_number(task)
        for offset in _offsets(reader.last_plan()):
            if (writer := stages.get(offset.of)) is not None:
                among = len(numbers[writer])
                # If the rows are not divided by a key, a task reads some of the writer's tasks.
                some = range(among) if len(offset.at) == among else partitions_of(number, len(numbers[stage]), among)
                for each, at in zip(some, offset.positions, strict=False):
                    name = task_name(writer, each)
                    stands[name] = max(at, stands.get(name, at))
        drained = head.kind.name == "DRAINED" and not head.meta.get(SHUT_DOWN, False)
        return LastOfLog(head.group_id.hex(), head.writer.generation, drained, read, found.end, stands)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        written = threads.map(lambda log: _stream_of(blobs, log, listed[log]), one_of.values())
        stages = dict(zip(written, one_of, strict=True))  # by the stream that each writes
        return dict(zip(logs, threads.map(last, logs), strict=True))


def _stream_of(blobs: Blobs, log: str, first: int) -> str:
    try:
        return stream_of(blobs, log, first)
    except CorruptState:
        return ""  # a start may not need this blob


def _offsets(plan: bytes | None) -> list[Offset]:
    """Up to where a task has read, by the plan of its last batch; none if it makes no sense, as its start will say."""
    try:
        return [each for each in plan_of(plan)[1] if each is not None] if plan is not None else []
    except (ValueError, KeyError, TypeError):
        return []


def _found(current: Control | None, newest: Newest, known: Evidence) -> str:
    """What was found, for people."""
    there = f"of revision {current.revision}" if current is not None else "missing, or cannot be read"
    stages = sorted({stage_and_number(task)[0] for task in known.logs})
    ahead = max((each.generation for each in known.logs.values()), default=0)
    logs = f"The logs of {len(known.logs)} tasks ({', '.join(stages)}) have owners up to version {ahead}."
    best = f"The newest that is known is {newest.name}, of revision {newest.control.revision}"
    run = f"run {newest.control.run_id}, {newest.control.phase}" if newest.control.run_id else "no run"
    return f"{NAME} is {there}. {best}: {run}. {logs if known.logs else 'There are no logs of its tasks.'}"


def _nothing_known(config: Config, blobs: Blobs, held: Held) -> str:
    """What to do if neither the control blob nor a copy of it can be read."""
    way_out = _way_out(config)
    if left := [NAME] * bool(held.damage) + [folder for folder in (RUNS, COPIES) if blobs.list(folder)]:
        return (
            f"The container has {', '.join(left)}, but neither a {NAME} nor a copy of it that can be read, so nobody "
            f"knows where the run began to read. {way_out}"
        )
    nothing = f"{config.app.name!r} has neither {NAME}, nor a copy of it, nor task logs"
    if written := [folder for folder in (FILES, TABLES) if blobs.list(folder)]:
        return (
            f"{nothing}. If it has never run, and others wrote what is below {' and '.join(written)}, start it. If it "
            f"has run, a start would read its sources again from their beginning. {way_out}"
        )
    return f"{nothing}, files or tables: it has never run. Start it."


def _way_out(config: Config) -> str:
    return (
        "This run cannot go on. Restore what is missing, if there is a backup, and run this command again. Otherwise "
        f"export what can be exported, then give the job another app.id, produce its sources again, and start it; or "
        f"delete all of it with samza-azure delete {in_shell(config)} --all."
    )


def _what_next(after: Control) -> str:
    match after.phase:
        case RunPhase.DRAINED:
            return f"run {after.run_id} is drained, and the next one begins where it ended."
        case RunPhase.DRAINING:
            return f"run {after.run_id} goes on, and so does its drain."
        case RunPhase.NONE:
            return "the first run begins."
    return f"run {after.run_id} goes on."
