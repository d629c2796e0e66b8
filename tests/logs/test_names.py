"""Names of tasks, logs and blobs."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from samza_azure.logs import names

#: What `int` takes for a number, and what looks like one.
NUMBERS = st.one_of(
    st.integers(-99, 10**20).map(str),
    st.from_regex(r"[+-]?0{0,2}[0-9_]{1,20}\s?", fullmatch=True),
    st.text(st.characters(categories=["Nd", "No"]), min_size=1, max_size=8),
    st.sampled_from(["01", "\u0661", "+1", "-1", "1_0", " 1", "1\n", "", "\u00b2", "0" * 8, "0" * 16]),
)


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


@given(NUMBERS)
def test_a_number_is_written_in_one_way(text: str) -> None:
    """`x-01`, `x-+1` and the digits of other scripts were other names of `x-1`: two names meant one task."""
    for taken, written in (
        (lambda: names.stage_and_number(f"x-{text}"), lambda found: names.task_name(*found) == f"x-{text}"),
        (lambda: names.stream_and_partition(f"s/{text}"), lambda found: names.source_partition(*found) == f"s/{text}"),
    ):
        with contextlib.suppress(ValueError):
            assert written(taken())
    for pattern, log in ((names.TASK_BLOB, f"runs/r/x-{text}"), (names.SOURCE_BLOB, f"streams/s/{text}")):
        found = pattern.fullmatch(f"{log}/00000007")
        assert found is None or found["number"] == str(int(found["number"]))
    index, revision = names.blob_index("streams/s/0", f"streams/s/0/{text}"), names.copy_revision(f"control/{text}")
    assert index is None or names.blob_name("streams/s/0", index) == f"streams/s/0/{text}"
    assert revision is None or names.copy_name(revision) == f"control/{text}"


@given(st.integers(0, 10**9))
def test_each_number_has_a_name(number: int) -> None:
    assert names.stage_and_number(names.task_name("a-b", number)) == ("a-b", number)
    assert names.stream_and_partition(names.source_partition("s", number)) == ("s", number)
