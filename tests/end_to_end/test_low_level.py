"""A fleet whose only stage is a low-level task, the example's; containers are killed in mid-drain."""

from collections import Counter

import pyarrow as pa
import pytest

from .real_processes import PARTITIONS, PATIENCE_S, ROOT, JobOnAzurite

EXAMPLE = ROOT / "examples" / "lowlevel"


def texts(flights: pa.Table) -> Counter[str]:
    """The expected messages about these flights."""
    return Counter(
        f"{row['carrier']} of {row['ts']:%d %B, %H:%M} is {row['dep_delay'] / 60:.1f} hours late"
        for row in flights.to_pylist()
        if row["dep_delay"] is not None and row["dep_delay"] > 120
    )


@pytest.mark.long  # the same without processes: tests/spark/test_handlers.py
@pytest.mark.parametrize("point", ["before the end of Alert", "after the end of Alert", "FLUSHING"])
def test_rows_of_on_drain_and_of_timers_are_exactly_once_under_kill_9(
    tmp_path_factory: pytest.TempPathFactory, flights: pa.Table, point: str
) -> None:
    """kill -9 of a container when on_drain has been called and its record is not written, or just was.

    The timers are short, so some fire by the clock, and the last ones by the drain.
    """
    world = JobOnAzurite(tmp_path_factory.mktemp("low"), flights)
    try:
        streams = (EXAMPLE / "job.toml").read_text().partition("[task]")[2].replace("partitions = 4", "partitions = 2")
        pipeline = (EXAMPLE / "pipeline.py").read_text().replace("timedelta(minutes=1)", "timedelta(seconds=1)")
        world.carries(f"[task]{streams}", pipeline)
        shown = world.start("p0", "p1")
        assert {each["name"] for each in shown["tasks"]} == {f"Alert-{number}" for number in range(PARTITIONS)}
        producer = world.producing(6_000, rate=2_000)
        world.kill_at("p0", "container", point)
        world.kill_at("p1", "container", point)
        draining = world.drain_begins()
        _, said = draining.communicate(timeout=PATIENCE_S)
        assert draining.returncode == 0, said
        assert set(world.fleet.exit_codes(PATIENCE_S).values()) == {0}
        assert producer.wait(PATIENCE_S) == 0
        assert world.kills_to_come() == [], "both containers came there and died"

        found = Counter[str]()
        totals, minutes = [], []
        for row in world.stream("alerts").to_pylist():
            if row["text"] == "told in this run":
                totals.append(row["number"])
            elif row["text"] == "told in a minute":
                minutes.append(row["number"])
            else:
                found[row["text"]] += row["number"]
        assert found == texts(world.rows_up_to_positions())
        assert len(totals) == PARTITIONS, "on_drain's row, once for each task"
        assert sum(totals) == found.total()
        assert sum(minutes) == found.total() and 0 not in minutes
        assert len(minutes) > PARTITIONS, "some came before the drain"
    finally:
        world.close()
