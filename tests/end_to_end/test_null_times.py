"""Jobs that rely on what is never null, as their authors wrote them: on two processors, of which one is killed."""

import signal
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark import null_time_jobs

from .real_processes import PATIENCE_S, TIMING, JobOnAzurite, rows_of

JOB = f"""
[app]
name = "flights"
main = "pipeline:app"
{TIMING}
[azure.storage]
connect = "${{AZURE_STORAGE_CONNECTION_STRING}}"
{null_time_jobs.STREAMS}
"""
Row = dict[str, Any]
Rows = dict[str, list[Row]]


def outer(left: list[Row], right: list[Row], meet: Callable[[Row, Row], bool], *, full: bool) -> list[Row]:
    """A left or full outer join, row by row."""
    nothing_left, nothing_right = dict.fromkeys(left[0]), dict.fromkeys(right[0])
    found = [{**one, **other} for one in left for other in right if meet(one, other)]
    found += [{**one, **nothing_right} for one in left if not any(meet(one, other) for other in right)]
    alone = [other for other in right if not any(meet(one, other) for one in left)]
    return found + [{**nothing_left, **other} for other in alone if full]


def within(first: datetime, then: datetime, minutes: int) -> bool:
    return first <= then <= first + timedelta(minutes=minutes)


def expected(rows: Rows) -> Rows:
    """What the four jobs emit as one batch, without Spark."""
    timed = [each for each in rows["raw"] if each["at"] is not None]
    orders = [{"orderId": each["id"], "ordered": each["at"]} for each in timed if each["kind"] == "order"]
    payments = [{"paidId": each["id"], "paid": each["at"]} for each in timed if each["kind"] == "payment"]
    hours = Counter(
        (each["clickTime"].replace(minute=59, second=59, microsecond=999_999), each["clickAdId"])
        for each in rows["clicks"]
    )
    return {
        "matched": outer(
            rows["impressions"],
            rows["clicks"],
            lambda one, other: (
                one["impressionAdId"] == other["clickAdId"] and within(one["impressionTime"], other["clickTime"], 60)
            ),
            full=False,
        ),
        "settled": outer(
            orders,
            payments,
            lambda one, other: one["orderId"] == other["paidId"] and within(one["ordered"], other["paid"], 60),
            full=True,
        ),
        "peaks": [
            {
                "hour": hour,
                "most": max(count for (each, _), count in hours.items() if each == hour),
                "all": sum(count for (each, _), count in hours.items() if each == hour),
            }
            for hour in {hour for hour, _ in hours}
        ],
        "alarms": outer(
            rows["telemetry"],
            rows["alerts"],
            lambda one, other: (
                (one["region"] or "?") == (other["alertRegion"] or "?") and within(one["read"], other["raised"], 30)
            ),
            full=True,
        ),
    }


@pytest.mark.long  # tests/spark/test_nulls.py runs them without processes
def test_the_four_null_time_jobs_on_two_processors_of_which_one_is_killed(tmp_path: Path, flights: pa.Table) -> None:
    world = JobOnAzurite(tmp_path, flights)
    try:
        world.fleet.job.write_text(JOB)
        (world.directory / "pipeline.py").write_text(Path(null_time_jobs.__file__).read_text())
        rows = dict(null_time_jobs.rows(300))

        def produce(first: int, end: int) -> None:
            for stream, each in rows.items():
                pq.write_table(pa.Table.from_pylist(each[first:end]), world.directory / "rows.parquet")
                ended = world.command("produce", stream, str(world.directory / "rows.parquet"))
                assert ended.returncode == 0, ended.stderr

        world.start("p0", "p1")
        produce(0, 150)
        world.fleet.send("p1", signal.SIGKILL)
        produce(150, 300)
        world.settled()
        drained = world.command("drain", "--when-caught-up", "--wait", "--timeout", str(PATIENCE_S))
        assert drained.returncode == 0, drained.stderr
        assert world.fleet.exit_codes(PATIENCE_S)["p0"] == 0
        for stream, found in expected(rows).items():
            kinds = world.stream(stream).schema
            assert rows_of(world.stream(stream)) == rows_of(pa.Table.from_pylist(found, schema=kinds)), stream
    finally:
        world.close()
