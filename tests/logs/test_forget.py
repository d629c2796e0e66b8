"""Which blobs of a log the next owner reads."""

from samza_azure.logs.forget import kept
from samza_azure.logs.names import blob_name
from samza_azure.logs.record import Reference, Writer
from samza_azure.logs.task_log import TaskLog

PREFIX = "runs/r/counted-0"


def test_a_blob_is_kept_only_for_files_that_a_restart_still_needs() -> None:
    log = TaskLog(PREFIX, bytes(16), "counted-0", Writer(1, 1))
    log.number, log.end, log.last_batch = 1, (5, 0), 7
    log.files = {
        "state/0/0/4.snapshot": Reference(blob_name(PREFIX, 1), 0, 10, 0),
        "state/0/0/8.snapshot": Reference(blob_name(PREFIX, 4), 0, 10, 0),
    }
    log.places = {
        path: (reference.blob, 0) for path, reference in log.files.items() if isinstance(reference, Reference)
    }
    assert kept(log).first == 4
    assert kept(log).large == {blob_name(PREFIX, 4)}
