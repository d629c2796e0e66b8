"""The jobs of public questions (`asked.py`): those that are accepted emit what a batch does, the others are refused.

Several stages run beside each other, as one pipeline.
"""

from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from samza_azure.application import Application
from samza_azure.errors import PipelineRefused
from samza_azure.spark.pipeline.pipeline import analyse_pipeline

from .asked import ASKED, STREAMS, rows
from .compare import MakeFleet, Pieces, assert_equal
from .task_driver import config_of

#: Those that are refused, by a part of the message.
REFUSED = {
    # Right: a word is known only behind the explode, so which task counts it is decided there.
    "words": "Move what comes before it into a separate stage with partition_by='word'. Or run the stage on one task",
    # Right: who produces vouches for the stream's event time, and for no other.
    "json_with_its_own_time": "sets a watermark on column ts, but it is computed: data.`ts`. Set it on the event time",
    "active_minutes": "sets a watermark on column minute, but the operator Generate computes it. Set it on the event",
    "days_of_a_zone": "sets a watermark on column local, but it is computed: from_utc_timestamp(",
    # Right: Spark would take one of the two event times for the next join, and says nowhere which.
    "three_streams": "gets ordered and paid, all with a watermark, so its event time is ambiguous. Drop all but one",
    # Spark refuses these: the first one also as a batch, since a ROLLUP beside a window has the window among its keys.
    "rolled_up_within_a_window": "Columns of grouping_id (kind,device) does not match grouping columns (window",
    "by_the_hour": "Distinct aggregations are not supported on streaming DataFrames/Datasets. Consider using approx_",
}
ACCEPTED = sorted(ASKED.keys() - REFUSED.keys())
#: How many run beside each other.
TOGETHER = 7


def application_of(names: Iterable[str]) -> Application:
    application = Application()
    for name in names:
        each = ASKED[name]
        application.stage(*each.inputs, output=name.replace("_", "-"), **each.options)(each.function)
    return application


def pieces_of(count: int, streams: Iterable[str]) -> Pieces:
    """The rows of the streams in two pieces, in turn."""
    found = rows(count)
    halves = [
        [(name, found[name][: len(found[name]) // 2]), (name, found[name][len(found[name]) // 2 :])] for name in streams
    ]
    return [piece for turn in zip(*halves, strict=True) for piece in turn]


@pytest.mark.long
def test_what_is_refused_is_refused_for_its_reason(spark: SparkSession, tmp_path: Path) -> None:
    config, said = config_of(tmp_path, STREAMS), {}
    for name in ASKED:
        try:
            analyse_pipeline(spark, application_of([name]), config, tmp_path / "analysis" / name)
        except PipelineRefused as error:
            said[name] = str(error)
    assert said.keys() == REFUSED.keys(), said
    assert {name: part for name, part in REFUSED.items() if part not in said[name]} == {}


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, len(ACCEPTED), TOGETHER))
def test_what_is_accepted_puts_out_what_a_batch_does(fleet: MakeFleet, first: int) -> None:
    run = fleet(application_of(ACCEPTED[first : first + TOGETHER]), STREAMS + "[task]\ncommit.ms = 0\n")
    assert_equal(run, pieces_of(120, run.pipeline.plan.sources))
