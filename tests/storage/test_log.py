"""Stories of a task's log on both storages: owners come and go, answers are lost, permits end, blobs roll."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pytest

from samza_azure.errors import (
    CorruptState,
    PermitExpired,
    StateLost,
    StorageUnavailable,
    Superseded,
    Unsettled,
)
from samza_azure.logs.names import large_name, large_prefix
from samza_azure.logs.operations import CHUNK, INDEX, Pause, Span
from samza_azure.logs.record import Kind, Reference, Slice, Writer, decode_header
from samza_azure.logs.task_log import LogLimits
from samza_azure.outcomes import Missing, Refused
from samza_azure.storage.interface import Blobs
from samza_azure.storage.memory import MemoryAccount
from samza_azure.stream_io import stored as stored_module
from samza_azure.stream_io.log import LogReader, LogWriter, Restored, take_over
from samza_azure.stream_io.stored import StoredMapping
from tests.storage.conftest import AnyAccount

PREFIX = "runs/r/clean-0"
GROUP = b"the group's id.."
META = {"stream": "by-carrier", "partitions": 2}
OLD, NEW, NEWEST = Writer(3, 1), Writer(5, 1), Writer(5, 2)

Answer: TypeAlias = int | Refused | Missing
Trouble: TypeAlias = Callable[[Callable[[], Answer]], Answer]


@dataclass(slots=True)
class Troubled:
    """A storage on which each append meets the next trouble, and reads may fail."""

    blobs: Blobs
    troubles: list[Trouble] = field(default_factory=list)
    is_out: bool = False

    def _reach(self) -> Blobs:
        if self.is_out:
            raise StorageUnavailable("The storage is out.")
        return self.blobs

    def create(self, name: str) -> bool:
        return self._reach().create(name)

    def append(self, name: str, data: bytes, position: int) -> Answer:
        def send() -> Answer:
            return self._reach().append(name, data, position)

        return self.troubles.pop(0)(send) if self.troubles else send()

    def read(self, name: str, start: int, length: int | None = None) -> Span | Missing:
        return self._reach().read(name, start, length)

    def put(self, name: str, data: bytes) -> bool:
        return self._reach().put(name, data)

    def list(self, prefix: str) -> Sequence[tuple[str, int]]:
        return self._reach().list(prefix)

    def delete(self, name: str) -> None:
        self._reach().delete(name)


def fine(send: Callable[[], Answer]) -> Answer:
    return send()


def lost_answer(send: Callable[[], Answer]) -> Answer:
    send()
    raise Unsettled("The answer was lost.")


def lost_request(send: Callable[[], Answer]) -> Answer:
    raise Unsettled("The request was lost, but who knows.")


def not_sent(send: Callable[[], Answer]) -> Answer:
    raise StorageUnavailable("Nothing was sent.")


@dataclass(slots=True)
class Permit:
    """Given until it is taken."""

    given: bool = True

    def __call__(self) -> bool:
        return self.given


def own(
    blobs: Blobs,
    writer: Writer,
    *,
    first: bool = False,
    permit: Callable[[], bool] = lambda: True,
    limits: LogLimits | None = None,
) -> tuple[LogWriter, Restored]:
    """Take the log over."""
    return take_over(
        blobs,
        PREFIX,
        group_id=GROUP,
        task="clean-0",
        writer=writer,
        first=first,
        may_append=permit,
        meta=META,
        limits=limits,
        wait=lambda pause: None,
    )


def batch(number: int, text: str = "") -> dict[str, Any]:
    """The content of a batch: rows for destinations 0 and 1, an offset, a delta."""
    rows = f"{text or number}".encode()
    return {
        "batch": number,
        "frontier_us": 10 * number,
        "watermark_us": number,
        "slices": (Slice(0, b"zero " + rows, 1, number, number), Slice(1, b"one " + rows, 2)),
        "files": {f"offsets/{number}": rows, f"state/0/0/{number + 1}.delta": rows},
    }


def rows(blobs: Blobs, destination: int = 0) -> list[bytes]:
    """All rows for one destination."""
    reader = LogReader(blobs, PREFIX, frozenset({destination}), group_id=GROUP)
    return list(reader.fetch(reader.scan((0, 0)).parts))


@pytest.fixture
def blobs(account: AnyAccount) -> Blobs:
    return account.blobs()


@pytest.fixture
def troubled() -> Troubled:
    return Troubled(MemoryAccount().blobs())


def test_the_next_owner_restores_what_the_former_one_appended(blobs: Blobs) -> None:
    writer, nothing = own(blobs, OLD, first=True)
    writer.append(**batch(0))
    end = writer.append(**batch(1))
    assert nothing == Restored({}, -1, None, None, False, 0, 0, META, 0)

    _, restored = own(blobs, NEW)
    files = {"offsets/0": b"0", "state/0/0/1.delta": b"0", "offsets/1": b"1", "state/0/0/2.delta": b"1"}
    assert restored == Restored(files, 1, 1, 10, False, 3, end[1], META, 0)


def test_a_reader_gets_the_rows_for_its_destinations_in_order(blobs: Blobs) -> None:
    writer, _ = own(blobs, OLD, first=True)
    for number in range(3):
        writer.append(**batch(number))
    assert rows(blobs, 0) == [b"zero 0", b"zero 1", b"zero 2"]
    assert rows(blobs, 1) == [b"one 0", b"one 1", b"one 2"]
    assert rows(blobs, 7) == []


def test_an_owner_that_wakes_up_late_is_refused(blobs: Blobs) -> None:
    zombie, _ = own(blobs, OLD, first=True)
    zombie.append(**batch(0))
    owner, _ = own(blobs, NEW)
    owner.append(**batch(1))
    with pytest.raises(Superseded, match=r"clean-0 belongs to writer 5\.1 now; we are 3\.1"):
        zombie.append(**batch(1, "zombie"))
    with pytest.raises(Superseded):
        zombie.append_frontier(99)
    assert zombie.close()
    assert rows(blobs) == [b"zero 0", b"zero 1"]


def test_an_owner_that_wakes_up_late_does_not_take_the_log_back(blobs: Blobs) -> None:
    own(blobs, NEW, first=True)
    with pytest.raises(Superseded, match=r"belongs to writer 5\.1; we are 3\.1"):
        own(blobs, OLD)


def test_a_record_that_the_old_owner_gets_in_before_the_epoch_is_part_of_the_restore(blobs: Blobs) -> None:
    old, _ = own(blobs, OLD, first=True)

    def after_a_last_batch(send: Callable[[], Answer]) -> Answer:
        old.append(**batch(0))
        return send()

    new, restored = own(Troubled(blobs, [after_a_last_batch]), NEW)
    assert (restored.last_batch, restored.files["offsets/0"]) == (0, b"0")
    new.append(**batch(1))
    assert rows(blobs) == [b"zero 0", b"zero 1"]


def test_the_higher_of_two_writers_that_take_over_at_once_keeps_the_log(blobs: Blobs) -> None:
    def after_a_newer_one(send: Callable[[], Answer]) -> Answer:
        own(blobs, NEWEST, first=True)
        return send()

    with pytest.raises(Superseded, match=r"belongs to writer 5\.2"):
        own(Troubled(blobs, [after_a_newer_one]), NEW, first=True)


def test_an_older_attempt_that_was_faster_is_taken_over_in_turn(blobs: Blobs) -> None:
    def after_an_older_one(send: Callable[[], Answer]) -> Answer:
        own(blobs, NEW, first=True)[0].append(**batch(0))
        return send()

    _, restored = own(Troubled(blobs, [after_an_older_one]), NEWEST, first=True)
    assert restored.last_batch == 0


@pytest.mark.parametrize("trouble", [lost_answer, lost_request, not_sent])
def test_an_append_whose_answer_is_lost_happens_once(blobs: Blobs, trouble: Trouble) -> None:
    writer, _ = own(Troubled(blobs, [trouble, trouble, trouble]), OLD, first=True)
    ends = [writer.append(**batch(number)) for number in range(3)]
    assert rows(blobs) == [b"zero 0", b"zero 1", b"zero 2"]
    assert LogReader(blobs, PREFIX).scan((0, 0)).end == ends[-1] == writer.position


def test_without_a_permit_nothing_is_sent(troubled: Troubled) -> None:
    permit = Permit()
    writer, _ = own(troubled, OLD, first=True, permit=permit)
    permit.given = False
    with pytest.raises(PermitExpired):
        writer.append(**batch(0))
    assert writer.close()
    assert rows(troubled) == []


def test_without_a_permit_no_log_is_created_either(troubled: Troubled) -> None:
    """Its run may have been drained and cleaned up while it was frozen."""
    permit = Permit()
    permit.given = False
    with pytest.raises(PermitExpired):
        own(troubled, OLD, first=True, permit=permit)
    assert troubled.list("") == []


def test_a_writer_goes_on_when_its_permit_is_renewed(troubled: Troubled) -> None:
    permit = Permit()
    writer, _ = own(troubled, OLD, first=True, permit=permit)
    permit.given = False
    with pytest.raises(PermitExpired):
        writer.append(**batch(0))
    permit.given = True
    writer.append(**batch(0))
    assert rows(troubled) == [b"zero 0"]


def permit_ends_with(trouble: Trouble, permit: Permit) -> Trouble:
    """The trouble happens, and no permit is left to settle it."""

    def both(send: Callable[[], Answer]) -> Answer:
        permit.given = False
        return trouble(send)

    return both


@pytest.mark.parametrize("trouble", [lost_answer, lost_request])
def test_a_batch_left_unsettled_is_settled_before_it_is_appended_again(troubled: Troubled, trouble: Trouble) -> None:
    permit = Permit()
    writer, _ = own(troubled, OLD, first=True, permit=permit)
    troubled.is_out = True
    troubled.troubles = [permit_ends_with(lambda send: trouble(send_anyway(troubled, send)), permit)]
    with pytest.raises(PermitExpired):
        writer.append(**batch(0))
    permit.given, troubled.is_out = True, False
    end = writer.append(**batch(0))
    assert (rows(troubled), writer.position) == ([b"zero 0"], end)


def send_anyway(troubled: Troubled, send: Callable[[], Answer]) -> Callable[[], Answer]:
    """The request arrives although all answers are lost from then on."""

    def reached() -> Answer:
        troubled.is_out = False
        answer = send()
        troubled.is_out = True
        return answer

    return reached


def test_a_frontier_left_unsettled_does_not_disturb_the_next_batch(troubled: Troubled) -> None:
    permit = Permit()
    writer, _ = own(troubled, OLD, first=True, permit=permit)
    troubled.troubles = [permit_ends_with(lost_request, permit)]
    with pytest.raises(PermitExpired):
        writer.append_frontier(5)
    permit.given = True
    writer.append(**batch(0))
    records = LogReader(troubled, PREFIX).scan((0, 0)).records
    assert (records, rows(troubled)) == (3, [b"zero 0"])


def test_close_says_whether_anything_is_unsettled(troubled: Troubled) -> None:
    permit = Permit()
    writer, _ = own(troubled, OLD, first=True, permit=permit)
    sent: list[Callable[[], Answer]] = []

    def delayed(send: Callable[[], Answer]) -> Answer:
        permit.given = False
        sent.append(send)
        raise Unsettled("It is on its way.")

    troubled.troubles = [delayed]
    with pytest.raises(PermitExpired):
        writer.append(**batch(0))
    assert not writer.close()
    sent[0]()
    assert writer.close()


def test_close_has_doubts_while_the_storage_is_out(troubled: Troubled) -> None:
    permit = Permit()
    writer, _ = own(troubled, OLD, first=True, permit=permit)
    troubled.troubles = [permit_ends_with(lost_request, permit)]
    troubled.is_out = True
    with pytest.raises(PermitExpired):
        writer.append(**batch(0))
    assert not writer.close()
    troubled.is_out = False
    assert not writer.close()  # nothing was appended, but it may still come
    own(troubled, NEW)
    assert writer.close()  # now it cannot


def test_close_waits_for_the_append_in_flight(troubled: Troubled) -> None:
    writer, _ = own(troubled, OLD, first=True)
    on_its_way, may_arrive = threading.Event(), threading.Event()

    def slow(send: Callable[[], Answer]) -> Answer:
        on_its_way.set()
        assert may_arrive.wait(10)
        return send()

    troubled.troubles = [slow]
    appending = threading.Thread(target=lambda: writer.append(**batch(0)))
    closed: list[bool] = []
    closing = threading.Thread(target=lambda: closed.append(writer.close()))
    appending.start()
    assert on_its_way.wait(10)
    closing.start()
    assert closed == []
    may_arrive.set()
    appending.join()
    closing.join()
    assert (closed, rows(troubled)) == ([True], [b"zero 0"])


def test_a_closed_writer_appends_nothing(blobs: Blobs) -> None:
    writer, _ = own(blobs, OLD, first=True)
    assert writer.close()
    with pytest.raises(PermitExpired, match="is closed"):
        writer.append(**batch(0))


def test_a_take_over_gives_up_when_its_permit_ends(troubled: Troubled) -> None:
    own(troubled, OLD, first=True)
    troubled.is_out = True
    permit, tries = Permit(), []

    def wait(pause: Pause) -> None:
        tries.append(pause.tries)
        permit.given = pause.tries < 3

    with pytest.raises(PermitExpired, match="does not answer"):
        take_over(
            troubled,
            PREFIX,
            group_id=GROUP,
            task="clean-0",
            writer=NEW,
            first=False,
            may_append=permit,
            meta=META,
            wait=wait,
        )
    assert tries == [1, 2, 3]


def test_a_batch_that_is_built_again_does_not_find_the_rows_of_the_first_try(troubled: Troubled) -> None:
    permit = Permit()
    limits = LogLimits(record_bytes=5)
    writer, _ = own(troubled, OLD, first=True, permit=permit, limits=limits)
    permit.given = False
    with pytest.raises(PermitExpired):
        writer.append(**batch(0, "then"))
    permit.given = True
    writer.append(**batch(0, "now"))
    assert rows(troubled) == [b"zero now"]


def test_a_log_that_is_gone_is_never_started_afresh(blobs: Blobs) -> None:
    with pytest.raises(StateLost, match=r"The log of clean-0 must exist .* runs/r/clean-0/00000000"):
        own(blobs, NEW)
    assert list(blobs.list("")) == []


def test_a_first_owner_takes_over_what_an_earlier_incarnation_created(blobs: Blobs) -> None:
    own(blobs, OLD, first=True)[0].append(**batch(0))
    assert own(blobs, NEW, first=True)[1].last_batch == 0


def test_a_first_owner_finds_a_log_whose_first_blob_was_deleted_long_ago(blobs: Blobs) -> None:
    writer, _ = own(blobs, OLD, first=True, limits=LogLimits(roll_records=2))
    for number in range(4):
        writer.append(**batch(number))
    blobs.delete(f"{PREFIX}/00000000")
    assert own(blobs, NEW, first=True)[1].last_batch == 3


def test_a_log_that_vanishes_under_its_writer_is_lost_state(blobs: Blobs) -> None:
    writer, _ = own(blobs, OLD, first=True)
    blobs.delete(f"{PREFIX}/00000000")
    with pytest.raises(StateLost):
        writer.append(**batch(0))


def test_a_drained_task_is_done(blobs: Blobs) -> None:
    writer, _ = own(blobs, OLD, first=True)
    writer.append(**batch(0), kind=Kind.DRAINED)
    end = writer.position
    assert writer.append_frontier(77) == end

    heir, restored = own(blobs, NEW)
    assert (restored.drained, restored.last_batch, heir.position) == (True, 0, end)
    with pytest.raises(PermitExpired, match="is closed"):
        heir.append(**batch(1))
    found = LogReader(blobs, PREFIX).scan((0, 0))
    assert (found.drained, found.end) == (True, end)


def test_a_log_rolls_and_restore_and_readers_follow(blobs: Blobs) -> None:
    writer, _ = own(blobs, OLD, first=True, limits=LogLimits(roll_bytes=2000))
    ends = [writer.append(**batch(number)) for number in range(20)]
    assert ends[-1][0] >= 2
    assert rows(blobs) == [b"zero %d" % number for number in range(20)]

    heir, restored = own(blobs, NEW)
    assert (restored.last_batch, restored.files["state/0/0/1.delta"], restored.records < 10) == (19, b"0", True)
    assert restored.meta == META
    assert heir.position[0] == ends[-1][0]


def half_rolled(blobs: Blobs) -> None:
    """A log of three batches whose owner died between creating the next blob and opening it."""

    def crash(send: Callable[[], Answer]) -> Answer:
        raise KeyboardInterrupt

    rolling = Troubled(blobs, [fine, fine, fine, fine, fine, crash])
    writer, _ = own(rolling, OLD, first=True, limits=LogLimits(roll_records=4))
    for number in range(3):
        writer.append(**batch(number))
    with pytest.raises(KeyboardInterrupt):
        writer.append(**batch(3))
    assert [size > 0 for _, size in blobs.list(PREFIX)] == [True, False]


def test_a_new_owner_finishes_what_a_crash_left_half_rolled(blobs: Blobs) -> None:
    half_rolled(blobs)
    heir, restored = own(blobs, NEW)
    assert (restored.last_batch, heir.position[0]) == (2, 1)
    heir.append(**batch(3))
    assert rows(blobs) == [b"zero 0", b"zero 1", b"zero 2", b"zero 3"]


def test_callers_may_append_only_batches_frontiers_and_the_end(blobs: Blobs) -> None:
    writer, _ = own(blobs, OLD, first=True)
    with pytest.raises(ValueError, match="ROLLED is written by the rules alone"):
        writer.append(**batch(0), kind=Kind.ROLLED)


def test_large_rows_and_files_lie_beside_the_log(blobs: Blobs) -> None:
    large, small = bytes(range(256)) * 4000, b"small"
    writer, _ = own(blobs, OLD, first=True, limits=LogLimits(record_bytes=100_000))
    slices = (Slice(0, large, 1), Slice(1, small, 1))
    writer.append(0, slices=slices, files={"state/0/0/1.delta": large, "offsets/0": small})

    ((name, size),) = blobs.list(large_prefix(PREFIX))
    assert (name.startswith("runs/r/large/clean-0/00000000/3.1-0-batch-"), size) == (True, 2 * len(large))
    assert writer.position[1] < 2000
    assert (rows(blobs, 0), rows(blobs, 1)) == ([large], [small])
    assert own(blobs, NEW)[1].files == {"state/0/0/1.delta": large, "offsets/0": small}


def test_a_large_file_is_uploaded_once_however_often_the_log_rolls(blobs: Blobs) -> None:
    limits = LogLimits(record_bytes=100, roll_records=4)
    writer, _ = own(blobs, OLD, first=True, limits=limits)
    writer.append(0, files={"state/0/0/1.snapshot": bytes(1000)})
    for number in range(1, 12):
        writer.append(number, files={f"offsets/{number}": b""})
    assert writer.position[0] >= 3
    assert [size for _, size in blobs.list(large_prefix(PREFIX))] == [1000]
    assert own(blobs, NEW)[1].files["state/0/0/1.snapshot"] == bytes(1000)


def test_a_file_that_lasts_has_a_blob_of_its_own_and_a_delta_has_none(blobs: Blobs) -> None:
    """However often the log rolls, each is written once. Memory holds neither."""
    sst, delta = bytes(range(256)) * 300, bytes(range(256)) * 200
    writer, _ = own(blobs, OLD, first=True, limits=LogLimits(roll_records=4))
    writer.append(0, files={"state/0/0/SSTs/000008-a.sst": memoryview(sst), "state/0/0/1.changelog": memoryview(delta)})
    for number in range(1, 12):
        writer.append(number, files={f"offsets/{number}": b"", f"state/0/0/{number + 1}.changelog": b"little"})

    assert writer.position[0] >= 3
    assert [size for _, size in blobs.list(large_prefix(PREFIX))] == [len(sst)]
    written = sum(size for _, size in blobs.list(f"{PREFIX}/"))
    assert len(delta) < written < len(delta) + 20_000
    files = own(blobs, NEW)[1].files
    assert (files["state/0/0/SSTs/000008-a.sst"], files["state/0/0/1.changelog"]) == (sst, delta)
    assert writer.held_bytes < 2000


# Reading.


def test_a_scan_of_a_log_that_is_not_there_yet_finds_nothing(blobs: Blobs) -> None:
    found = LogReader(blobs, PREFIX, frozenset({0})).scan((0, 0))
    assert (found.end, found.records, found.at_end) == ((0, 0), 0, True)


def test_a_scan_at_the_end_finds_nothing_new(blobs: Blobs) -> None:
    writer, _ = own(blobs, OLD, first=True)
    end = writer.append(**batch(0))
    found = LogReader(blobs, PREFIX).scan(end)
    assert (found.end, found.records, found.frontier_us, found.at_end) == (end, 0, None, True)


def test_records_without_rows_for_us_move_position_and_frontier(blobs: Blobs) -> None:
    writer, _ = own(blobs, OLD, first=True)
    writer.append(0, frontier_us=7, slices=(Slice(1, b"for another", 1),))
    end = writer.append_frontier(9, idle=True)
    found = LogReader(blobs, PREFIX, frozenset({0})).scan((0, 0))
    assert (found.end, found.parts, found.frontier_us, found.idle) == (end, (), 9, True)
    writer.append(**batch(1))
    assert not LogReader(blobs, PREFIX).scan(end).idle


def test_a_scan_stops_before_it_has_too_many_bytes_but_takes_one_record(blobs: Blobs) -> None:
    writer, _ = own(blobs, OLD, first=True)
    ends = [writer.append(number, slices=(Slice(0, bytes(100), 1),)) for number in range(5)]
    reader = LogReader(blobs, PREFIX, frozenset({0}))
    assert reader.scan((0, 0), 250).end == ends[1]
    assert reader.scan((0, 0), 1).end == ends[0]
    assert reader.scan(ends[1], 300).end == ends[4]


def test_a_scan_stops_at_the_given_end(blobs: Blobs) -> None:
    writer, _ = own(blobs, OLD, first=True, limits=LogLimits(roll_records=4))
    ends = [writer.append(**batch(number)) for number in range(6)]
    reader = LogReader(blobs, PREFIX, frozenset({0}))
    assert [reader.scan((0, 0), until=end).end for end in ends] == ends
    assert [len(reader.parts((0, 0), end)) for end in ends] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(CorruptState, match="No record ends at"):
        reader.scan((0, 0), until=(0, ends[0][1] + 1))


def test_slices_that_a_scan_has_promised_must_be_there(blobs: Blobs) -> None:
    writer, _ = own(blobs, OLD, first=True)
    index, position = writer.append(**batch(0))
    with pytest.raises(CorruptState, match="The log ends before"):
        LogReader(blobs, PREFIX).parts((0, 0), (index, position + 10))


@dataclass(slots=True)
class Counted(Troubled):
    """A storage that counts what is read of it."""

    reads: list[int] = field(default_factory=list)

    def read(self, name: str, start: int, length: int | None = None) -> Span | Missing:
        answer = self.blobs.read(name, start, length)
        self.reads.append(len(answer.data) if isinstance(answer, Span) else 0)
        return answer


def test_small_rows_come_with_the_headers_in_one_read() -> None:
    counted = Counted(MemoryAccount().blobs())
    writer, _ = own(counted, OLD, first=True)
    for number in range(100):
        writer.append(**batch(number))
    counted.reads.clear()
    assert len(rows(counted)) == 100
    assert len(counted.reads) == 1


def test_large_rows_for_others_are_not_read() -> None:
    counted = Counted(MemoryAccount().blobs())
    writer, _ = own(counted, OLD, first=True)
    for number in range(5):
        writer.append(number, slices=(Slice(0, bytes(1000), 1), Slice(1, bytes(3 << 20), 1)))
    counted.reads.clear()
    assert len(rows(counted, 0)) == 5
    assert sum(counted.reads) <= 6 * CHUNK


def test_large_rows_for_us_are_read_once_and_alone() -> None:
    counted = Counted(MemoryAccount().blobs())
    writer, _ = own(counted, OLD, first=True)
    writer.append(0, slices=(Slice(0, bytes(3 << 20), 1), Slice(1, bytes(1 << 20), 1)))
    counted.reads.clear()
    assert [len(data) for data in rows(counted, 0)] == [3 << 20]
    assert counted.reads == [CHUNK, 3 << 20]


def test_a_task_with_a_small_share_of_large_records_reads_only_their_index() -> None:
    """Each of 64 tasks read 256 KiB of each record."""
    counted = Counted(MemoryAccount().blobs())
    writer, _ = own(counted, OLD, first=True)
    reader, at, data = LogReader(counted, PREFIX, frozenset({40})), writer.position, bytes(30_000)
    for number in range(5):
        writer.append(number, slices=tuple(Slice(each, data, 1) for each in range(64)))
        counted.reads.clear()
        found = reader.scan(at)
        at = found.end
        assert list(reader.fetch(found.parts)) == [data]
        assert counted.reads == [INDEX if number else CHUNK, len(data)]
    writer.append(5, slices=(Slice(40, data, 1), Slice(41, bytes(60_000), 1)))
    found = reader.scan(at)
    assert found.parts[0].data == data, "a smaller one comes whole"
    writer.append(6, slices=(Slice(40, data, 1), Slice(41, bytes(60_000), 1)))
    counted.reads.clear()
    assert reader.scan(found.end).parts[0].data == data
    assert len(counted.reads) == 1, "and so does the next one at once"


def test_small_records_are_read_whole_however_the_reads_fall() -> None:
    counted = Counted(MemoryAccount().blobs())
    writer, _ = own(counted, OLD, first=True)
    for number in range(60):
        writer.append(number, slices=(Slice(0, bytes(30_000), 1),))
    counted.reads.clear()
    found = LogReader(counted, PREFIX).scan((0, 0))
    assert all(part.data is not None for part in found.parts)
    assert len(counted.reads) < 6


def test_a_long_scan_ends_early_and_goes_on_from_there() -> None:
    blobs = MemoryAccount().blobs()
    writer, _ = own(blobs, OLD, first=True)
    for number in range(40):
        writer.append(number, slices=(Slice(0, bytes(400_000), 1),))
    reader = LogReader(blobs, PREFIX, frozenset({7}))
    early = reader.scan((0, 0))
    assert not early.at_end
    late = reader.scan(early.end)
    assert (late.at_end, late.end) == (True, writer.position)


def test_the_tail_is_found_from_the_end(blobs: Blobs) -> None:
    reader = LogReader(blobs, PREFIX)
    assert reader.tail() is None
    writer, _ = own(blobs, OLD, first=True, limits=LogLimits(roll_records=3))
    for number in range(4):
        end = writer.append(number, slices=(Slice(0, bytes(300_000), 1),))
        for last in (reader.tail(), reader.tail(0)):
            assert last is not None and (last.header.batch, last.end) == (number, end)


def test_the_tail_of_a_log_whose_newest_blob_is_empty_is_in_the_one_before(blobs: Blobs) -> None:
    half_rolled(blobs)
    last = LogReader(blobs, PREFIX).tail()
    assert last is not None and (last.header.kind, last.end) == (Kind.ROLLED, (1, 0))


def test_a_reader_that_has_seen_a_group_takes_no_other(blobs: Blobs) -> None:
    own(blobs, OLD, first=True)
    with pytest.raises(CorruptState, match="belongs to another group"):
        LogReader(blobs, PREFIX, group_id=b"another group id").scan((0, 0))

    reader = LogReader(blobs, PREFIX)
    assert (reader.scan((0, 0)).group_id, reader.group_id) == (GROUP, GROUP)
    blobs.delete(f"{PREFIX}/00000000")
    take_over(
        blobs,
        PREFIX,
        group_id=b"another group id",
        task="clean-0",
        writer=NEW,
        first=True,
        may_append=lambda: True,
        meta=META,
    )
    with pytest.raises(CorruptState, match="belongs to another group"):
        reader.scan((0, 0))


def test_a_log_shorter_than_what_was_read_is_corruption(blobs: Blobs) -> None:
    writer, _ = own(blobs, OLD, first=True)
    end = writer.append(**batch(0))
    with pytest.raises(CorruptState, match="was longer before"):
        LogReader(blobs, PREFIX).scan((0, end[1] + 5))


def test_a_blob_that_is_gone_behind_a_reader_is_lost_state(blobs: Blobs) -> None:
    with pytest.raises(StateLost):
        LogReader(blobs, PREFIX).scan((3, 100))


# Damage.


def damaged(whole: bytes) -> Iterator[tuple[int, bytes]]:
    """The same bytes with one of them changed, for each."""
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x5A
        yield place, bytes(changed)


def memory_of(contents: Mapping[str, bytes]) -> Blobs:
    """A storage that holds just this."""
    blobs = MemoryAccount().blobs()
    for name, data in contents.items():
        blobs.create(name)
        blobs.append(name, data, 0)
    return blobs


def read_all(blobs: Blobs) -> list[bytes]:
    reader = LogReader(blobs, PREFIX)
    return list(reader.fetch(reader.scan((0, 0)).parts))


def test_no_reader_accepts_a_damaged_byte() -> None:
    blobs = MemoryAccount().blobs()
    writer, _ = own(blobs, OLD, first=True)
    starts = [writer.position[1], writer.append(**batch(0))[1]]
    writer.append(**batch(1), kind=Kind.DRAINED)
    name = f"{PREFIX}/00000000"
    whole = blobs.read(name, 0)
    assert isinstance(whole, Span)
    intact, unnoticed = read_all(blobs), 0
    for _, data in damaged(whole.data):
        with suppress(CorruptState):
            assert read_all(memory_of({name: data})) == intact
            unnoticed += 1
    files = [header.files_length for header in (decode_header(whole.data[at:], blob="", position=0) for at in starts)]
    assert unnoticed == sum(files)  # a reader of rows does not read them


def test_no_new_owner_accepts_a_damaged_header_or_file() -> None:
    blobs = MemoryAccount().blobs()
    writer, _ = own(blobs, OLD, first=True)
    writer.append(0, files={"offsets/0": b"offset"})
    name = f"{PREFIX}/00000000"
    whole = blobs.read(name, 0)
    assert isinstance(whole, Span)
    for _, data in damaged(whole.data):
        with pytest.raises(CorruptState, match=f"blob {name}, position "):
            own(memory_of({name: data}), NEW)


def test_a_log_cut_off_anywhere_inside_a_record_is_corruption() -> None:
    blobs = MemoryAccount().blobs()
    writer, _ = own(blobs, OLD, first=True)
    boundaries = {0, writer.position[1], writer.append(**batch(0))[1]}
    name = f"{PREFIX}/00000000"
    whole = blobs.read(name, 0)
    assert isinstance(whole, Span)
    for length in sorted(set(range(1, len(whole.data))) - boundaries):
        memory = memory_of({name: whole.data[:length]})
        for attempt in (lambda memory=memory: read_all(memory), lambda memory=memory: own(memory, NEW)):
            with pytest.raises(CorruptState, match="in the middle of a record"):
                attempt()


def test_damage_beside_the_log_is_noticed_too() -> None:
    blobs = MemoryAccount().blobs()
    writer, _ = own(blobs, OLD, first=True, limits=LogLimits(record_bytes=0))
    writer.append(0, slices=(Slice(0, b"rows", 1),), files={"offsets/0": b"offset"})
    ((large, _),) = blobs.list(large_prefix(PREFIX))
    blobs.delete(large)
    blobs.put(large, b"offserrows")
    with pytest.raises(CorruptState, match=f"damaged .blob {large}"):
        dict(own(blobs, NEW)[1].files)
    blobs.delete(large)
    with pytest.raises(StateLost, match="A record refers to this blob, which is gone"):
        rows(blobs)


def test_a_reference_in_a_batch_is_kept_as_it_is(blobs: Blobs) -> None:
    beside = large_name(PREFIX, 0, "rows")
    blobs.put(beside, b"xxrowsxx")
    writer, _ = own(blobs, OLD, first=True)
    writer.append(0, slices=(Slice(0, Reference(beside, 2, 4, 0x2F4CC2C4), 1),))
    part = LogReader(blobs, PREFIX).scan((0, 0)).parts[0]
    assert part.reference == Reference(beside, 2, 4, 0x2F4CC2C4)


def test_a_large_file_is_restored_in_pieces(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be larger than memory, and what a record says of its size may be anything."""
    monkeypatch.setattr(stored_module, "PIECE_BYTES", 7_000)
    writer, _ = own(blobs, OLD, first=True)
    content = bytes(range(256)) * 400
    writer.append(0, files={"offsets/0": b"o", "state/0/0/1.snapshot": content})
    files = own(blobs, NEW)[1].files
    assert isinstance(files, StoredMapping)
    assert (files.size("state/0/0/1.snapshot"), files.size("offsets/0")) == (102_400, 1)
    pieces = list(files.pieces("state/0/0/1.snapshot"))
    assert (b"".join(pieces), len(pieces), list(files.pieces("offsets/0"))) == (content, 15, [b"o"])

    ((large, _),) = blobs.list(large_prefix(PREFIX))
    for damaged, why in ((content[:-1], "A file is cut short"), (content[:-1] + b"x", "is damaged")):
        blobs.delete(large)
        blobs.put(large, damaged)
        with pytest.raises(CorruptState, match=f"{why} .blob {large}"):
            list(files.pieces("state/0/0/1.snapshot"))
