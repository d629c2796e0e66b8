"""The settings of Spark that a job file cannot change."""

#: What the container sets itself, and why nobody else may.
OWN = {
    "spark.sql.session.timeZone": "event time is UTC everywhere; in another zone a processor would cut other windows",
    "spark.sql.streaming.stateStore.providerClass": "task.state says it: 'memory' or 'rocksdb'",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "the task log carries state files of version 1",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "the task log carries the changelog",
    "spark.sql.streaming.multipleWatermarkPolicy": "the container owns the watermark and needs the policy 'min'",
    "spark.sql.streaming.statefulOperator.checkCorrectness.enabled": "it refuses plans whose rows would be wrong",
    "spark.sql.constraintPropagation.enabled": "without it joins of streams take null for a partner of null",
    "spark.sql.optimizer.excludedRules": "rows would be wrong without some rules: in joins null would equal null",
    "spark.sql.streaming.statefulOperator.allowMultiple": "what is derived of a plan goes by it",
    "spark.sql.streaming.noDataMicroBatches.enabled": "the container decides when a batch without rows runs",
    "spark.sql.streaming.checkpointLocation": "the checkpoint of a task is its log",
    "spark.sql.streaming.checkpointFileManagerClass": "checkpoints are local files here, and written as such",
    "spark.rdd.compress": "rows leave Spark through blocks on the disk, which are read as they are",
    "spark.scheduler.mode": "the tasks of a container share it fairly",
    "spark.python.unix.domain.socket.enabled": "rows come through such a socket; without it each batch waits 40 ms",
    "spark.sql.shuffle.partitions": "a task is one partition; more would only cost files",
}
#: The masters that can be: Spark in the container's own JVM.
LOCAL = r"local(\[(\*|[1-9]\d*)(, *\d+)?\])?"
