"""One of three processors leaves under load: told beforehand, and killed.

Real processors on the emulator, with windows as state, while rows come in. A task pauses from the last append of its
old owner to the first one of the next; both are taken from what the owners report. After a notice it is also measured
how long it takes until all tasks are handed over, and how many input rows are repeated. After a kill nobody can say how
many rows are: at most those of one batch per task.
"""

import asyncio
import signal
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common import CONNECT, EXAMPLE, Claim, flights, main, middle, say
from hand_over import FLUSH_EVERY_S, ROWS_A_FLUSH

from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.commands.fleet import Fleet, all_running
from samza_azure.commands.requests import ask_notice
from samza_azure.group.notice import Availability
from samza_azure.group.rows import ProcessorRow, RequestKind
from samza_azure.machine.clock import boot_time, wall_ms
from samza_azure.storage.connection import Account
from samza_azure.stream_io.ddl import arrow_schema
from samza_azure.stream_io.source_stream import SourceWriter

GOAL_S = 10.0
NOTICE_S = 30.0
NAMES = ("p0", "p1", "p2")
PATIENCE_S = 300.0


def measure(quick: bool) -> list[Claim]:
    """Each of both, once or several times."""
    told, killed = [], []
    for _ in range(1 if quick else 5):
        told.append(leave(kill=False, quick=quick))
        killed.append(leave(kill=True, quick=quick))
    handed_over = [each["handed_over_s"] for each in told]
    pauses = [pause for each in told for pause in each["pauses"]]
    after_kill = [pause for each in killed for pause in each["pauses"]]
    repeated = sum(each["repeated"] for each in told)
    return [
        Claim(
            "notice of 30 s: all tasks handed over after",
            f"{middle(handed_over):.1f} s (median of {len(handed_over)})",
            f"{GOAL_S:g} s",
            middle(handed_over) <= GOAL_S,
        ),
        Claim(
            "the same: pause of a task", f"{middle(pauses):.1f} s, {max(pauses):.1f} s at most ({len(pauses)} tasks)"
        ),
        Claim("the same: input rows repeated", f"{repeated}", "0", repeated == 0),
        Claim("kill -9: pause of a task", f"{middle(after_kill):.1f} s, {max(after_kill):.1f} s at most"),
    ]


def leave(*, kill: bool, quick: bool) -> dict[str, Any]:
    """One fleet, of which a follower leaves."""
    with Azurite() as azurite, tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.toml"
        for name in ("job.toml", "pipeline.py"):
            (Path(folder) / name).write_text((EXAMPLE / name).read_text())
        if quick:
            job.write_text(job.read_text().replace("partitions = 4", "partitions = 3"))
        fleet = Fleet(job, Path(folder) / "logs", {CONNECT: azurite.connection_string})
        try:
            return _leaves(fleet, kill=kill)
        finally:
            fleet.stop()


def _leaves(fleet: Fleet, *, kill: bool) -> dict[str, Any]:
    for name in NAMES:
        fleet.start(name)
    rows, at = flights(1), 0
    account = Account.from_config(fleet.config.storage)
    account.ensure_created()
    stream = fleet.config.streams["flights"]
    source = SourceWriter(
        account.blobs(),
        account.hints(),
        "flights",
        stream.partitions,
        schema=arrow_schema(stream.schema or ""),
        event_time=stream.event_time,
    )
    try:
        until = time.monotonic() + PATIENCE_S
        while not _is_warm(fleet.status()):
            at = _produce(source, rows, at)
            assert time.monotonic() < until, fleet.status()
        shown = fleet.status()
        victim = next(each for each in shown["processors"] if each["id"] != shown["leader"])

        def feed() -> None:
            nonlocal at
            at = _produce(source, rows, at)

        return watch(fleet, victim, feed, kill=kill)
    finally:
        source.close()
        account.close()


def watch(fleet: Fleet, victim: dict[str, Any], feed: Callable[[], None], *, kill: bool) -> dict[str, Any]:
    """Let a processor of the status leave, and feed the fleet until its tasks have appended elsewhere."""
    had, who = victim["tasks"], victim["id"]
    say(f"{who} is {'killed' if kill else 'told'} with {', '.join(had)}")
    last = dict.fromkeys(had, 0.0)
    begun = boot_time()
    for row in fleet.look()[1]:  # by the next look it may have handed over all of them
        _note(row, who, had, last, {})
    if kill:
        fleet.send(who, signal.SIGKILL)
    else:
        asyncio.run(_ask(fleet, victim["incarnation"]))
    result: dict[str, Any] = {"handed_over_s": None, "repeated": 0}
    first: dict[str, float] = {}
    while len(first) < len(had) or not (kill or result["handed_over_s"]):
        feed()
        for row in fleet.look()[1]:
            _note(row, who, had, last, first)
            going = row.going if row.processor == who else None
            if going is not None and going.state is Availability.DECOMMISSIONED and not result["handed_over_s"]:
                result |= {"handed_over_s": boot_time() - begun, "repeated": going.repeated}
        assert boot_time() < begun + PATIENCE_S, (first, last)
    result["pauses"] = [max(first[task] - last[task], 0.0) for task in had]
    if not kill:
        result["waited"] = [first[task] - _released(fleet, who, task) for task in had]
    say(f"{result}")
    return result


def _released(fleet: Fleet, who: str, task: str) -> float:
    """When a processor has released a task for the last time, by the clock of appends: its log says it."""
    lines = fleet.log_file(who).read_text().splitlines()
    last = next(line for line in reversed(lines) if line.endswith(f" task {task} RELEASED"))
    at = datetime.strptime(" ".join(last.split()[:2]), "%Y-%m-%d %H:%M:%S.%fZ").replace(tzinfo=UTC)
    return boot_time() - (wall_ms() / 1000 - at.timestamp())


def _note(row: ProcessorRow, who: str, had: list[str], last: dict[str, float], first: dict[str, float]) -> None:
    """Note the last append of a task by the one that leaves, and the first one of its next owner, by one clock."""
    for task, report in row.tasks.items():
        if task not in had:
            continue
        if row.processor == who and report.progress is not None and report.progress.appended_ms is not None:
            last[task] = max(last[task], boot_time() - (wall_ms() - report.progress.appended_ms) / 1000)
        if row.processor != who and report.appended_at is not None and last[task]:
            first.setdefault(task, report.appended_at)


async def _ask(fleet: Fleet, incarnation: str) -> None:
    account = Account.from_config(fleet.config.storage)
    try:
        until_ms = wall_ms() + int(NOTICE_S * 1000)
        await ask_notice(account.rows(), RequestKind.DECOMMISSION, incarnation, until_ms)
    finally:
        await account.aclose()


def _is_warm(shown: dict[str, Any]) -> bool:
    """Whether all run, each has a share, and each task has appended."""
    shares = [len(each["tasks"]) for each in shown["processors"]]
    return all_running(shown) and len(shares) == len(NAMES) and min(shares) > 0 and _all_appended(shown)


def _all_appended(shown: dict[str, Any]) -> bool:
    return all(task["progress"] is not None and task["progress"]["batches"] > 1 for task in shown["tasks"])


def _produce(source: SourceWriter, rows: Any, at: int) -> int:
    source.write(rows.slice(at % rows.num_rows, ROWS_A_FLUSH), "dest")
    source.flush()
    time.sleep(FLUSH_EVERY_S)
    return at + ROWS_A_FLUSH


if __name__ == "__main__":
    main(measure, __doc__)
