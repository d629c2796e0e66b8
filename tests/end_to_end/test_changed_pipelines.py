"""A fleet meets another pipeline than its own: one that does not fit, one that fails, and the one that is mended."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from .real_processes import PATIENCE_S, JobOnAzurite, daily, daily_rows

FAILS_ON_ZZ = "rows.where(\"if(carrier = 'ZZ', raise_error('no such carrier'), true)\").withWatermark"


@pytest.mark.long  # tests/commands has a processor that does not fit
def test_another_pipeline_is_refused_while_the_run_goes_on(world: JobOnAzurite) -> None:
    world.start("p0")
    changed = world.another("changed", "", lambda text: text.replace('alias("delay")', 'alias("mean_delay")'))
    changed.start("p1")
    assert changed.exit_codes(PATIENCE_S) == {"p1": 2}
    said = changed.log_file("p1").read_text()
    assert "has another pipeline" in said and "samza-azure drain" in said
    assert "lost column delay (double)" in said and "gained column mean_delay (double)" in said
    world.settled()


@pytest.mark.long  # tests/spark has the task, tests/group and tests/sim the run that fails and is resumed
def test_a_stage_that_raises_fails_the_run_and_a_fix_resumes_it(world: JobOnAzurite) -> None:
    assert world.drained() == {"p0": 0}
    failing = world.another(
        "failing",
        "[task]\nrestart.limit = 1\n",
        lambda text: text.replace("rows.withWatermark", FAILS_ON_ZZ),
    )
    failing.start("p0", "--new-run")
    world.fleet.processes.pop("p0")
    failing.wait_until(
        "all run",
        lambda shown: all(task["phase"] == "RUNNING" for task in shown["tasks"]) and bool(shown["tasks"]),
        PATIENCE_S,
    )
    poison = pa.table(
        {"carrier": ["ZZ"], "dest": ["ZZZ"], "ts": world.flights["ts"].slice(world.produced, 1), "dep_delay": [1.0]}
    )
    world.flights = pa.concat_tables(
        [world.flights.slice(0, world.produced), poison.cast(world.flights.schema), world.flights.slice(world.produced)]
    )
    world.produce(3_000)
    assert failing.exit_codes(PATIENCE_S) == {"p0": 1}
    shown = failing.status()
    assert shown["phase"] == "FAILED"
    assert shown["failure"]["stage"] == "daily_delays"
    assert "no such carrier" in shown["failure"]["message"] + shown["failure"]["traceback"]
    assert "no such carrier" in failing.log_file("p0").read_text()
    pipeline = failing.job.parent / "pipeline.py"
    pipeline.write_text(pipeline.read_text().replace("raise_error('no such carrier')", "true"))
    failing.start("p0")
    failing.wait_until(
        "the run goes on", lambda shown: shown["phase"] == "RUNNING" and bool(shown["tasks"]), PATIENCE_S
    )
    world.exact()
    assert world.command("drain", "--wait", "--timeout", "60").returncode == 0
    assert failing.exit_codes(PATIENCE_S) == {"p0": 0}
    assert totals(daily_rows(world.stream("daily-delays"))) == totals(daily(world.rows_up_to_positions()))


def totals(rows: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """Flights and minutes of each day and carrier: a window that a drain has cut off has a row from each run."""
    found: Counter[tuple[Any, ...]] = Counter()
    for (day, carrier, flights, delay), times in rows.items():
        found[day, carrier, "flights"] += times * flights
        found[day, carrier, "minutes"] += times * round(flights * delay)
    return found
