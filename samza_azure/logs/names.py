"""The names of tasks, logs and blobs. Other modules neither spell them nor take them apart.

    control.json                                the control blob: `group/control.py`
    control/{revision}                          a copy of it: `host/copies.py`
    runs/{run}/{stage}-{number}/{index}         a blob of a task's log
    runs/{run}/large/{stage}-{number}/{index}/… an immutable blob that a record of that blob refers to
    streams/{stream}/{partition}/{index}        a blob of a source partition's log
    streams/{stream}/{partition}/at-{a}-{b}     what the next run needs beside the position (a, b) in a stream outside
    streams/binding.json                        which table and which application the container belongs to
    tables/, files/, locks/                     the files of tables, the files of folders, the locks of the library

A log is named by its prefix, which has no slash at its end: "runs/r1/clean-0", "streams/flights/0". A source partition
is written "flights/0".

A number is written in one way, so that two names never mean one task: decimal digits of ASCII, without a sign, and
without zeros before them, except where they fill up a fixed width.
"""

import re

#: The folders of a job's container. They and the control blob hold all that a job writes.
RUNS, STREAMS, TABLES, FILES, LOCKS, COPIES = FOLDERS = (
    "runs/",
    "streams/",
    "tables/",
    "files/",
    "locks/",
    "control/",
)

#: Says which table and which application the container belongs to (`storage/binding.py`). It is below `streams/`, since
#: a producer, which may write only there, may be the first to store something. No stream has a dot in its name.
BINDING = f"{STREAMS}binding.json"

_NUMBER = "0|[1-9][0-9]{0,17}"
_INDEX = "[0-9]{8}"
#: A blob of a task's log, and one of a source partition's.
TASK_BLOB = re.compile(rf"(?P<prefix>runs/(?P<run>[^/]+)/(?P<stage>[^/]+)-(?P<number>{_NUMBER}))/(?P<index>{_INDEX})")
SOURCE_BLOB = re.compile(rf"(?P<prefix>streams/(?P<stream>[^/]+)/(?P<number>{_NUMBER}))/(?P<index>{_INDEX})")
#: A file of a folder. Task names have no dot. All files of one task are written in the order of their numbers.
FILE_BLOB = re.compile(
    rf"(?P<prefix>files/[^/]+/(?P<run>[^/]+)\.[^/.]+-(?:{_NUMBER}))\.(?P<index>[0-9]{{8,}})\.parquet"
)


def state_name(partition: str, at: tuple[int, int]) -> str:
    """What a connector needs beside a position of a source partition."""
    return f"{STREAMS}{partition}/at-{at[0]}-{at[1]}"


def copy_name(revision: int) -> str:
    """The copy of the control blob of this revision; the names of later ones are greater."""
    return f"{COPIES}{revision:016d}"


def copy_revision(name: str) -> int | None:
    """The revision in the name of a copy, or None for a name that is not one of a copy."""
    leaf = name.removeprefix(COPIES)
    return int(leaf) if name != leaf and re.fullmatch("[0-9]{16}", leaf) else None


def task_name(stage: str, number: int) -> str:
    """The name of a stage's task."""
    return f"{stage}-{number}"


def stage_of(task: str) -> str:
    """The stage in a task's name; empty if the text is no name of a task."""
    return task.rpartition("-")[0]


def stage_and_number(task: str) -> tuple[str, int]:
    """The stage in a task's name, and the task's number in that stage. Of a log's prefix: the same, with the run.

    Raise ValueError if the text is no name of a task.
    """
    stage, _, number = task.rpartition("-")
    return stage, _number(number)


def run_folder(run_id: str) -> str:
    """Where the logs of a run's tasks are."""
    return f"{RUNS}{run_id}/"


def task_log(run_id: str, task: str) -> str:
    """The log of a task."""
    return f"{RUNS}{run_id}/{task}"


def run_of(prefix: str) -> str:
    """The run of a task's log."""
    return prefix.split("/")[1]


def run_of_rows(prefix: str) -> str:
    """The run that has written the rows of a log, or of a task's files; empty for a source's."""
    if prefix.startswith(FILES):
        return prefix.rsplit("/", 1)[1].rpartition(".")[0]
    return run_of(prefix) if prefix.startswith(RUNS) else ""


def file_in(prefix: str, number: int) -> str:
    """The file with this number of a task's files."""
    return f"{prefix}.{number:08d}.parquet"


def stream_folder(stream: str) -> str:
    """Where the logs of a source stream are."""
    return f"{STREAMS}{stream}/"


def source_partition(stream: str, number: int) -> str:
    """A partition of a source stream, as positions name it."""
    return f"{stream}/{number}"


def stream_and_partition(partition: str) -> tuple[str, int]:
    """The stream and the number in the name of a source partition. Raise ValueError if the text is none."""
    stream, _, number = partition.rpartition("/")
    return stream, _number(number)


def source_log(partition: str) -> str:
    """The log of a source partition."""
    return f"{STREAMS}{partition}"


def blob_name(prefix: str, index: int) -> str:
    """The name of a log's blob with this number."""
    return f"{prefix}/{index:08d}"


def blob_index(prefix: str, name: str) -> int | None:
    """The number of a log's blob, or None for a name that is not one of its blobs."""
    leaf = name.removeprefix(f"{prefix}/")
    return int(leaf) if name != leaf and re.fullmatch(_INDEX, leaf) else None


def large_prefix(prefix: str) -> str:
    """The prefix of the immutable blobs that a log's records refer to.

    Not below the log's own prefix, so that a listing of the log shows only its own blobs. Deleting a log deletes both.
    """
    parent, _, leaf = prefix.rpartition("/")
    return f"{parent}/large/{leaf}"


def large_index(prefix: str, name: str) -> int | None:
    """The number of the log's blob whose record refers to this immutable blob; None if it is none of this log."""
    return blob_index(large_prefix(prefix), name.rpartition("/")[0])


def belongs_to(prefix: str, name: str) -> bool:
    """Whether a record of this log may refer to this blob: one of the log's own, or an immutable one beside it."""
    return blob_index(prefix, name) is not None or large_index(prefix, name) is not None


def large_name(prefix: str, index: int, mark: str) -> str:
    """The name of an immutable blob that a record of blob `index` refers to."""
    return f"{large_prefix(prefix)}/{index:08d}/{mark}"


def _number(text: str) -> int:
    if not re.fullmatch(_NUMBER, text):
        raise ValueError(f"{text!r:.40} is no number of a task or partition")
    return int(text)
