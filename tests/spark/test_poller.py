"""What a source says while the storage does not answer, answers nonsense, or is slow. No Spark is needed for that."""

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from samza_azure.errors import ConfigError, CorruptState, StorageUnavailable
from samza_azure.explain import Flow, idle
from samza_azure.logs.operations import BUSY_MOST_S, Span
from samza_azure.machine.clock import boot_time
from samza_azure.storage.memory import MemoryAccount
from samza_azure.stream_io.columns import laid_out
from samza_azure.stream_io.source_stream import SourceWriter
from samza_azure.streams.gate import Gate
from samza_azure.streams.offset import Offset
from samza_azure.tasks import poller as module
from samza_azure.tasks.gate_files import Acknowledgement, PermitFile, Spec, read_gate, write_gate, write_json
from samza_azure.tasks.poller import Poller, read_range

SCHEMA = pa.schema([("n", pa.int32())])
START = {"of": "numbers", "step": 0, "fired": None, "at": [[0, 0, None]]}


class Reads:
    """The account's blobs, with something in the way of reading them."""

    def __init__(self, blobs: Any, writer: SourceWriter) -> None:
        self.blobs = blobs
        self.writer = writer
        self.in_the_way: Callable[[], None] = lambda: None

    def read(self, *arguments: Any) -> Span:
        self.in_the_way()
        return self.blobs.read(*arguments)  # type: ignore[no-any-return]


def write(writer: SourceWriter, *numbers: int) -> None:
    """One record more."""
    writer.write(pa.table({"n": pa.array(numbers, pa.int32())}))
    writer.flush()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Three rows in a source stream's only partition."""
    account = MemoryAccount()
    writer = SourceWriter(account.blobs(), account.hints(), "numbers", 1)
    write(writer, 1, 2, 3)
    found = Reads(account.blobs(), writer)
    monkeypatch.setattr(module, "blobs", lambda: found)
    return found


@pytest.fixture
def source(tmp_path: Path, reads: Reads) -> Iterator[Poller]:
    """A source that stands at the beginning, with a permit and an open gate."""
    files = {name: str(tmp_path / name) for name in ("permit", "hints", "gate", "acknowledgements")}
    (tmp_path / "acknowledgements").mkdir()
    PermitFile(tmp_path / "permit").set(boot_time() + 60)
    write_json(tmp_path / "hints", {})
    write_gate(tmp_path / "gate", Gate())
    spec = Spec(
        stream="numbers",
        producers=[("streams/numbers/0", [0], "numbers/0")],
        starts=[(0, 0)],
        is_source_stream=True,
        group_id=None,
        has_watermark=False,
        idle_timeout_s=10.0,
        commit_s=0.0,
        batch_bytes=1 << 20,
        files=files,
    )
    path = tmp_path / f"input-{uuid.uuid4().hex}"
    spec.write(path)
    poller = Poller(str(path), SCHEMA)
    yield poller
    reads.in_the_way = lambda: None
    poller.thread.shutdown()


def said(source: Poller) -> Acknowledgement:
    (one,) = Acknowledgement.read_all(source.file.parent)
    return one


def test_rows_are_handed_over_with_the_offset(source: Poller) -> None:
    end = source.latest(START)

    (batch,) = source.prefetched(START, end) or ()
    assert batch.to_pydict() == {"n": [1, 2, 3]}
    assert source.prefetched(START, {**end, "fired": 7}) is None
    assert list(source.prefetched(end, end) or [0]) == []
    assert said(source).version == 0


@pytest.mark.parametrize("rows", [pa.array(range(2_001), pa.int32()), pa.array([b"x" * 50_000] * 6)])
def test_many_rows_and_wide_rows_are_left_to_a_worker(source: Poller, reads: Reads, rows: pa.Array) -> None:
    """Handing them over with the offset is slow: either bound is enough."""
    reads.writer.write(
        pa.table({"n": pa.array(os.urandom(50_000) for _ in rows) if rows.type == pa.binary() else rows})
    )
    reads.writer.flush()

    end = source.latest(START)

    assert end != START
    assert source.prefetched(START, end) is None


def test_a_worker_does_not_download_again_what_the_scan_has_downloaded(source: Poller, reads: Reads) -> None:
    """Another range is."""
    for start in range(0, 3_000, 300):
        write(reads.writer, *range(start, start + 300))
    end = source.latest(START)
    assert source.prefetched(START, end) is None
    found = source.handed_on(START, end)
    counted = 0

    def count() -> None:
        nonlocal counted
        counted += 1

    reads.in_the_way = count
    spec = str(next(source.file.parent.parent.glob("input-*")))
    whole = pa.Table.from_batches(read_range(spec, SCHEMA, START, end, found))
    once = counted
    again = pa.Table.from_batches(read_range(spec, SCHEMA, START, end))

    assert whole["n"].to_pylist() == [1, 2, 3, *range(3_000)]
    assert whole.equals(again)
    assert once == 0 < counted
    assert source.handed_on(START, {**end, "fired": 7}) is None


def test_where_no_worker_can_read_the_source_reads_it_all(source: Poller, reads: Reads) -> None:
    """Executors on other machines have neither the files of the container nor access to the account."""
    source.spec = replace(source.spec, is_read_here=True)
    for start in range(0, 3_000, 300):
        write(reads.writer, *range(start, start + 300))
    end = source.latest(START)

    whole = pa.Table.from_batches(source.prefetched(START, end) or ())

    assert whole["n"].to_pylist() == [1, 2, 3, *range(3_000)]
    source.ready = source.found = None  # a range that was not looked for last
    assert pa.Table.from_batches(source.prefetched(START, end) or ()).equals(whole)
    assert list(source.prefetched(end, end) or [0]) == []


def test_the_gate_can_make_batches_smaller(source: Poller, reads: Reads) -> None:
    for number in range(4, 50):
        write(reads.writer, number)
    whole = reads.blobs.read("streams/numbers/0/00000000", 0, 1).size
    write_gate(Path(source.spec.files["gate"]), Gate(version=1, batch_bytes=1))
    small = source.latest(START)
    write_gate(Path(source.spec.files["gate"]), Gate(version=2))

    assert [batch.to_pydict() for batch in source.prefetched(START, small) or ()] == [{"n": [1, 2, 3]}]
    assert source.latest(small)["at"][0][1] == whole


def test_the_next_batch_is_found_while_spark_runs_this_one(source: Poller, reads: Reads) -> None:
    """If this one could not have all. What has failed meanwhile is read again."""
    for first in (4, 7):
        write(reads.writer, first, first + 1, first + 2)
    write_gate(Path(source.spec.files["gate"]), Gate(version=1, batch_bytes=1))

    def down() -> None:
        raise StorageUnavailable("It is down.")

    one = source.latest(START)
    source.thread.submit(lambda: None).result()  # it has looked ahead
    reads.in_the_way = down
    two = source.latest(one)
    source.thread.submit(lambda: None).result()
    assert source.latest(two) == two, "nothing could be read"
    reads.in_the_way = lambda: None
    source.resting_until = 0.0
    three = source.latest(two)

    assert [rows_between(source, *ends) for ends in ((START, one), (one, two), (two, three))] == [
        [1, 2, 3],
        [4, 5, 6],
        [7, 8, 9],
    ]
    assert source.latest(three) == three


def test_an_outage_while_it_looks_ahead_is_no_silence(source: Poller, reads: Reads) -> None:
    """Its producers cannot write either, so none of them counts as idle because of that time. And a service that asks
    for a pause is left alone."""
    write(reads.writer, 4)
    write_gate(Path(source.spec.files["gate"]), Gate(version=1, batch_bytes=1))
    tries = []

    def down() -> None:
        tries.append(boot_time())
        raise StorageUnavailable("It is down.")

    one = source.latest(START)
    source.thread.submit(lambda: None).result()
    reads.in_the_way = down
    gate = read_gate(Path(source.spec.files["gate"]))
    for rests, expected in ((60.0, 0), (0.0, 1)):
        source.based_on, source.heads, source.silent_since = None, [], [boot_time() - 9.0]
        source.resting_until = boot_time() + rests
        source.thread.submit(source._look_ahead, Offset.from_json(one), gate).result()
        assert len(tries) == expected
    assert source.silent_since == [None]


def rows_between(source: Poller, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """The rows as a worker reads them."""
    spec = str(next(source.file.parent.parent.glob("input-*")))
    return [number for batch in read_range(spec, SCHEMA, start, end) for number in batch["n"].to_pylist()]


@pytest.mark.parametrize(("most", "lowered"), [(200_000, None), (32 << 20, 200_000)])
def test_half_a_batch_of_input_does_not_wait_for_the_period(
    source: Poller, reads: Reads, most: int, lowered: int | None
) -> None:
    spec = replace(source.spec, commit_s=60.0, batch_bytes=most)
    write_gate(Path(spec.files["gate"]), Gate(version=1, batch_bytes=lowered))
    path = source.file.parent.parent / "of-a-minute"
    spec.write(path)
    slow = Poller(str(path), SCHEMA)
    first = slow.latest(START)
    assert first != START

    def with_much_more() -> dict[str, Any]:
        write(reads.writer, *(int.from_bytes(os.urandom(3)) for _ in range(15_000)))  # of 4 bytes each
        slow.due = [0.0]
        return slow.latest(first)

    assert with_much_more() == first
    assert with_much_more() != first
    slow.thread.shutdown()


def test_a_source_tries_again_later_if_the_storage_does_not_answer(source: Poller, reads: Reads) -> None:
    def fail() -> None:
        raise StorageUnavailable("nobody there")

    reads.in_the_way = fail
    assert source.latest(START) == START
    assert said(source).trouble == "nobody there"
    reads.in_the_way = lambda: None
    assert source.latest(START) == START  # it rests

    source.resting_until = 0.0
    assert source.latest(START) != START
    assert said(source).trouble is None


@pytest.mark.parametrize(("after_s", "rests_s"), [(0.0, 1.0), (3.0, 3.0), (3600.0, BUSY_MOST_S)])
def test_a_busy_service_is_not_read_before_it_asks_for_that(
    source: Poller, reads: Reads, after_s: float, rests_s: float
) -> None:
    def busy() -> None:
        raise StorageUnavailable("ServerBusy", after_s=after_s)

    reads.in_the_way = busy
    before = boot_time()
    assert source.latest(START) == START
    assert before + rests_s <= source.resting_until <= boot_time() + rests_s


def test_a_log_that_cannot_be_read_is_reported_to_the_container(source: Poller, reads: Reads) -> None:
    def fail() -> None:
        raise CorruptState("not what was written", blob="streams/numbers/0/00000000", position=7)

    reads.in_the_way = fail
    assert source.latest(START) == START
    assert said(source).corrupt == "not what was written (blob streams/numbers/0/00000000, position 7)"


MISFIT = (
    "The rows of stream 'numbers' do not fit its schema: %s. "
    "Change streams.numbers.schema to match the log, or write rows of the new schema into another stream."
)


@pytest.mark.parametrize(
    ("column", "written", "differences"),
    [
        ("n", pa.array([4], pa.int64()), "n is bigint in the log, int in the schema"),
        (
            "m",
            pa.array([4], pa.int32()),
            "n is missing in the log, int in the schema; m is int in the log, missing in the schema",
        ),
    ],
)
def test_columns_that_differ_from_the_schema_are_an_error_and_never_null(
    source: Poller, reads: Reads, tmp_path: Path, column: str, written: pa.Array, differences: str
) -> None:
    reads.writer.write(pa.table({column: written}))
    reads.writer.flush()
    assert source.latest(START) == START
    assert said(source).corrupt == MISFIT % differences

    size = reads.blobs.read("streams/numbers/0/00000000", 0, 1).size
    source.spec.write(tmp_path / "spec")
    source.file.unlink()
    with pytest.raises(ConfigError):
        list(read_range(str(tmp_path / "spec"), SCHEMA, START, {**START, "at": [[0, size, None]]}))
    assert said(source).corrupt == MISFIT % differences


def test_arrow_types_that_are_equal_to_spark_fit_the_schema() -> None:
    schema = pa.schema([("who", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
    at = pa.array([1], pa.timestamp("ms", tz="Europe/Berlin"))
    rows = pa.record_batch({"at": at, "who": pa.array(["me"], pa.large_string())})
    assert laid_out(rows, schema, "s").schema == schema


def test_an_unexpected_error_does_not_end_the_query(source: Poller, reads: Reads) -> None:
    """Also one that looks like our own waiting."""

    def fail() -> None:
        raise TimeoutError("in the socket")

    reads.in_the_way = fail
    assert source.latest(START) == START
    assert said(source).trouble == "TimeoutError: in the socket"
    reads.in_the_way = lambda: None
    source.resting_until = 0.0
    assert source.latest(START) != START


def test_an_answer_that_takes_long_is_given_in_a_later_call(
    source: Poller, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    answered = threading.Event()
    reads.in_the_way = lambda: answered.wait(30) and None
    assert source.latest(START) == START
    answered.set()
    monkeypatch.setattr(module, "PATIENCE_S", 30.0)

    assert source.latest(START) != START


def test_an_answer_found_under_another_gate_does_not_count(
    source: Poller, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A freeze came in between: what the slow round has found must not be given out under it."""
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    answered = threading.Event()
    reads.in_the_way = lambda: answered.wait(30) and None
    source.latest(START)
    write_gate(Path(source.spec.files["gate"]), Gate(version=1, frozen=True, draining=True))
    answered.set()
    monkeypatch.setattr(module, "PATIENCE_S", 30.0)

    assert source.latest(START) == START
    assert said(source).version == -1
    assert source.latest(START) == START
    assert said(source) == Acknowledgement(version=1, offset=START)


def test_behind_a_shut_gate_and_without_a_permit_nothing_is_read(source: Poller) -> None:
    permit = PermitFile(Path(source.spec.files["permit"]))
    assert source.latest(START) == START
    permit.set(boot_time() + 60)
    write_gate(Path(source.spec.files["gate"]), Gate(version=1, shut=True))

    assert source.latest(START) == START
    assert said(source).version == 1


def test_an_idle_source_reads_each_producer_as_often_as_explain_says(
    source: Poller, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted where the storage is called, for a third of an hour in which Spark asks ten times a second."""
    now = boot_time()
    monkeypatch.setattr(module, "boot_time", lambda: now)
    PermitFile(Path(source.spec.files["permit"])).set(now + 3600)
    at, counted = source.latest(START), 0

    def count() -> None:
        nonlocal counted
        counted += 1

    reads.in_the_way = count
    for _ in range(12_000):
        now += 0.1
        at = source.latest(at)
    assert 3 * counted <= 750
    assert 3 * counted == pytest.approx(idle([Flow("count", 1, 1)], 1).read, rel=0.05)


def test_a_drain_reads_up_to_the_end_and_no_further(source: Poller, reads: Reads) -> None:
    """Then it says so, and takes the steps of the flush."""
    gate = Path(source.spec.files["gate"])
    first = reads.blobs.read("streams/numbers/0/00000000", 0, 1).size
    write(reads.writer, 4, 5)
    write_gate(gate, Gate(version=1, frozen=True, draining=True, ends={"numbers/0": (0, first)}))
    at_end = source.latest(START)
    assert at_end["at"][0][:2] == [0, first]
    (batch,) = source.prefetched(START, at_end) or ()
    assert batch.to_pydict() == {"n": [1, 2, 3]}
    assert source.latest(at_end) == at_end
    assert said(source).is_at_end

    write_gate(gate, Gate(version=2, frozen=True, draining=True, ends={"numbers/0": (0, first)}, step=1))
    assert source.latest(at_end)["step"] == 1


def test_an_end_without_a_row_before_it_needs_no_batch(source: Poller, reads: Reads) -> None:
    """A record that only moves event time lies there. The flush says more than it."""
    gate = Path(source.spec.files["gate"])
    at = source.latest(START)
    reads.writer.close()
    end = [0, reads.blobs.read("streams/numbers/0/00000000", 0, 1).size]
    assert at["at"][0][:2] < end
    write_gate(gate, Gate(version=1, frozen=True, draining=True, ends={"numbers/0": (end[0], end[1])}))
    assert source.latest(at) == at
    acknowledged = said(source)
    assert (acknowledged.is_at_end, acknowledged.offset) == (True, at)
    assert acknowledged.end is not None and acknowledged.end["at"][0][:2] == end

    write_gate(gate, Gate(version=2, frozen=True, draining=True, ends={"numbers/0": (end[0], end[1])}, step=1))
    stepped = source.latest(at)
    assert (stepped["step"], stepped["at"][0][:2]) == (1, end)


def test_an_end_behind_its_position_is_an_error_and_not_the_end(source: Poller, reads: Reads) -> None:
    """The next run would begin there, and read again what this one has read."""
    gate = Path(source.spec.files["gate"])
    there = source.latest(START)
    assert there != START
    for number, ends in enumerate([{"numbers/0": (0, 0)}, {}], 1):
        write_gate(gate, Gate(version=number, frozen=True, draining=True, ends=ends))
        assert source.latest(there) == there
        assert "The drain ends this source log at (0, 0), but this task has read further" in str(said(source).corrupt)
        source.resting_until = 0.0


def test_a_stream_that_was_not_partitioned_as_the_job_file_says_fails_the_task(source: Poller, reads: Reads) -> None:
    """Its rows would be looked for in the wrong task. The log's first record tells."""
    source.spec = replace(source.spec, key=["n"], partitions=2)
    assert source.latest(source.initial()) == source.initial()
    assert (said(source).corrupt or "").startswith(
        "For stream numbers the job file declares the key n over 2 partitions, but streams/numbers/0 was begun with no "
        "key. "
    )
