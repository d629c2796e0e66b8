"""Compaction by hand, as `samza-azure compact` does it."""

from typing import Annotated

import typer

from samza_azure.commands.job import Job, load
from samza_azure.commands.reach import reach
from samza_azure.commands.table import Span, Table, interval_of, unique
from samza_azure.segments import Owner, Task
from samza_azure.tables import compact, plan, store_of


def command(
    job: Job,
    table: Table,
    interval: Span = None,
    target: Annotated[int, typer.Option("--target-mib", min=1, help="How large a file may become.")] = 128,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be merged, and merge nothing.")] = False,
) -> None:
    """Merge the small segments of a table while others append to it.

    Example: samza-azure compact job.toml daily_delays --interval 2013-01-01/2013-02-01
    """
    span = interval_of(interval)
    store = store_of(reach(load(job)), table)
    if dry_run:
        for group in plan(store, span, target_bytes=target << 20):
            print(f"{group[0].interval}: {len(group)} segments")
        return
    name = unique("compact")
    refused = 0
    for done in compact(store, Task(name, name, 0, Owner(name, name)), span, target_bytes=target << 20):
        print(done.refused or f"{done.inputs} segments became {done.outputs}")
        refused += bool(done.refused)
    if refused:
        print(f"{refused} groups were left as they are: others hold them. Call it again.")
