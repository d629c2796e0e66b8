"""Compaction by hand, as `samza-azure compact` does it."""

from typing import Annotated

import typer

from samza_azure.commands.connect import connect
from samza_azure.commands.job import Job, load
from samza_azure.commands.table import IntervalOption, TableName, interval_of, unique
from samza_azure.commands.terminal import tell
from samza_azure.segments import Granularity, LockOwner, LockTask
from samza_azure.tables import Compacted, Unmerged, compact, plan, rewrite, store_of

NOTHING = "There is nothing to do: the files are merged already, or the table has no rows there."


def command(
    job: Job,
    table: TableName,
    interval: IntervalOption = None,
    target: Annotated[int, typer.Option("--target-mib", min=1, help="The size of file to aim at.")] = 128,
    granularity: Annotated[
        Granularity | None,
        typer.Option(help="Rewrite with intervals of this length; rows appended meanwhile are carried over."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be merged, and merge nothing.")] = False,
) -> None:
    """Merge the small segments of a table while others append to it.

    With --granularity month it turns days into months, or with day months into days; --dry-run shows what is there now.

    Example: samza-azure compact job.toml daily_delays --interval 2013-01-01/2013-02-01
    """
    span = interval_of(interval)
    store = store_of(connect(load(job), create=False), table)
    if dry_run and granularity is not None:
        for entry in store.latest().timeline.lookup(span):
            tell(f"{entry.interval}: {len(entry.segments)} segments of {entry.chunk.interval} by {granularity}")
        return
    if dry_run:
        for group in (found := plan(store, span, target_bytes=target << 20)):
            tell(f"{group[0].interval}: {len(group)} segments")
        if not found:
            tell(NOTHING)
        return
    name = unique("compact")
    task = LockTask(name, name, 0, LockOwner(name, name))
    if granularity is None:
        all_done = compact(store, task, span, target_bytes=target << 20)
    else:
        all_done = [rewrite(store, task, span, granularity, target_bytes=target << 20)]
    if all_done in ([], [Compacted()]):
        tell(NOTHING)
        return
    refused = 0
    for done in all_done:
        tell(done.refused or f"{done.inputs} segments became {done.outputs}")
        refused += done.why not in (None, Unmerged.MERGED)
    if refused:
        tell(f"{refused} groups were not changed. If others hold their locks, run this command again later.")
