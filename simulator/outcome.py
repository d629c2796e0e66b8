"""S7: when a run is drained, each row of its input is in the output exactly once."""

import json
from collections import Counter
from collections.abc import Mapping

from samza_azure.group.control import Control
from samza_azure.logs.names import stage_and_number, task_log, task_name
from samza_azure.logs.reading import fetch_part, scan
from samza_azure.storage.memory import MemoryAccount
from samza_azure.stream_io.driver import drive
from simulator.container import CLEANERS, FAREWELL, SourceRow
from simulator.ledger import Ledger, demand


def check_output(ledger: Ledger, control: Control, rows: Mapping[int, range], tasks: int, *, handled: bool) -> int:
    """Check that the drained run has written what a serial reader of these rows would. Return the number of windows.

    `tasks` is the number of tasks that count rows.
    """
    stages = {stage_and_number(task)[0] for task in control.tasks} & {*CLEANERS, "audit"}
    for number, wanted in rows.items():
        for stage in stages:
            got = [row for part in _read(ledger, control.run_id, task_name(stage, number)) for row in part]
            farewells = [FAREWELL] if stage == "audit" and handled else []  # of `on_drain`, one
            stop = ledger.stopped_at(control.run_id, task_name(stage, number))
            due = wanted if stop is None else range(wanted.start, stop)
            wrong = sorted(map(tuple, got)) != [(number, each) for each in (*farewells, *due)]
            demand(not wrong, f"S7: {stage}-{number} wrote {len(got)} rows of {len(due)}")
    counts: Counter[tuple[int, int]] = Counter()
    results: dict[tuple[int, int], tuple[int, int]] = {}
    for number in range(tasks):
        for part in _read(ledger, control.run_id, f"daily-{number}"):
            for window, key, count, total in part:
                counts[window, key] += 1
                results[window, key] = (count, total)
    twice = [name for name, times in counts.items() if times > 1]
    demand(not twice, f"S7: the windows {twice} came out more than once")
    expected = _outcome(rows)
    demand(results == expected, f"S7: {len(results)} results, {len(expected)} expected, and they differ")
    return len(expected)


def _outcome(rows: Mapping[int, range]) -> dict[tuple[int, int], tuple[int, int]]:
    """The counts of a serial reader of these rows: (window, key) -> count, sum of row numbers."""
    counts: dict[tuple[int, int], tuple[int, int]] = {}
    for partition, numbers in rows.items():
        for number in numbers:
            row = SourceRow(partition, number)
            count, total = counts.get((row.window, row.key), (0, 0))
            counts[row.window, row.key] = count + 1, total + number
    return counts


def _read(ledger: Ledger, run_id: str, task: str) -> list[list[list[int]]]:
    """All rows of a log, in their order, read by the real rules on a perfect link."""
    blobs = MemoryAccount(ledger.all_written()).blobs()
    found = drive(scan(task_log(run_id, task), (0, 0), reads_max=None), blobs)
    return [json.loads(drive(fetch_part(part), blobs)) for part in found.parts]
