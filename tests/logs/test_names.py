"""Names of tasks, logs and blobs."""

from samza_azure.logs import names


def test_a_tasks_log_is_named_after_run_and_task() -> None:
    task = names.task_name("by-carrier", 12)
    log = names.task_log("r1", task)
    assert log == "runs/r1/by-carrier-12"
    assert log.startswith(names.run_folder("r1"))
    assert names.run_of(log) == "r1"
    assert names.stage_and_number(task) == ("by-carrier", 12)
    assert names.stage_and_number(log) == ("runs/r1/by-carrier", 12)


def test_a_source_partitions_log_is_named_after_stream_and_number() -> None:
    partition = names.source_partition("flights", 3)
    assert names.source_log(partition) == "streams/flights/3"
    assert names.source_log(partition).startswith(names.stream_folder("flights"))
    assert names.stream_and_partition(partition) == ("flights", 3)


def test_a_blob_says_which_log_it_belongs_to() -> None:
    of_task = names.TASK_BLOB.fullmatch(names.blob_name("runs/r1/by-carrier-12", 7))
    assert of_task is not None
    assert of_task.groupdict() == {
        "prefix": "runs/r1/by-carrier-12", "run": "r1", "stage": "by-carrier", "number": "12", "index": "00000007",
    }  # fmt: skip
    of_source = names.SOURCE_BLOB.fullmatch(names.blob_name("streams/flights/3", 7))
    assert of_source is not None
    assert of_source.groupdict() == {
        "prefix": "streams/flights/3", "stream": "flights", "number": "3", "index": "00000007",
    }  # fmt: skip


def test_a_large_blob_is_beside_its_log() -> None:
    name = names.large_name("runs/r1/clean-0", 7, "mark")
    assert name == "runs/r1/large/clean-0/00000007/mark"
    assert names.TASK_BLOB.fullmatch(name) is None
    assert names.blob_index("runs/r1/clean-0", name) is None
    assert names.large_index("runs/r1/clean-0", name) == 7
    assert names.large_index("runs/r1/clean-1", name) is None
