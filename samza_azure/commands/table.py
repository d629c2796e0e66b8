"""What a table holds, as `samza-azure table` shows it."""

import json
import uuid
from typing import Annotated, Any

import typer

from samza_azure.commands.job import Job, load
from samza_azure.commands.reach import reach
from samza_azure.errors import ConfigError
from samza_azure.segments import ETERNITY, Interval
from samza_azure.storage.segments import SegmentStore
from samza_azure.tables import plan, store_of

Table = Annotated[str, typer.Argument(help="The table's name.", show_default=False)]
Span = Annotated[
    str | None, typer.Option("--interval", help="START/END, as in 2026-01-01/2026-02-01; all time without it.")
]


def interval_of(text: str | None) -> Interval:
    """The interval that was asked for. A text that is none ends the command with exit code 2."""
    try:
        return ETERNITY if text is None else Interval.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--interval") from error


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
        "garbage": len(timeline.fully_overshadowed()),
        "staged": len(snapshot.staged),
        "foreign_rows": snapshot.foreign,
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
) -> None:
    """Show a table: intervals, segments, sizes, locks, garbage, and what compaction would do.

    Example: samza-azure table job.toml daily_delays --interval 2013-01-01/2013-02-01
    """
    span = interval_of(interval)
    store = store_of(reach(load(job), create=False), table)
    if end is not None:
        end_holders(store, end)
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


def unique(what: str) -> str:
    """A name for one who is there for one command."""
    return f"{what}-{uuid.uuid4().hex[:8]}"
