"""`samza-azure table`: show a table, drop an interval of it, and restore it."""

import json
import uuid
from typing import Annotated, Any

import typer

from samza_azure.commands.connect import connect
from samza_azure.commands.delete import confirm
from samza_azure.commands.job import Job, load
from samza_azure.commands.terminal import tell
from samza_azure.errors import ConfigError
from samza_azure.segments import ETERNITY, Interval, LockOwner, LockTask, Published, Timeline
from samza_azure.tables import plan, store_of
from samza_azure.tables.store.segments import SegmentStore

TableName = Annotated[str, typer.Argument(help="The table's name.", show_default=False)]
IntervalOption = Annotated[
    str | None, typer.Option("--interval", help="START/END, as in 2026-01-01/2026-02-01; by default all time.")
]


#: Above the priority of appends: a sink whose lock is revoked acquires another one.
DROP_PRIORITY = 100


def interval_of(text: str | None, option: str = "--interval") -> Interval:
    """Parse the interval. An invalid one ends the command with exit code 2."""
    try:
        found = ETERNITY if text is None else Interval.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
    if found.is_empty:
        raise typer.BadParameter(f"{text} is empty: it ends where it begins.", param_hint=option)
    return found


def document(store: SegmentStore, interval: Interval) -> dict[str, Any]:
    """The document that `--json` prints."""
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
    table: TableName,
    interval: IntervalOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    end: Annotated[
        int | None, typer.Option("--end", help="First end the owners of this lock, if they have died.")
    ] = None,
    drop: Annotated[
        str | None, typer.Option("--drop", help="First hide the rows of START/END. Asks for the table's name.")
    ] = None,
    restore: Annotated[str | None, typer.Option("--restore", help="First undo the drop of exactly START/END.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")] = False,
) -> None:
    """Show a table: intervals, segments, sizes, locks, garbage, and what compaction would do.

    Rows that --drop hides stay until garbage is collected; until then --restore shows them again.

    Example: samza-azure table job.toml daily_delays --interval 2013-01-01/2013-02-01
    """
    span = interval_of(interval)
    if drop is not None and restore is not None:
        raise ConfigError("--drop and --restore cannot be used together. Use one, and then the other.")
    hidden, shown = (interval_of(text, option) for text, option in ((drop, "--drop"), (restore, "--restore")))
    store = store_of(connect(load(job), create=False), table)
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
    tell(f"{found['table']} at {found['sequence']}")
    for one in found["intervals"]:
        tell(
            f"{one['interval']}  version {one['version']}  {one['segments']} segments  {one['rows']:,} rows  "
            f"{one['bytes']:,} bytes"
        )
    for one in found["locks"]:
        of = "" if one["partitions"] is None else f" partitions {one['partitions']}"
        state = "revoked" if one["revoked"] else f"{one['publishes']} publishes"
        tell(f"lock {one['id']}  {one['type']} of {one['group']}  {one['interval']}{of}  {state}")
    for one in found["dropped"]:
        tell(f"{one} is dropped; --restore {one} undoes that until its garbage is collected")
    tell(f"garbage: {found['garbage']} segments; staged: {found['staged']}; foreign rows: {found['foreign_rows']}")
    for one in found["compaction"]:
        tell(f"compaction would merge {one['segments']} segments of {one['interval']}")


def end_holders(store: SegmentStore, number: int) -> None:
    """End the owners of a lock, with all their locks. An owner that is still alive is refused from then on."""
    box = store.state().box
    if (lock := box.locks.get(number)) is None:
        raise ConfigError(f"{store.name} has no lock {number}. It has {', '.join(map(str, box.locks)) or 'none'}.")
    for task in sorted(lock.holders):
        store.end(box.tasks[task].owner)


def dropped(timeline: Timeline, interval: Interval) -> list[Interval]:
    """The intervals that show no rows because of a drop that can be undone."""
    return [
        one.interval
        for one in timeline.chunks
        if one.interval.overlaps(interval) and timeline.is_drop(one) and timeline.below(one) and not timeline.above(one)
    ]


def drop_interval(store: SegmentStore, interval: Interval, *, yes: bool) -> None:
    """Hide all rows of an interval. Raise `ConfigError` if it has none, or if it is locked with a higher priority."""
    timeline = store.latest().timeline
    there = [one for entry in timeline.lookup(interval) for one in entry.segments if one.file]
    if not there:
        raise ConfigError(f"{store.name} shows no rows in {interval}, so there is nothing to drop.")
    rows, part = sum(one.file.rows for one in there if one.file), ""
    if not all(interval.contains(one.interval) for one in there):
        part = ", some of them outside it, which stay"
    what = f"This hides the rows of {interval} of {store.name}: {len(there)} segments of {rows:,} rows{part}."
    back = f"--restore {interval} undoes it until garbage is collected, unless rows are added there meanwhile."
    confirm(what, store.name, yes=yes, back=back, done="dropped")
    name = unique("drop")
    answer = store.drop(LockTask(name, name, DROP_PRIORITY, LockOwner(name, name)), interval)
    if not isinstance(answer, Published):
        raise ConfigError(f"{interval} of {store.name} was not dropped: others hold it. Try again later. ({answer})")


def restore_interval(store: SegmentStore, interval: Interval) -> None:
    """Undo a drop. Raise `ConfigError` if there is none that can be undone."""
    if not store.restore(interval):
        drops = ", ".join(map(str, dropped(store.latest().timeline, ETERNITY))) or "none"
        raise ConfigError(
            f"There is no drop of exactly {interval} of {store.name} that could be undone; its garbage may have been "
            f"collected. Dropped intervals: {drops}."
        )


def unique(what: str) -> str:
    """A name for one run of a command."""
    return f"{what}-{uuid.uuid4().hex[:8]}"
