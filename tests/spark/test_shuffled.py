"""What batches have shuffled, and executors that left have put into the container's folder. Played with files here;
`tests/end_to_end/test_cluster.py` has the executors.
"""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from samza_azure.spark.jvm.shuffles import Shuffles
from samza_azure.spark.query.shuffled import ShuffledRows


def test_what_a_batch_has_shuffled_goes_with_it_and_what_others_may_read_stays(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shuffles, context = Shuffles(spark), spark.sparkContext._jsc.sc()
    first = context.newShuffleId()

    def known() -> set[int]:
        return {number for number in range(first, context.newShuffleId()) if shuffles.is_known(number)}

    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "1").write_text("1\n2\n")
    table = spark.range(10).repartition(3).cache()
    counted = table.groupBy().count()
    assert [*counted.collect()[0]] == [10]
    of_others = known()
    assert of_others
    rows = spark.readStream.text(str(tmp_path / "rows")).repartition(2)
    query = (
        rows.join(table, rows.value == table.id)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    own = known() - of_others
    assert own
    ended = context.newShuffleId()
    application = tmp_path / "shuffled" / "app-1"
    for number in {*own, *of_others, ended}:
        (application / str(number) / "1234").mkdir(parents=True)
        (application / str(number) / "1234" / f"shuffle_{number}_7_0.data").write_bytes(b"rows")

    ShuffledRows(spark, tmp_path / "shuffled").batch_ended(query)
    assert {int(each.name) for each in application.iterdir()} == of_others
    assert known() >= of_others
    assert known().isdisjoint(own)

    ShuffledRows(spark, tmp_path / "gone").batch_ended(query)
    assert "stays until Spark itself deletes it" in caplog.text
    table.unpersist()
