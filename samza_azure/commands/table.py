"""What a table holds, as `samza-azure table` shows it; and dropping an interval of it."""

import json
import uuid
from typing import Annotated, Any

import typer

from samza_azure.commands.delete import confirm
from samza_azure.commands.job import Job, load
from samza_azure.commands.reach import reach
from samza_azure.errors import ConfigError
from samza_azure.segments import ETERNITY, Interval, Owner, Published, Task, Timeline
from samza_azure.storage.segments import SegmentStore, versions_of_drops
from samza_azure.tables import plan, store_of

Table = Annotated[str, typer.Argument(help="The table's name.", show_default=False)]
Span = Annotated[
    str | None, typer.Option("--interval", help="START/END, as in 2026-01-01/2026-02-01; all time without it.")
]


#: Above who appends: a sink whose lock is revoked asks for another one.
DROP_PRIORITY = 100


def interval_of(text: str | None, option: str = "--interval") -> Interval:
    """The interval that was asked for. A text that is none ends the command with exit code 2."""
    try:
        found = ETERNITY if text is None else Interval.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
    if found.is_empty:
        raise typer.BadParameter(f"{text} is empty: it ends where it begins.", param_hint=option)
    return found


def document(store: SegmentStore, interval: Interval) -> dict[str, Any]:
    """All that is shown, as JSON has it."""
    state, snapshot = store.state(), store.snapshot()
    timeline = snapshot.timeline
    return {
        "table": store.name,
        "sequence": str(snapshot.sequence),
        "intervals": [
            {
                "interval": str(entry.interval),
                "version": entry.version,
                "segments": len(entry.segments),
                "rows": sum(one.file.rows for one in entry.segments if one.file),
                "bytes": sum(one.file.bytes for one in entry.segments if one.file),
            }
            for entry in timeline.lookup(interval)
        ],
        "locks": [
            {
                "id": lock.id,
                "type": str(lock.type),
                "group": lock.group,
                "interval": str(lock.interval),
                "version": lock.version,
                "partitions": None if lock.partitions is None else str(lock.partitions),
                "priority": lock.rank,
                "revoked": lock.revoked,
                "publishes": lock.count,
            }
            for lock in state.box.locks.values()
        ],
        "dropped": [str(one) for one in dropped(timeline, interval)],
        "garbage": len(timeline.fully_overshadowed()),
        "staged": len(snapshot.staged),
        "foreign_rows": snapshot.foreign + store.strangers(),
        "compaction": [{"interval": str(group[0].interval), "segments": len(group)} for group in plan(store, interval)],
    }


def command(
    job: Job,
    table: Table,
    interval: Span = None,
    as_json: Annotated[bool, typer.Option("--json", help="All of it, as one JSON document.")] = False,
    end: Annotated[
        int | None, typer.Option("--end", help="End the life of whoever holds this lock, which has died, first.")
    ] = None,
    drop: Annotated[
        str | None, typer.Option("--drop", help="Hide the rows of START/END first. Asks for the table's name.")
    ] = None,
    restore: Annotated[
        str | None, typer.Option("--restore", help="Take back the drop of exactly START/END first.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")] = False,
) -> None:
    """Show a table: intervals, segments, sizes, locks, garbage, and what compaction would do.

    What --drop hides is there until its garbage is collected; until then --restore shows it again.

    Example: samza-azure table job.toml daily_delays --interval 2013-01-01/2013-02-01
    """
    span = interval_of(interval)
    if drop is not None and restore is not None:
        raise ConfigError("--drop and --restore cannot be asked for at once. Take one, and then the other.")
    hidden, shown = (interval_of(text, option) for text, option in ((drop, "--drop"), (restore, "--restore")))
    store = store_of(reach(load(job), create=False), table)
    if end is not None:
        end_holders(store, end)
    if drop is not None:
        drop_interval(store, hidden, yes=yes)
    if restore is not None:
        restore_interval(store, shown)
    found = document(store, span)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print(f"{found['table']} at {found['sequence']}")
    for one in found["intervals"]:
        print(
            f"{one['interval']}  version {one['version']}  {one['segments']} segments  {one['rows']:,} rows  "
            f"{one['bytes']:,} bytes"
        )
    for one in found["locks"]:
        of = "" if one["partitions"] is None else f" partitions {one['partitions']}"
        state = "revoked" if one["revoked"] else f"{one['publishes']} publishes"
        print(f"lock {one['id']}  {one['type']} of {one['group']}  {one['interval']}{of}  {state}")
    for one in found["dropped"]:
        print(f"{one} is dropped; --restore {one} takes that back until its garbage is collected")
    print(f"garbage: {found['garbage']} segments; staged: {found['staged']}; foreign rows: {found['foreign_rows']}")
    for one in found["compaction"]:
        print(f"compaction would merge {one['segments']} segments of {one['interval']}")


def end_holders(store: SegmentStore, number: int) -> None:
    """End the lives of a lock's holders, with all their locks. Whoever lives all the same is refused from then on."""
    box = store.state().box
    if (lock := box.locks.get(number)) is None:
        raise ConfigError(f"{store.name} has no lock {number}. It has {', '.join(map(str, box.locks)) or 'none'}.")
    for task in sorted(lock.holders):
        store.end(box.tasks[task].owner)


def dropped(timeline: Timeline, interval: Interval) -> list[Interval]:
    """The intervals in which nothing is shown, and over which lies what can be taken back."""
    empty = {
        entry.chunk.interval: entry.version
        for entry in timeline.lookup(interval)
        if not any(one.file for one in entry.segments)
    }
    drops = versions_of_drops(timeline)
    return [
        one
        for one, version in empty.items()
        if version in drops
        and any(other.interval.overlaps(one) and other.version < version for other in timeline.chunks)
    ]


def drop_interval(store: SegmentStore, interval: Interval, *, yes: bool) -> None:
    """Hide all rows of an interval. ConfigError if it has none, or if others have it and go first."""
    timeline = store.latest().timeline
    there = [one for entry in timeline.lookup(interval) for one in entry.segments if one.file]
    if not there:
        raise ConfigError(f"{store.name} shows no rows in {interval}, so there is nothing to drop.")
    rows, part = sum(one.file.rows for one in there if one.file), ""
    if not all(interval.contains(one.interval) for one in there):
        part = ", of which some lie outside and stay"
    what = f"This hides the rows of {interval} of {store.name}: {len(there)} segments of {rows:,} rows{part}."
    back = f"--restore {interval} takes it back until garbage is collected, unless rows come there meanwhile."
    confirm(what, store.name, yes=yes, back=back, done="dropped")
    name = unique("drop")
    answer = store.drop(Task(name, name, DROP_PRIORITY, Owner(name, name)), interval)
    if not isinstance(answer, Published):
        raise ConfigError(f"{interval} of {store.name} was not dropped: others hold it. Try again later. ({answer})")


def restore_interval(store: SegmentStore, interval: Interval) -> None:
    """Take a drop back. ConfigError if there is none that can be."""
    if not store.restore(interval):
        drops = ", ".join(map(str, dropped(store.latest().timeline, ETERNITY))) or "none"
        raise ConfigError(
            f"There is no drop of exactly {interval} of {store.name} that could be taken back: its garbage may be "
            f"collected. Dropped are: {drops}."
        )


def unique(what: str) -> str:
    """A name for one who is there for one command."""
    return f"{what}-{uuid.uuid4().hex[:8]}"
