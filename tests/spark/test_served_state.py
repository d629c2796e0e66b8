"""Tasks whose state Spark finds at the container's server, as executors of a cluster do."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from samza_azure.application import Application
from samza_azure.spark.jvm.settings import STATE_HEADER, state_client
from samza_azure.spark.query.state_server import StateServer

from .task_driver import Fleet

HERE, NOON = "127.0.0.1", datetime(2026, 11, 29, 12, tzinfo=UTC)
JOB = """
[streams.seen]
schema = "key string, ts timestamp"
event_time = "ts"
"""


def test_a_state_machine_goes_on_with_the_state_that_is_served_to_its_next_owner(
    fleet: Callable[[Application, str], Fleet],
) -> None:
    """The metadata of its operator names files by their whole address, which each start has another one of."""
    application = Application()

    class Counted(StatefulProcessor):
        """The rows of a key: those of this batch, and all so far."""

        def init(self, handle: StatefulProcessorHandle) -> None:
            self.rows = handle.getValueState("rows", "so_far bigint")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            here = sum(map(len, rows))
            so_far = here + (self.rows.get()[0] if self.rows.exists() else 0)  # type: ignore[index]
            self.rows.update((so_far,))
            yield pd.DataFrame({"key": [key[0]], "here": [here], "so_far": [so_far]})

        def close(self) -> None:
            pass

    @application.stage("seen", output="counts")
    def count(rows: DataFrame) -> DataFrame:
        schema = "key string, here bigint, so_far bigint"
        return rows.groupBy("key").transformWithStateInPandas(Counted(), schema, "append", "None")

    run = fleet(application, JOB)
    settings = state_client()
    server = StateServer(HERE, HERE, settings[STATE_HEADER])
    found = run.spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in settings.items():
        found.set(name.removeprefix("spark.hadoop."), value)
    run._context = replace(run._context, state_server=server)
    try:
        writer = run.writer("seen", 1, flush_rows=1_000)
        for first in (True, False):
            run.start("count-0", first=first)
            assert (run.tasks["count-0"]._location or "").startswith("webhdfs://")  # type: ignore[attr-defined]
            writer.write(pa.table({"key": [f"{number % 5}" for number in range(10)], "ts": [NOON] * 10}))
            writer.flush()
            run.until_all_is_read("seen")
            if first:
                run.release("count-0")
        writer.close()
        run.drain()
    finally:
        server.close()
    rows = run.rows("counts")
    assert {(row["key"], row["here"], row["so_far"]) for row in rows} == {
        (f"{key}", 2, so_far) for key in range(5) for so_far in (2, 4)
    }
    assert len(rows) == 10
