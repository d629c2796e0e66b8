"""The rules of a task's log, on every order of operations that two writers can come to, and on many of three."""

import copy
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from samza_azure.errors import CorruptState, StateLost, Superseded
from samza_azure.logs.names import blob_name, large_prefix
from samza_azure.logs.operations import Append, Create, Enumerate, Operation, Pause, Read, Rule, Sent
from samza_azure.logs.position import Position
from samza_azure.logs.reading import Part, fetch_part, scan
from samza_azure.logs.record import INTERMEDIATE, NEEDS, Kind, Record, Reference, Slice, Writer
from samza_azure.logs.task_log import PRUNE_BYTES, LogLimits, append, log_record, restored_files, set_aside, take_over
from samza_azure.outcomes import Refused
from samza_azure.storage.interface import Blobs
from samza_azure.storage.memory import MemoryAccount
from samza_azure.stream_io.driver import drive, perform
from tests.logs.race import (
    PREFIX,
    Dice,
    Explorer,
    Owner,
    Race,
    batch_record,
    check,
    dice,
    expected_files,
    owner,
    stored,
)

OLD, NEW, NEWEST = Writer(3, 1), Writer(5, 1), Writer(5, 2)


def heir_finds_all(blobs: Blobs, limits: LogLimits | None = None) -> None:
    """A new owner can take over, and finds just what the accepted records say."""
    last = max((record.batch for _, record in stored(blobs) if record.kind is Kind.BATCH), default=-1)
    heir = owner(Writer(99, 1), 1, limits)
    drive(heir.life(first=True), blobs)
    assert heir.acknowledged == [last + 1]
    assert drive(restored_files(heir.log), blobs) == expected_files(blobs)


def race(owners: list[Owner], choose: Dice, faults: int, limits: LogLimits | None = None) -> Race:
    """Run a race to its end and check what must hold."""
    found = Race(owners, choose, faults)
    found.run()
    check(owners, found.blobs)
    heir_finds_all(found.blobs, limits)
    return found


@pytest.mark.long  # three writers in many orders with many faults are below
@pytest.mark.parametrize(
    "second", [NEW, pytest.param(Writer(3, 2), marks=pytest.mark.long)], ids=["a new owner", "a new attempt"]
)
def test_two_writers_in_every_order_with_one_lost_answer(second: Writer) -> None:
    ends = set()

    def run(choose: Dice) -> None:
        owners = [owner(OLD, 1), owner(second, 1)]
        race(owners, choose, faults=1)
        ends.add(tuple((each.is_superseded, tuple(each.acknowledged)) for each in owners))

    assert Explorer().explore(run) > 1000
    assert all(not newer for _, (newer, _) in ends), "the higher writer always gets through"
    assert {old for old, _ in ends} == {(False, (0,)), (True, ())}


@pytest.mark.parametrize("seed", range(150))
def test_three_writers_with_many_faults_on_a_log_that_rolls_often(seed: int) -> None:
    chance = random.Random(seed)
    limits = LogLimits(roll_records=chance.choice([3, 4, 7]), record_bytes=chance.choice([5, 40, 4 << 20]))
    owners = [owner(writer, 6, limits) for writer in (OLD, NEW, NEWEST)]
    race(owners, dice(seed), faults=12, limits=limits)
    assert not owners[-1].is_superseded


def test_a_crash_after_any_operation_is_survived() -> None:
    limits = LogLimits(roll_records=3, record_bytes=5)
    steps = 0
    while True:
        blobs = MemoryAccount().blobs()
        crashing = owner(OLD, 5, limits)
        life: Rule[None] = crashing.life(first=True)
        try:
            answer = None
            for _ in range(steps):
                answer = perform(life.send(answer), blobs)
        except StopIteration:
            break
        check([crashing], blobs)
        heir_finds_all(blobs, limits)
        steps += 1
    assert steps > 20


@pytest.mark.parametrize("seed", range(30))
def test_a_record_that_was_read_never_changes(seed: int) -> None:
    limits = LogLimits(roll_records=4)
    seen: dict[Position, tuple[Part, ...]] = {}

    def watch(blobs: Blobs) -> None:
        read = drive(scan(PREFIX, (0, 0)), blobs)
        seen[read.end] = read.parts

    found = Race([owner(writer, 6, limits) for writer in (OLD, NEW, NEWEST)], dice(seed), 8, watch)
    found.run()
    whole = drive(scan(PREFIX, (0, 0)), found.blobs).parts
    assert len(seen) > 3
    assert all(whole[: len(parts)] == parts for parts in seen.values())


# Single steps: each operation of the rule, its answer, and what follows.


def taken(writer: Writer = OLD, limits: LogLimits | None = None) -> tuple[Owner, Blobs]:
    """An owner that has taken a new log over."""
    blobs = MemoryAccount().blobs()
    each = owner(writer, 0, limits)
    drive(each.life(first=True), blobs)
    return each, blobs


def run_to_end(rule: Rule[Any], answer: Callable[[Operation], Any]) -> None:
    """Let a rule have these answers until it ends."""
    operation = next(rule)
    with suppress(StopIteration):
        while True:
            operation = rule.send(answer(operation))


def test_a_take_over_reads_before_it_appends() -> None:
    blobs = MemoryAccount().blobs()
    asked: list[Operation] = []

    def answer(operation: Operation) -> Any:
        asked.append(operation)
        return perform(operation, blobs)

    run_to_end(owner(OLD, 0).life(first=True), answer)
    assert [type(each) for each in asked] == [Enumerate, Read, Create, Append]


def test_an_append_is_one_operation() -> None:
    each, _ = taken()
    rule = append(each.log, lambda: batch_record(each.log, 0))
    assert isinstance(next(rule), Append)
    with pytest.raises(StopIteration):
        rule.send(Sent.DONE)
    assert each.log.last_batch == 0


def test_a_lost_append_is_sent_again_as_it_was() -> None:
    each, blobs = taken()
    rule = append(each.log, lambda: batch_record(each.log, 0))
    sent = next(rule)
    looked = rule.send(Sent.UNKNOWN)
    assert each.log.unsettled is not None
    waited = rule.send(perform(looked, blobs))
    assert (waited, rule.send(None)) == (Pause(1), sent)


def lost_and_landed(each: Owner, blobs: Blobs, record: Callable[[], Record]) -> None:
    """Append this record. It lands, its answer does not come, and the writer waits no longer."""
    rule = append(each.log, record)
    perform(next(rule), blobs)
    rule.send(Sent.UNKNOWN)
    rule.close()
    assert each.log.unsettled is not None


def test_a_frontier_without_an_answer_is_not_mistaken_for_the_next_one() -> None:
    each, blobs = taken()
    lost_and_landed(each, blobs, lambda: log_record(each.log, Kind.FRONTIER, frontier_us=1))
    drive(append(each.log, lambda: log_record(each.log, Kind.FRONTIER, frontier_us=2)), blobs)
    assert [record.frontier_us for _, record in stored(blobs)] == [None, 1, 2]


def test_a_batch_whose_answer_was_lost_is_appended_once_and_recognized() -> None:
    each, blobs = taken()
    lost_and_landed(each, blobs, lambda: batch_record(each.log, 5))
    again = copy.deepcopy(each)
    drive(append(again.log, lambda: batch_record(again.log, 5)), blobs)
    assert [record.batch for _, record in stored(blobs)] == [-1, 5]
    with pytest.raises(ValueError, match="batch 5 is appended already"):
        drive(append(each.log, lambda: batch_record(each.log, 4)), blobs)


def drive_on(rule: Rule[Any], operation: Operation, blobs: Blobs) -> None:
    """Let a rule that waits for the answer to this go on to its end."""
    with suppress(StopIteration):
        while True:
            operation = rule.send(perform(operation, blobs))


def test_an_owner_that_rolls_its_log_after_its_successor_is_superseded() -> None:
    """It stops after ROLLED. Meanwhile the next owner's blobs have replaced what it would go on with."""
    limits = LogLimits(roll_records=3)
    blobs = MemoryAccount().blobs()
    late = owner(OLD, 2, limits)
    drive(take_over(late.log, first=True, meta={INTERMEDIATE: True}), blobs)
    for batch in range(2):
        drive(append(late.log, lambda batch=batch: batch_record(late.log, batch)), blobs)
    rule = append(late.log, lambda: batch_record(late.log, 2))
    operation, answer = next(rule), None
    while not isinstance(operation, Create):
        answer = perform(operation, blobs)
        operation = rule.send(answer)
    newer = owner(NEW, 9, limits)
    drive(newer.life(first=False), blobs)
    names = [name for name, _ in blobs.list(f"{PREFIX}/")]
    for name in names[:-1]:
        blobs.delete(name)

    with pytest.raises(Superseded, match="went on"):
        drive_on(rule, operation, blobs)
    assert {name for name, size in blobs.list(f"{PREFIX}/") if size} == {names[-1]}


def test_a_writer_whose_blob_is_gone_because_others_went_on_is_superseded() -> None:
    each, blobs = taken(limits=LogLimits(roll_records=3))
    drive(owner(NEW, 9, LogLimits(roll_records=3)).life(first=False), blobs)
    for name, _ in blobs.list(f"{PREFIX}/")[:-1]:
        blobs.delete(name)
    with pytest.raises(Superseded, match="went on"):
        drive(append(each.log, lambda: batch_record(each.log, 0)), blobs)


def test_each_record_and_the_next_owner_repeat_which_blobs_of_other_logs_the_task_needs() -> None:
    """Else the owners of those logs would keep all that they ever wrote."""
    needs = {"runs/r/clean-1": 3}
    each, blobs = taken(limits=LogLimits(roll_records=4))
    drive(append(each.log, lambda: log_record(each.log, Kind.BATCH, batch=0, needs=needs)), blobs)
    for writer in (NEW, NEWEST):
        heir = owner(writer, 0, LogLimits(roll_records=4))
        drive(heir.life(first=False), blobs)
        drive(append(heir.log, lambda log=heir.log: log_record(log, Kind.FRONTIER, frontier_us=1)), blobs)
    first, *rest = [record.meta.get(NEEDS) for _, record in stored(blobs)]
    assert first is None
    assert rest == [needs] * 8


def test_foreign_bytes_without_a_higher_writer_are_corruption() -> None:
    each, blobs = taken()
    twin = copy.deepcopy(each)
    drive(append(twin.log, lambda: batch_record(twin.log, 7)), blobs)
    with pytest.raises(CorruptState, match="There is something else"):
        drive(append(each.log, lambda: batch_record(each.log, 0)), blobs)


def test_a_service_that_takes_no_append_is_an_error_and_no_endless_loop() -> None:
    each, blobs = taken()
    rule = append(each.log, lambda: batch_record(each.log, 0))

    def answer(operation: Operation) -> Any:
        return Refused("BlobIsSealed") if isinstance(operation, Append) else perform(operation, blobs)

    with pytest.raises(CorruptState, match="takes no append: BlobIsSealed"):
        run_to_end(rule, answer)


def test_an_attempt_is_used_once() -> None:
    _, blobs = taken(OLD)
    with pytest.raises(Superseded, match=r"belongs to writer 3\.1; we are 3\.1"):
        drive(take_over(owner(OLD, 0).log, first=True, meta={}), blobs)


def test_a_log_that_should_exist_and_does_not_is_lost_state() -> None:
    with pytest.raises(StateLost, match="never started afresh"):
        drive(take_over(owner(OLD, 0).log, first=False, meta={}), MemoryAccount().blobs())


def test_a_log_whose_first_blob_is_still_empty_can_be_taken_over() -> None:
    blobs = MemoryAccount().blobs()
    blobs.create(blob_name(PREFIX, 0))
    each = owner(OLD, 1)
    drive(each.life(first=False), blobs)
    assert each.acknowledged == [0]


def test_an_empty_blob_without_the_one_before_it_is_lost_state() -> None:
    blobs = MemoryAccount().blobs()
    blobs.create(blob_name(PREFIX, 4))
    with pytest.raises(StateLost, match="the one before it is gone"):
        drive(take_over(owner(OLD, 0).log, first=False, meta={}), blobs)


def test_a_drained_log_is_not_taken_over() -> None:
    each, blobs = taken()
    drive(append(each.log, lambda: log_record(each.log, Kind.DRAINED, batch=0)), blobs)
    size = blobs.list(PREFIX)
    heir = owner(NEW, 0).log
    drive(take_over(heir, first=False, meta={}), blobs)
    assert (heir.drained, heir.writer, blobs.list(PREFIX)) == (True, OLD, size)


def test_a_record_of_another_group_is_corruption() -> None:
    _, blobs = taken()
    other = owner(NEW, 0).log
    other.group_id = b"another group id"
    with pytest.raises(CorruptState, match="belongs to another group"):
        drive(take_over(other, first=False, meta={}), blobs)


def test_a_log_of_another_task_is_corruption() -> None:
    _, blobs = taken()
    other = owner(NEW, 0).log
    other.task = "clean-1"
    with pytest.raises(CorruptState, match="is of task 'clean-0', not 'clean-1'"):
        drive(take_over(other, first=False, meta={}), blobs)


def test_frontier_and_watermark_never_fall_and_idleness_ends_with_the_next_record() -> None:
    each, blobs = taken()
    log = each.log

    def said(**fields: Any) -> tuple[int | None, int | None, bool]:
        drive(append(log, lambda: log_record(log, **fields)), blobs)
        return log.frontier_us, log.watermark_us, log.idle

    assert said(kind=Kind.FRONTIER, frontier_us=10, idle=True) == (10, None, True)
    assert said(kind=Kind.BATCH, batch=0, frontier_us=5, watermark_us=3, idle=False) == (10, 3, False)
    assert said(kind=Kind.BATCH, batch=1, watermark_us=2) == (10, 3, False)


def test_a_new_owner_is_not_idle_and_rolling_changes_nothing() -> None:
    each, blobs = taken(limits=LogLimits(roll_records=3))
    idle: dict[str, Any] = {"frontier_us": 10, "idle": True}
    for _ in range(3):
        drive(append(each.log, lambda: log_record(each.log, Kind.FRONTIER, **idle)), blobs)
    drive(take_over(owner(NEW, 0).log, first=False, meta={}), blobs)
    assert [(record.kind.name, record.frontier_us, record.idle) for _, record in stored(blobs)] == [
        ("EPOCH", None, False),
        ("FRONTIER", 10, True),
        ("FRONTIER", 10, True),
        ("ROLLED", 10, True),
        ("EPOCH", 10, True),
        ("SNAPSHOT", 10, True),
        ("FRONTIER", 10, True),
        ("EPOCH", 10, False),
    ]


def test_batch_ids_may_skip_but_not_repeat() -> None:
    each, blobs = taken()
    drive(append(each.log, lambda: batch_record(each.log, 4)), blobs)
    with pytest.raises(ValueError, match=r"Batch 4 of clean-0: batch 4 is appended already"):
        drive(append(each.log, lambda: batch_record(each.log, 4)), blobs)


def test_the_largest_parts_go_to_one_blob_until_the_rest_fits() -> None:
    each, blobs = taken(limits=LogLimits(record_bytes=100))
    slices = [Slice(number, bytes([number]) * size, 1) for number, size in enumerate((60, 90, 30))]
    files = {"offsets/0": b"o" * 20, "state/0/0/1.delta": b"s" * 80}
    drive(append(each.log, lambda: log_record(each.log, Kind.BATCH, batch=0, slices=slices, files=files)), blobs)

    (large,) = blobs.list(large_prefix(PREFIX))
    assert large[1] == 90 + 80 + 60
    found = drive(scan(PREFIX, (0, 0)), blobs)
    assert [drive(fetch_part(part), blobs) for part in found.parts] == [part.data for part in slices]
    heir = owner(NEW, 0).log
    drive(take_over(heir, first=False, meta={}), blobs)
    assert drive(restored_files(heir), blobs) == files


def test_rows_that_are_set_aside_lie_in_blobs_of_bounded_size_and_belong_to_the_record_that_follows() -> None:
    """Also if the log rolls now: old blobs are deleted by the blob number of the record itself."""
    limits = LogLimits(large_bytes=100, roll_records=3)
    each, blobs = taken(limits=limits)
    for batch in range(2):
        drive(append(each.log, lambda batch=batch: batch_record(each.log, batch)), blobs)
    slices = [Slice(number, bytes([number]) * size, 1) for number, size in enumerate((60, 30, 40, 250, 1))]

    aside = drive(set_aside(each.log, 2, slices), blobs)
    nobody_sees_them = drive(scan(PREFIX, (0, 0)), blobs).parts
    again = drive(set_aside(each.log, 2, aside), blobs)
    drive(append(each.log, lambda: log_record(each.log, Kind.BATCH, batch=2, slices=aside)), blobs)

    assert again == aside
    assert all(isinstance(part.data, Reference) for part in aside)
    assert sorted(size for _, size in blobs.list(large_prefix(PREFIX))) == [1, 40, 90, 250]
    assert {name.split("/")[-2] for name, _ in blobs.list(large_prefix(PREFIX))} == {"00000001"}
    found = drive(scan(PREFIX, (0, 0)), blobs).parts
    assert found[: len(nobody_sees_them)] == nobody_sees_them
    fresh = found[len(nobody_sees_them) :]
    assert {part.position[0] for part in fresh} == {1}
    assert [drive(fetch_part(part), blobs) for part in fresh] == [part.data for part in slices]


def test_an_owner_that_follows_one_without_a_batch_has_less_input() -> None:
    """What killed that one may have been the batch, and it must not kill all others."""
    blobs = MemoryAccount().blobs()
    seen = []

    def follows(attempt: int, tried: int | None = None) -> Owner:
        each = owner(Writer(3, attempt), 0, LogLimits(roll_records=7))
        drive(take_over(each.log, first=True, meta={}, batch_bytes=1 << 20, tried_bytes=tried), blobs)
        seen.append(each.log.batch_bytes >> 10)
        return each

    for attempt in range(1, 5):
        last = follows(attempt)
    drive(append(last.log, lambda: batch_record(last.log, 0)), blobs)
    last = follows(5)
    for batch in range(1, 12):  # it rolls on the way
        drive(append(last.log, lambda batch=batch: batch_record(last.log, batch)), blobs)
    follows(6)
    last = follows(7, tried=300 << 10)
    record = log_record(last.log, Kind.BATCH, batch=12, batch_bytes=512 << 10)
    drive(append(last.log, lambda: record), blobs)
    follows(8)
    follows(9, tried=1000)

    assert seen == [1024, 256, 64, 64, 64, 64, 150, 512, 64]


def test_memory_holds_only_files_that_a_restart_needs() -> None:
    each, blobs = taken()
    for batch in range(600):
        drive(append(each.log, lambda batch=batch: batch_record(each.log, batch)), blobs)
        assert len(each.log.files) < 100


def test_memory_holds_a_few_megabytes_of_deltas_that_snapshots_have_replaced() -> None:
    """Beside many files that are needed, their number alone would not be a reason to look at them."""
    each, blobs = taken()
    needed = {f"state/0/{number}/schema": b"" for number in range(1000)}
    drive(append(each.log, lambda: log_record(each.log, Kind.BATCH, batch=0, files=needed)), blobs)
    for batch in range(1, 101):
        kind, content = ("snapshot", b"all") if batch % 10 == 0 else ("delta", bytes(15 << 10))
        files = {f"state/0/{number}/{batch + 1}.{kind}": content for number in range(10)}
        record = log_record(each.log, Kind.BATCH, batch=batch, files=files)
        drive(append(each.log, lambda record=record: record), blobs)
        held = sum(len(content) for content in each.log.files.values() if isinstance(content, bytes))
        assert held < PRUNE_BYTES + (1 << 20)
