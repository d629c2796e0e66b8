"""The folder in which executors that leave put the rows that their batches have shuffled, and what of it goes when.

Promised: what was left for a batch goes when it is over. What comes later, or belongs to a batch that has failed, goes
at the end of the first batch, of any task, after Spark has forgotten its shuffle. No file goes that a stage may read.
"""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from samza_azure.log_rate_limit import LogRateLimit
from samza_azure.spark.jvm.shuffles import Shuffles

log = logging.getLogger(__name__)


class ShuffledRows:
    """Those of a container on a cluster."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._shuffles, self._folder = Shuffles(spark), folder
        self._said = LogRateLimit()

    def batch_ended(self, query: StreamingQuery) -> None:
        """Called when the record of a batch of this query is appended. A failure costs disk, and no batch."""
        try:
            self._shuffles.forget(query)
            for number, files in self._left():
                if not self._shuffles.is_known(number):
                    shutil.rmtree(files, ignore_errors=True)  # an executor may be writing there
        except Exception as error:  # noqa: BLE001  # any error of Java or py4j
            if self._said.is_due("kept"):
                log.warning("What batches have shuffled stays until Spark itself deletes it: %s", error)

    def _left(self) -> Iterator[tuple[int, Path]]:
        """The numbers of the shuffles that executors have left something of, and where. Spark names these folders."""
        for application in [*self._folder.iterdir()]:
            yield from ((int(each.name), each) for each in [*application.iterdir()])
