"""One in a hundred messages is no row, and goes into the log beside the rows, through source tasks that are killed."""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from samza_azure.errors import StorageUnavailable, Superseded
from samza_azure.stream_io.log import LogReader
from samza_azure.tasks.source_task import SourceTask
from tests.storage.test_source_task import GROUP, PREFIX, Run, turn


def dead_letters(
    dice: random.Random,
    folder: Path,
    job: str,
    send: Callable[[int, Sequence[bytes]], None],
    events: int,
    patience_s: float,
) -> None:
    """Owner after owner puts rows and what is none into its log; a predecessor may still be at it. `send` puts messages
    into one of two partitions, whose positions count them.
    """
    sent, kills, most = 0, 0, 20  # of kills: each takes a moment, in which a few events would never be read
    zombies: list[SourceTask] = []
    bad = {number for number in range(events) if dice.random() < 0.01}
    run = Run(folder, job)
    task = run.owner(first=True)
    end = time.monotonic() + events / 50 + 5 * patience_s
    while sent < events or sum(each.position[1] for each in task._partitions.values()) < events or task._has_moved:
        assert time.monotonic() < end, "no progress"
        numbers = range(sent, min(events, sent + dice.randint(0, 2_000)))
        for partition in range(2):
            own = [n for n in numbers if n % 2 == partition]
            send(partition, [b"no %d" % n if n in bad else b'{"n": %d}' % n for n in own])
        sent = numbers.stop
        with suppress(StorageUnavailable):
            turn(task)
        if kills < most and dice.random() < 20 * 1_000 / events:
            kills += 1
            (zombies.append if dice.random() < 0.3 else SourceTask._leaves)(task)
            task = run.owner()
        for zombie in zombies:
            with suppress(StorageUnavailable, Superseded):
                zombie._turn()
    for each in [task, *zombies]:
        each._leaves()
    assert task._writer is not None
    found = []
    for destinations in ({0, 1}, {2, 3}):  # of rows, and of what is none
        reader = LogReader(run.blobs, PREFIX, frozenset(destinations), group_id=GROUP)
        batches = [batch for scan in reader.scans((0, 0), task._writer.position) for batch in reader.rows(scan.parts)]
        found.append(sorted(value for batch in batches for value in batch.column(0).to_pylist()))
    assert found[0] == sorted({*range(events)} - bad), "rows are missing, or twice"
    assert found[1] == sorted(b"no %d" % number for number in bad), "dead letters are missing, or twice"
    print(f"{events - len(bad):,} rows and {len(bad):,} dead letters are exact after {kills} kills")
