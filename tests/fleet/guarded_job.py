"""A structured streaming job as people have it: rows by rate into files, with a checkpoint. It knows nothing of guards,
unless it is called with `checked`: then it checks its token before each batch.

python guarded_job.py FOLDER [checked]
"""

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

#: Small and quick to start; the executors are threads of the driver.
SETTINGS = {
    "spark.master": "local[1]",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}


def main(folder: str, *checked: str) -> None:
    """Run until the end of the process."""
    builder = SparkSession.builder
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).option("numPartitions", 1).load()
    writer = rows.writeStream.option("checkpointLocation", f"{folder}/checkpoint").trigger(
        processingTime="200 milliseconds"
    )
    if checked:
        query = writer.foreachBatch(lambda batch, number: store(Path(folder), batch, number)).start()
    else:
        query = writer.format("json").option("path", f"{folder}/out").start()
    query.awaitTermination()


def store(folder: Path, rows: DataFrame, number: int) -> None:
    """Note the batch with the token under which it was written."""
    from samza_azure import check_token

    token = check_token(folder / "checkpoint")
    values = sorted(row.value for row in rows.collect())
    with (folder / "batches").open("a") as file:
        file.write(f"{token} {number} {os.getpid()} {','.join(map(str, values))}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
