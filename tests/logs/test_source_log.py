"""The rules of a source log: producers that append at the same place, and what an append asks for."""

from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from samza_azure.errors import CorruptState, StateLost
from samza_azure.logs.names import blob_name
from samza_azure.logs.operations import Append, Create, Enumerate, EnumerateAges, Operation, Read, Sent, Span, indexes
from samza_azure.logs.reading import scan
from samza_azure.logs.record import Kind, Record, Slice, Writer, encode
from samza_azure.logs.retention import Keeps, Listed
from samza_azure.logs.source_log import (
    ORDER_S,
    SPARED_S,
    TRUSTED_S,
    SharedLog,
    append_shared,
    in_line,
    is_in_line,
    resume,
)
from samza_azure.logs.task_log import LogLimits
from samza_azure.storage.interface import Blobs
from samza_azure.storage.memory import MemoryAccount, MemoryStorage
from samza_azure.stream_io.driver import drive, perform
from samza_azure.stream_io.retention import Retention
from tests.logs.race import GROUP, stored

PREFIX = "streams/flights/0"


class Clock:
    """Seconds that pass when a test says so."""

    time_s = 0.0

    def __call__(self) -> float:
        return self.time_s


def timed() -> tuple[Clock, Blobs]:
    """A clock, and a storage of the same time."""
    now = Clock()
    return now, MemoryAccount(MemoryStorage(now)).blobs()


def producer(name: str) -> SharedLog:
    return SharedLog(PREFIX, name, GROUP, Clock())


def keyed(name: str) -> SharedLog:
    """A producer with an idempotence key."""
    return SharedLog(PREFIX, name, GROUP, Clock(), once="import", row=1)


def rows(text: str) -> dict[str, Any]:
    return {"kind": Kind.BATCH, "slices": (Slice(0, text.encode(), 1),)}


def written(blobs: Blobs) -> list[str]:
    """All rows, in their order."""
    return [bytes(part.data).decode() for _, record in stored(blobs, PREFIX) for part in record.slices]


def written_behind(blobs: Blobs, index: int) -> list[str]:
    """What readers find from this blob on."""
    return [bytes(part.data or b"").decode() for part in drive(scan(PREFIX, (index, 0)), blobs).parts]


def test_an_append_is_one_operation_once_the_end_is_known() -> None:
    blobs, log = MemoryAccount().blobs(), producer("a")
    drive(append_shared(log, **rows("one")), blobs)
    drive(append_shared(log, **rows("two")), blobs)
    asked: list[Operation] = []
    rule = append_shared(log, **rows("three"))
    answer: Any = None
    with suppress(StopIteration):
        while True:
            asked.append(rule.send(answer))
            answer = perform(asked[-1], blobs)
    assert [type(each) for each in asked] == [Append]
    assert written(blobs) == ["one", "two", "three"]


def test_two_producers_at_one_position_never_mistake_each_others_rows_for_their_own() -> None:
    blobs, slow, fast = MemoryAccount().blobs(), producer("slow"), producer("fast")
    drive(append_shared(slow, **rows("first")), blobs)
    rule = append_shared(slow, **rows("slow"))
    operation = next(rule)
    while not isinstance(operation, Append):
        operation = rule.send(perform(operation, blobs))
    drive(append_shared(fast, **rows("fast rows, at least as long")), blobs)
    answer: Any = Sent.UNKNOWN  # it did not land, and the answer does not say so
    with suppress(StopIteration):
        while True:
            answer = perform(rule.send(answer), blobs)
    assert written(blobs) == ["first", "fast rows, at least as long", "slow"]


LOST_TRACK = "Retention has deleted the blob that this producer of 'import' was to write next. Run it again"


def test_a_producer_with_a_key_whose_blob_was_deleted_does_not_go_on_elsewhere() -> None:
    """In what was written and deleted meanwhile there may be rows of its key. One without a key has none to lose."""
    blobs, log = MemoryAccount().blobs(), keyed("a")
    drive(append_shared(log, **rows("one")), blobs)
    blobs.delete(blob_name(PREFIX, 0))
    with pytest.raises(StateLost, match=LOST_TRACK):
        drive(append_shared(log, **rows("two")), blobs)
    assert written(blobs) == []


def resumed_while_its_log_is_deleted(after: int) -> int | str:
    """What a producer finds whose log has one row of its key, and is deleted after `after` operations of its search."""
    blobs = MemoryAccount().blobs()
    drive(append_shared(keyed("a"), **rows("one")), blobs)
    rule = resume(keyed("b"), (0, 0))
    answer: Any = None
    try:
        for number in count():
            if number == after:
                blobs.delete(blob_name(PREFIX, 0))
            answer = perform(rule.send(answer), blobs)
    except StopIteration as stop:
        return int(stop.value)
    except StateLost as error:
        return str(error)


def test_a_producer_whose_log_is_deleted_while_it_resumes_finds_no_log_or_its_row_or_says_why_it_cannot() -> None:
    """Between the two reads of the last record it failed with an error of `struct`."""
    found = [resumed_while_its_log_is_deleted(after) for after in range(5)]
    lost = f"{LOST_TRACK}: it skips the rows that are stored (blob {blob_name(PREFIX, 0)}, position 0)"
    assert found == [0, 0, 0, lost, 1]


def test_a_row_in_a_blob_that_was_created_again_does_not_count_as_stored() -> None:
    """Its producer died before it saw that the blob was out of line: no reader gets there."""
    blobs, log, other = MemoryAccount().blobs(), keyed("a"), producer("b")
    log.limits = other.limits = LogLimits(roll_records=1)
    drive(append_shared(log, **rows("one")), blobs)
    drive(append_shared(other, **rows("of another")), blobs)
    blobs.delete(blob_name(PREFIX, 0))
    again = encode(Record(Kind.BATCH, GROUP, "a", Writer(0, 0), 1, 0, meta={"once": ("import", 2)}))
    blobs.create(blob_name(PREFIX, 0))
    blobs.append(blob_name(PREFIX, 0), again, 0)
    with pytest.raises(StateLost, match="It is unknown which rows with the key 'import' are stored"):
        drive(resume(keyed("c"), (0, 0)), blobs)


def test_a_log_whose_last_blob_is_deleted_after_it_was_listed_is_not_begun_again() -> None:
    """The log had gone on in the next blob. No reader would see rows in a blob 0 that is created again."""
    blobs, fast, slow = MemoryAccount().blobs(), producer("fast"), producer("slow")
    fast.limits = LogLimits(roll_records=1)
    drive(append_shared(fast, **rows("one")), blobs)
    rule = append_shared(slow, **rows("slow"))
    listed = perform(next(rule), blobs)
    drive(append_shared(fast, **rows("two")), blobs)
    blobs.delete(blob_name(PREFIX, 0))
    answer: Any = listed
    with suppress(StopIteration):
        while True:
            answer = perform(rule.send(answer), blobs)
    assert [index for index, _ in drive(indexes(PREFIX), blobs)] == [1]
    assert slow.end[0] == 1


def test_a_blob_that_is_gone_is_not_in_line() -> None:
    blobs = MemoryAccount().blobs()
    assert not drive(is_in_line(PREFIX, 0), blobs)
    blobs.create(blob_name(PREFIX, 1))
    assert (drive(is_in_line(PREFIX, 0), blobs), drive(is_in_line(PREFIX, 1), blobs)) == (False, True)


def test_a_blob_may_seem_to_be_younger_than_the_next_one_by_what_the_services_clocks_differ() -> None:
    def listed(younger_by_s: float) -> list[Listed]:
        return [Listed(blob_name(PREFIX, 0), 1, 0.0, 500.0), Listed(blob_name(PREFIX, 1), 1, 0.0, 500.0 + younger_by_s)]

    assert [in_line(PREFIX, listed(seconds), 0) for seconds in (0.0, ORDER_S, ORDER_S + 1)] == [True, True, False]


class Sleeper:
    """A producer that stops where a test says so."""

    def __init__(self, log: SharedLog, blobs: Blobs, text: str) -> None:
        self._rule, self._blobs = append_shared(log, **rows(text)), blobs
        self.operation = next(self._rule)
        self._answers: list[Any] = []  # of an append that was made

    def until(self, kind: type[Operation]) -> None:
        """Fall asleep before the next such operation."""
        while not isinstance(self.operation, kind):
            self.next()

    def until_append(self) -> None:
        """Fall asleep before the next append."""
        self.until(Append)

    def next(self) -> None:
        """Perform the operation, and fall asleep before the next one."""
        self.operation = self._rule.send(perform(self.operation, self._blobs))

    def append(self, answer: Sent | None = None) -> None:
        """Append, and fall asleep before the answer arrives, or this one."""
        done = perform(self.operation, self._blobs)
        self._answers = [done if answer is None else answer]

    def end(self) -> str:
        """Wake up. What the producer is told."""
        try:
            while True:
                answer = self._answers.pop() if self._answers else perform(self.operation, self._blobs)
                self.operation = self._rule.send(answer)
        except StopIteration:
            return "told"
        except StateLost as error:
            return str(error).partition(" (")[0]


def after_both_slept(*keys: str) -> tuple[list[str], list[str]]:
    """What two producers are told that slept in an append while their blob was filled, rolled, read and deleted; and
    their rows.

    The first begins the blob again. Its record is as long as that of the second, which was about to append there.
    """
    now, blobs = timed()
    limits = LogLimits(roll_records=2)
    first, second, fast = (
        SharedLog(PREFIX, name, GROUP, now, limits=limits, once=key)
        for name, key in zip("abc", (*keys, ""), strict=True)
    )
    slow = Sleeper(first, blobs, "two")
    slow.until_append()
    drive(append_shared(second, **rows("one")), blobs)
    sleeper = Sleeper(second, blobs, "three")
    sleeper.until_append()
    for number in range(5):
        drive(append_shared(fast, **rows(f"fast {number}")), blobs)
    blobs.delete(blob_name(PREFIX, 0))
    now.time_s += SPARED_S
    blobs.create(blob_name(PREFIX, 0))  # by the first one, which had been about to
    slow.append()
    ends = [each.end().partition(".")[0] for each in (sleeper, slow)]
    assert not blobs.list(blob_name(PREFIX, 0)), "readers would begin with it"
    return ends, [text for text in written_behind(blobs, 1) if not text.startswith("fast")]


SLEPT = "This producer slept while it appended, and retention has deleted its blob meanwhile"


def test_no_row_counts_as_stored_in_a_blob_that_another_sleeper_has_created_again() -> None:
    """The producer had checked its blob long ago, trusted it, and its row was reported and lost."""
    assert after_both_slept("", "") == ([SLEPT, SLEPT], [])


def test_a_producer_with_a_key_is_told_to_run_again_if_its_blob_was_created_again() -> None:
    lost_track = LOST_TRACK.partition(".")[0]
    ends, found = after_both_slept("export", "import")
    assert (ends, found) == ([lost_track, lost_track.replace("import", "export")], [])


def appended_late(*, answer: Sent | None, create: bool) -> tuple[str, int]:
    """What a producer is told whose row landed in blob 0, and that slept before it was answered; and how often the row
    was stored. Meanwhile the blob was filled, rolled, read and deleted, and, with `create`, created again by a sleeper.
    """
    now, blobs = timed()
    limits = LogLimits(roll_records=2)
    first, second, fast = (SharedLog(PREFIX, name, GROUP, now, limits=limits) for name in "abc")
    slow, sleeper = Sleeper(first, blobs, "two"), Sleeper(second, blobs, "one")
    slow.until_append()
    sleeper.until_append()
    sleeper.append(answer)
    for number in range(5):
        drive(append_shared(fast, **rows(f"fast {number}")), blobs)
    blobs.delete(blob_name(PREFIX, 0))
    now.time_s += SPARED_S
    if create:
        blobs.create(blob_name(PREFIX, 0))
        slow.append()
    told = sleeper.end()
    return told.partition(".")[0], 1 + written_behind(blobs, 1).count("one")


@pytest.mark.parametrize("answer", [None, Sent.UNKNOWN])
@pytest.mark.parametrize("create", [False, True])
def test_a_row_that_may_have_been_read_in_a_blob_that_is_gone_is_not_appended_again(
    answer: Sent | None, create: bool
) -> None:
    assert appended_late(answer=answer, create=create) == (SLEPT, 1)


def test_a_late_rolled_does_not_bring_a_blob_into_line_that_was_created_again() -> None:
    now, blobs = timed()
    limits = LogLimits(roll_records=1)
    first, second, fast = (SharedLog(PREFIX, name, GROUP, now, limits=limits) for name in "abc")
    beginning = Sleeper(first, blobs, "two")
    beginning.until_append()
    drive(append_shared(second, **rows("one")), blobs)
    rolling = Sleeper(second, blobs, "three")
    rolling.until_append()
    for number in range(3):
        drive(append_shared(fast, **rows(f"fast {number}")), blobs)
    blobs.delete(blob_name(PREFIX, 0))
    now.time_s += SPARED_S
    blobs.create(blob_name(PREFIX, 0))
    beginning.append()
    rolling.append()
    kinds = [record.kind for _, record in stored(blobs, PREFIX)][:2]
    assert kinds == [Kind.BATCH, Kind.ROLLED], "of blob 0"
    assert [each.end().partition(".")[0] for each in (beginning, rolling)] == [SLEPT, "told"]
    assert written_behind(blobs, 1)[-1] == "three", "ROLLED has no rows, so the producer goes on"


def test_that_a_blob_has_ended_says_nothing_about_the_age_of_the_next_one() -> None:
    """A producer that reads on slowly gets from one blob to the next when retention is about to delete both."""
    (now, blobs), asked = timed(), list[Operation]()
    limits = LogLimits(roll_records=1)
    log, fast = (SharedLog(PREFIX, name, GROUP, now, limits=limits) for name in "ab")
    drive(append_shared(log, **rows("early")), blobs)
    for number in range(4):
        drive(append_shared(fast, **rows(f"fast {number}")), blobs)
    now.time_s += TRUSTED_S - 1
    rule, answer = append_shared(log, **rows("late")), None
    with suppress(StopIteration):
        while True:
            asked.append(rule.send(answer))
            if isinstance(asked[-1], Read) and asked[-1].name == blob_name(PREFIX, 1) and now.time_s < TRUSTED_S:
                now.time_s += TRUSTED_S - 1
            if asked[-1] == Create(blob_name(PREFIX, 2)):
                now.time_s += 10.0
                for index in range(3):
                    blobs.delete(blob_name(PREFIX, index))
            answer = perform(asked[-1], blobs)
    assert "late" in written_behind(blobs, 4)


@pytest.mark.parametrize("key", ["", "import"])
def test_the_last_blob_stays_for_minutes_after_the_next_one_was_begun(key: str) -> None:
    """It was rolled long ago by a producer that died. Another has just seen that it is the last one, and reads it."""
    now = Clock()
    account = MemoryAccount(MemoryStorage(now))
    blobs, limits = account.blobs(), LogLimits(roll_records=1)
    log, *others, next_one = (
        SharedLog(PREFIX, name, GROUP, now, limits=limits, once=key if name == "a" else "") for name in "abcd"
    )
    for number, dies in enumerate(others):
        drive(append_shared(dies, **rows(f"blob {number}")), blobs)
        rolling = Sleeper(dies, blobs, "never")
        rolling.until_append()
        rolling.append()  # ROLLED
        if number == 0:
            drive(resume(log, (0, 0)), blobs)
    assert log.end == (1, 0)
    now.time_s += 2 * SPARED_S
    rule, answer = append_shared(log, **rows("late")), None
    listed, is_new = False, True
    with suppress(StopIteration):
        while True:
            operation = rule.send(answer)
            if is_new and (isinstance(operation, EnumerateAges) or (listed and isinstance(operation, Read))):
                is_new = False
                drive(append_shared(next_one, **rows("third")), blobs)
                retention = Retention(blobs, account.readers(), "flights", Keeps(bytes=0))
                while retention.delete_of_source(PREFIX, GROUP, []):
                    pass
            answer = perform(operation, blobs)
            listed = listed or isinstance(operation, Enumerate)
    oldest = min(index for index, _ in drive(indexes(PREFIX), blobs))
    assert written_behind(blobs, oldest)[-2:] == ["third", "late"]


def test_a_producer_whose_clock_stood_still_as_it_began_a_blob_is_not_told_that_its_row_is_stored() -> None:
    """As that of a machine which is paused from outside. It need not meet another sleeper."""
    now, blobs = timed()
    limits = LogLimits(roll_records=1)
    log = SharedLog(PREFIX, "a", GROUP, lambda: 0.0, limits=limits)
    fast = SharedLog(PREFIX, "b", GROUP, now, limits=limits)
    drive(append_shared(log, **rows("early")), blobs)
    sleeper = Sleeper(log, blobs, "late")
    sleeper.until_append()
    sleeper.append()  # ROLLED
    for number in range(3):
        drive(append_shared(fast, **rows(f"fast {number}")), blobs)
    now.time_s += 2 * SPARED_S
    for index in (0, 1):
        blobs.delete(blob_name(PREFIX, index))
    assert sleeper.end().partition(".")[0] == SLEPT


def test_a_blob_below_an_empty_one_is_in_line() -> None:
    """A sleeper created the empty one when it was told of a log that was deleted and begun again meanwhile."""
    now, blobs = timed()
    blobs.create(blob_name(PREFIX, 7))
    now.time_s += SPARED_S
    drive(append_shared(SharedLog(PREFIX, "a", GROUP, now), **rows("one")), blobs)
    assert drive(is_in_line(PREFIX, 0), blobs)


def test_a_producer_with_a_key_goes_on_after_minutes_of_silence_while_others_roll_the_log() -> None:
    now, blobs = timed()
    limits = LogLimits(roll_records=2)
    log = SharedLog(PREFIX, "a", GROUP, now, limits=limits, once="import")
    fast = SharedLog(PREFIX, "b", GROUP, now, limits=limits)
    for number in range(6):
        log.row = number + 1
        drive(append_shared(log, **rows(f"row {number}")), blobs)
        for turn in range(number % 4):
            drive(append_shared(fast, **rows(f"fast {number} {turn}")), blobs)
        now.time_s += 2 * SPARED_S
    assert [text for text in written(blobs) if text.startswith("row")] == [f"row {number}" for number in range(6)]


def test_a_producer_looks_for_the_end_again_only_after_minutes_of_silence() -> None:
    now, blobs = timed()
    log = SharedLog(PREFIX, "a", GROUP, now)
    asked: list[list[type[Operation]]] = []
    for silent_s in (0.0, 0.0, TRUSTED_S, TRUSTED_S, TRUSTED_S + 1, 1.0):
        now.time_s += silent_s
        rule, answer = append_shared(log, **rows("row")), None
        asked.append([])
        with suppress(StopIteration):
            while True:
                operation = rule.send(answer)
                asked[-1].append(type(operation))
                answer = perform(operation, blobs)
    assert asked[2:] == [[Append], [Append], [Enumerate, Read, Read, Read, Append], [Append]]


def test_a_blob_may_seem_a_little_younger_than_the_next_one() -> None:
    """The service's clocks differ."""
    ages = {0: 30.0, 1: ORDER_S + 29.0, 2: 5.0}
    listed = [Listed(blob_name(PREFIX, index), 1, 0.0, since_s) for index, since_s in ages.items()]
    assert all(in_line(PREFIX, listed, index) for index in ages)
    listed[1] = Listed(blob_name(PREFIX, 1), 1, 0.0, ORDER_S + 31.0)
    assert [in_line(PREFIX, listed, index) for index in ages] == [False, True, True]


def test_the_end_of_a_log_is_not_looked_for_in_a_blob_that_was_created_again() -> None:
    """The newest blob was empty when it was listed. The one before was deleted as soon as that had a record."""
    now, blobs = timed()
    limits = LogLimits(roll_records=1)
    first, second = (SharedLog(PREFIX, name, GROUP, now, limits=limits) for name in "ab")
    slow = Sleeper(first, blobs, "slow")
    slow.until_append()
    drive(append_shared(second, **rows("one")), blobs)
    dies = Sleeper(second, blobs, "never")
    dies.until_append()
    dies.append()  # ROLLED
    blobs.create(blob_name(PREFIX, 1))
    now.time_s += 2 * SPARED_S
    late = Sleeper(SharedLog(PREFIX, "c", GROUP, now), blobs, "late")
    late.until(Read)
    late.next()  # blob 1 is empty
    blobs.append(blob_name(PREFIX, 1), encode(Record(Kind.FRONTIER, GROUP, "d", Writer(0, 0), 0, 0)), 0)
    blobs.delete(blob_name(PREFIX, 0))
    blobs.create(blob_name(PREFIX, 0))
    slow.append()
    assert late.end() == "told"
    assert slow.end().partition(".")[0] == SLEPT
    assert written_behind(blobs, 1) == ["late"]


def created_again_and_rolled(row: int) -> Blobs:
    """A log whose blob 0 had the first row of the key, was deleted, and created again with another record, of this row
    of the key (0: of none), and with ROLLED that came late."""
    now, blobs = timed()
    limits = LogLimits(roll_records=1)
    log = SharedLog(PREFIX, "a", GROUP, now, limits=limits, once="import", row=1)
    fast = SharedLog(PREFIX, "b", GROUP, now, limits=limits)
    for each in (log, fast, fast):
        drive(append_shared(each, **rows("row")), blobs)
    now.time_s += SPARED_S
    blobs.delete(blob_name(PREFIX, 0))
    blobs.create(blob_name(PREFIX, 0))
    meta = {"once": ("import", row)} if row else {}
    for number, kind in enumerate((Kind.BATCH, Kind.ROLLED)):
        data = encode(Record(kind, GROUP, "late", Writer(0, 0), 0, number, meta={} if number else meta))
        blobs.append(blob_name(PREFIX, 0), data, sum(size for _, size in blobs.list(blob_name(PREFIX, 0))))
    return blobs


@pytest.mark.parametrize("row", [0, 2])
def test_a_producer_that_resumes_does_not_believe_a_blob_that_was_created_again_and_rolled_late(row: int) -> None:
    """It returned what was in it: a row that no reader gets, or none although one had been read."""
    blobs = created_again_and_rolled(row)
    with pytest.raises(StateLost, match="It is unknown which rows with the key 'import' are stored"):
        drive(resume(SharedLog(PREFIX, "c", GROUP, Clock(), once="import"), (0, 0)), blobs)


def test_a_producer_with_a_key_does_not_read_on_through_a_blob_that_was_created_again() -> None:
    """Another producer of the key had written there, and the blob was deleted after the producer had listed it."""
    now, blobs = timed()
    limits = LogLimits(roll_records=2)
    log, twin = (SharedLog(PREFIX, name, GROUP, now, limits=limits, once="import", row=1) for name in "ab")
    other = SharedLog(PREFIX, "c", GROUP, now, limits=limits)
    drive(append_shared(log, **rows("one")), blobs)
    known = blobs.read(blob_name(PREFIX, 0), 0)
    assert isinstance(known, Span)
    twin.is_open, twin.known_s, twin.end, twin.number, twin.group_id = True, 0.0, log.end, 1, GROUP
    drive(append_shared(twin, **rows("two")), blobs)
    for number in range(3):
        drive(append_shared(other, **rows(f"other {number}")), blobs)
    now.time_s += SPARED_S
    log.row = 2
    reading = Sleeper(log, blobs, "two")
    for operation in (EnumerateAges, Read):  # whichever comes first
        if not isinstance(reading.operation, operation):
            continue
        reading.next()
    blobs.delete(blob_name(PREFIX, 0))
    blobs.create(blob_name(PREFIX, 0))
    blobs.append(blob_name(PREFIX, 0), known.data, 0)
    late = encode(Record(Kind.ROLLED, GROUP, "late", Writer(0, 0), 0, 1))
    blobs.append(blob_name(PREFIX, 0), late, len(known.data))
    assert reading.end().startswith(LOST_TRACK)


def test_damage_is_no_deletion_for_a_producer_with_a_key_that_reads_on() -> None:
    now, blobs = timed()
    log = SharedLog(PREFIX, "a", GROUP, now, once="import", row=1)
    drive(append_shared(log, **rows("one")), blobs)
    blobs.append(blob_name(PREFIX, 0), b"no record" * 20, log.end[1])
    now.time_s += SPARED_S
    with pytest.raises(CorruptState) as raised:
        drive(append_shared(log, **rows("two")), blobs)
    assert not isinstance(raised.value, StateLost)


@pytest.mark.parametrize(
    "others", [b"no record" * 20, bytes(300), encode(Record(Kind.BATCH, GROUP, "x", Writer(0, 0), 0, 1))[:-1]]
)
def test_bytes_that_are_no_record_are_not_taken_for_another_producer_that_was_faster(others: bytes) -> None:
    """A producer that is trusted, as one without a key is at first, read it again forever."""
    blobs, log = MemoryAccount().blobs(), producer("a")
    drive(append_shared(log, **rows("one")), blobs)
    assert log.is_trusted
    blobs.append(blob_name(PREFIX, 0), others, log.end[1])

    def append() -> None:
        rule, answer = append_shared(log, **rows("two")), None
        for _ in range(50):
            answer = perform(rule.send(answer), blobs)

    with pytest.raises(CorruptState) as raised:
        append()
    assert not isinstance(raised.value, StateLost)
    assert blob_name(PREFIX, 0) in str(raised.value)
