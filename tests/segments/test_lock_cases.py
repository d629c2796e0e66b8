"""The conformance cases of the lock box (L), each by its name.

A script's lines are those of the reference: `t1(g,5) C:EXCL[01-01,01-02) GRANT` asks for an interval lock for the task
t1 of group g and priority 5, `t1 S[01-01,01-02),v1,3 WAIT` for a segment lock. A task is added when it is first named.
"""

import re
from dataclasses import replace

import pytest

from samza_azure.segments import (
    Blocked,
    Granted,
    Granularity,
    Interval,
    LockOwner,
    LockRequest,
    LockTask,
    LockType,
    Partitions,
    Revoked,
    Segment,
    SegmentId,
    TableLock,
)
from tests.segments.memory_table import MemoryLocks, MemoryTable

TYPES = {"EXCL": LockType.EXCLUSIVE} | {one.name: one for one in LockType}
_LINE = re.compile(
    r"(\w+)(?:\((\w*)(?:,(-?\d+))?\))? (?:C:(\w+)|(S))\[([^,]+),([^)]+)\)(?:,v(\d+),(\d+)|,v(\d+))? (.*)"
)

CASES = {
    "L1": "t1 C:EXCL[01-01,01-02) GRANT \n active = t1",
    "L2": "never t1 C:EXCL[01-01,01-02) ERR",
    "L3": "add t1 \n remove t1 \n never t1 C:EXCL[01-01,01-02) ERR",
    "L4": """t1 C:EXCL[01-01,01-03) GRANT \n t2 C:EXCL[01-01,01-02) WAIT \n remove t1
        t2 C:EXCL[01-01,01-02) GRANT""",
    "L5": "t1 C:EXCL[01-01,01-02) GRANT \n t2 C:EXCL[01-01,01-15) WAIT",  # the box says WAIT; the caller has the clock
    "L6": """t1(,-10) C:SHARED[01-01,01-02) GRANT \n t2 C:SHARED[01-01,01-02) GRANT \n t3 C:SHARED[01-01,01-02) GRANT
        t4 C:SHARED[01-01,01-02) GRANT \n t5 C:SHARED[01-01,01-02) GRANT \n locks = 5""",
    "L7": """t1(,15) C:EXCL[01-01,01-02) GRANT \n t2(,15) C:SHARED[01-01,01-02) WAIT \n revoke t1
        t3(,5) C:SHARED[01-01,01-02) GRANT \n t4(,10) C:EXCL[01-01,01-02) GRANT
        active = t4 \n revoked = t1 t3 \n t2 C:SHARED[01-01,01-02) GRANT \n active = t2 \n revoked = t1 t3 t4""",
    "L10": "t1 S[01-01,01-02),v1,3 GRANT \n t2 C:EXCL[01-01,01-02) WAIT",
    "L12": "t1 S[01-01,01-02),v1,3 GRANT \n t2 S[01-01,01-02),v1,3 WAIT",
    "L13": "t1 S[01-01,01-02),v1,3 GRANT \n t2 S[01-01,01-02),v1,2 GRANT",
    "L14": "t1 S[01-01,01-05),v1,3 GRANT \n t2 S[01-03,01-08),v1,2 WAIT",
    "L15": "t1 S[01-01,01-02),v1,3 GRANT \n t2 S[01-01,01-02),v2,3 WAIT",
    "L17": "t1(g1) S[01-01,01-05),v1,3 GRANT \n t2(g2) S[01-01,01-05),v1,3 WAIT",
    "L20": "t1(g) C:EXCL[01-01,01-10) GRANT \n t2(g) C:EXCL[01-02,01-03) GRANT \n locks = 1",
    "L21": "t1(g,5) C:EXCL[01-01,01-02) GRANT \n t2(g,7) C:EXCL[01-01,01-02) ERR",
    "L22": """t1 C:EXCL[01-01,01-02) GRANT \n t1 C:EXCL[01-01,01-02) GRANT \n locks = 1
        unlock t1 [01-01,01-02) \n locks = 0""",
    "L23": """t1(g) C:EXCL[01-01,01-02) GRANT \n t2(g) C:EXCL[01-01,01-02) GRANT \n unlock t1 [01-01,01-02)
        t3 C:EXCL[01-01,01-02) WAIT \n unlock t2 [01-01,01-02) \n t3 C:EXCL[01-01,01-02) GRANT""",
    "L24": "t1 C:EXCL[01-01,01-03) GRANT \n t1 C:EXCL[01-02,01-04) WAIT",
    "L25": "\n".join(
        [
            *(f"t1(g) C:{each}[2024,2025) GRANT" for each in ("EXCL", "SHARED", "REPLACE", "APPEND")),
            *(f"t1(g) C:{each}[2023,2025) WAIT" for each in ("EXCL", "SHARED", "REPLACE", "APPEND")),
            *(f"t2 C:{each}[2024,2025) WAIT" for each in ("EXCL", "SHARED", "REPLACE", "APPEND")),
        ]
    ),
    "L26": """t1(,1) C:EXCL[01-01,01-02) GRANT \n t2(,2) C:EXCL[01-01,01-02) GRANT \n revoked = t1
        unlock t2 [01-01,01-02) \n t1 C:EXCL[01-01,01-02) REVOKED \n revoked = t1""",
    "L29": """t1 C:EXCL[01-01,01-02) GRANT \n t1 S[01-01,01-02),v1,0 GRANT \n unlock t1 [01-01T06:00,01-01T07:00)
        locks = 2
        unlock t1 [01-01,01-02) \n locks = 1 \n unlock t1 [01-01,01-02) 0 \n locks = 0
        t1 C:EXCL[01-01,01-02) GRANT \n t1 S[01-01,01-02),v1,0 GRANT
        unlock t1 [01-01,01-02) 0 \n t2 S[01-01,01-02),v1,0 WAIT""",
    "L30": "t1 C:EXCL[01-01,01-03) GRANT \n valid t1 [01-01,01-03) \n valid t1 [01-02,01-03)",
    "L31": "t1 C:SHARED[01-01,01-03) GRANT \n valid t1 [01-01,01-03)",
    "L32": "\n".join(
        [
            *(f"t{number} C:SHARED[01-01,01-02) GRANT" for number in range(5)),
            "t9(,100) C:EXCL[01-01,01-02) GRANT",
            "valid t9 [01-01,01-02) \n revoked = t0 t1 t2 t3 t4",
        ]
    ),
    "L33": """t1(,1) C:EXCL[01-01,01-02) GRANT \n t2(,2) C:EXCL[01-01,01-02) GRANT
        invalid t1 [01-01,01-02)""",
    "L34": "add t1 \n unlocked t1 [01-01,01-02) \n t1 C:EXCL[01-01,01-02) GRANT \n unlocked t1 [01-01,01-03)",
    "L43": """t1(,10) C:EXCL[2017,2018) GRANT \n t2(,10) C:EXCL[2017-05,2017-06) WAIT
        t3(,10) C:SHARED[2016,2020) WAIT \n t4(,10) C:REPLACE[2017,2018) WAIT
        t5(,10) C:APPEND[2017-05,2018-06) WAIT \n active = t1 \n revoked =""",
    "L45": """t1(,10) C:SHARED[2017,2018) GRANT \n t2(,10) C:EXCL[2017-05,2017-06) WAIT
        t3(,5) C:SHARED[2016,2020) GRANT \n t4(,5) C:SHARED[2017-06,2017-07) GRANT
        t5(,10) C:SHARED[2017-05,2018-06) GRANT \n t6(,10) C:REPLACE[2017,2018) WAIT
        t7(,10) C:APPEND[2017-05,2018-06) WAIT \n revoked =""",
    "L47": """t1(,10) C:APPEND[2017,2018) GRANT \n t2(,10) C:EXCL[2017-05,2017-06) WAIT
        t3(,10) C:SHARED[2016,2020) WAIT \n t4(,10) C:REPLACE[2017-05,2018-02) WAIT
        t5(,10) C:REPLACE[2017,2018) GRANT \n t6(,10) C:REPLACE[2016,2020) WAIT
        t7(,15) C:APPEND[2017-05,2017-06) GRANT \n t8(,5) C:APPEND[2017-05,2017-06) GRANT \n revoked =""",
    "L48": """t1(,5) C:EXCL[2017-01,2017-02) GRANT \n t2(,5) C:REPLACE[2017-07,2018-08) GRANT
        t3(,5) C:APPEND[2017-02,2017-03) GRANT \n t4(,15) C:APPEND[2017-02,2017-06) GRANT
        t5(,10) C:APPEND[2017,2018) GRANT \n revoked = t1 t2 \n active = t3 t4 t5""",
    "L49": """t1(,10) C:REPLACE[2017,2018) GRANT \n t2(,10) C:EXCL[2017-05,2017-06) WAIT
        t3(,10) C:SHARED[2016,2020) WAIT \n t4(,10) C:REPLACE[2017,2018) WAIT
        t5(,15) C:APPEND[2017-05,2017-06) GRANT \n t6(,10) C:APPEND[2016-05,2017-07) WAIT \n revoked =""",
    "L51": """t1 C:APPEND[01-01,01-02),v0 GRANT \n t2 C:APPEND[01-01,01-02),v0 GRANT
        t3 C:REPLACE[2024,2025),v0 GRANT \n t1 C:APPEND[01-11,01-12),v1 GRANT \n t1 C:APPEND[01-28,02-04),v0 GRANT
        locks = 5 \n t1 C:APPEND[01-01,02-01),v0 GRANT \n locks = 5
        held t1 = 01-01/02-01 01-11/01-12 01-28/02-04""",
}

#: Of the same kind, which the reference does not list.
MORE = {
    "a segment waits for an interval lock": "t1 C:EXCL[01-01,01-02) GRANT \n t2 S[01-01,01-02),v1,3 WAIT",
    "a segment lock is a group's": """t1(g) S[01-01,01-02),v1,3 GRANT \n t2(g) S[01-01,01-02),v1,3 GRANT
        locks = 1""",
    "revoked, given back, granted again": """t1(,1) C:EXCL[01-01,01-02) GRANT \n t2(,2) C:EXCL[01-01,01-02) GRANT
        t1 C:EXCL[01-01,01-02) REVOKED \n unlock t1 [01-01,01-02) \n t1 C:EXCL[01-01,01-02) WAIT
        unlock t2 [01-01,01-02) \n t1 C:EXCL[01-01,01-02) GRANT""",
    "revoked for a part of its interval": """t1(,1) C:EXCL[01-01,01-03) GRANT \n t2(,2) C:EXCL[01-01,01-02) GRANT
        t1 C:EXCL[01-02,01-03) REVOKED \n t3 C:EXCL[01-02,01-03) GRANT""",
    "an interval lock revokes a segment's": """t1(,1) S[01-01,01-02),v1,3 GRANT \n t2(,2) C:EXCL[01-01,01-02) GRANT
        revoked = t1""",
    "all or nothing": """t1(,5) C:EXCL[01-01,01-02) GRANT \n t2(,20) C:EXCL[01-02,01-03) GRANT
        t3(,10) C:EXCL[01-01,01-03) WAIT \n revoked =""",
    "an equal priority waits": "t1(,5) C:EXCL[01-01,01-02) GRANT \n t2(,5) C:EXCL[01-01,01-02) WAIT",
    "neighbours": "t1 C:EXCL[01-01,01-02) GRANT \n t2 C:EXCL[01-02,01-03) GRANT",
    "EXCL revokes all": """t1(,5) C:EXCL[2017-05,2017-06) GRANT \n t2(,5) C:SHARED[2016,2017) GRANT
        t3(,5) C:APPEND[2018-01,2018-02) GRANT \n t9(,15) C:EXCL[2016,2019) GRANT \n revoked = t1 t2 t3""",
    "SHARED revokes all but SHARED": """t1(,5) C:EXCL[2016-05,2016-06) GRANT \n t2(,15) C:SHARED[2016-06,2017) GRANT
        t3(,5) C:APPEND[2018-01,2018-02) GRANT \n t9(,10) C:SHARED[2016,2019) GRANT \n revoked = t1 t3""",
    "REPLACE revokes all but APPEND inside": """t1(,5) C:EXCL[2016-05,2016-06) GRANT
        t2(,5) C:SHARED[2016-06,2017) GRANT \n t3(,15) C:APPEND[2018-01,2018-02) GRANT
        t4(,5) C:APPEND[2018-11,2019-02) GRANT \n t9(,10) C:REPLACE[2016,2019) GRANT
        revoked = t1 t2 t4 \n active = t3 t9""",
}


def span(start: str, end: str) -> Interval:
    return Interval.of(_moment(start), _moment(end))


def _moment(text: str) -> str:
    return text if re.match(r"\d{4}", text) else f"2024-{text}"


@pytest.mark.parametrize("name", [*CASES, *MORE])
def test_case(name: str) -> None:
    box = MemoryLocks.empty()
    for line in filter(None, map(str.strip, (CASES | MORE)[name].splitlines())):
        step(box, line)


def step(box: MemoryLocks, line: str) -> None:
    match line.split():
        case ["add", task]:
            box.add(LockTask(task, task))
        case ["remove", task]:
            box.remove(task)
        case ["revoke", task]:
            box.revoke(box.held(task)[0].id)
        case ["locks", "=", number]:
            assert len(box.locks) == int(number), line
        case ["active", "=", *tasks]:
            assert sorted(task for lock in box.active() for task in lock.holders) == sorted(tasks), line
        case ["revoked", "=", *tasks]:
            found = [task for lock in box.locks.values() if lock.revoked for task in lock.holders]
            assert sorted(found) == sorted(tasks), line
        case ["held", task, "=", *intervals]:
            held = sorted(lock.interval for lock in box.held(task))
            assert held == sorted(span(*one.split("/")) for one in intervals), line
        case ["unlock", task, where, *partition]:
            box.unlock(task, "d", _span(where), *map(int, partition))
        case ["valid" | "invalid" as word, task, where]:
            assert box.may_write(task, "d", _span(where)) is (word == "valid"), line
        case ["unlocked", task, where]:
            with pytest.raises(ValueError, match="holds no lock"):
                box.may_write(task, "d", _span(where))
        case ["never", *_]:
            ask(box, line.removeprefix("never "), add=False)
        case _:
            ask(box, line)


def _span(text: str) -> Interval:
    return span(*text.strip("[)").split(","))


def ask(box: MemoryLocks, line: str, *, add: bool = True) -> None:
    found = _LINE.fullmatch(line)
    assert found is not None, line
    name, group, priority, kind, _, start, end, version, partition, asked, expected = found.groups()
    if add and name not in box.tasks:
        box.add(LockTask(name, group or name, int(priority or 0)))
    request = LockRequest(
        name,
        "d",
        span(start, end),
        TYPES[kind or "EXCL"],
        None if partition is None else Partitions.of(int(partition)),
        int(version or asked) if version or asked else None,
    )
    before = dict(box.locks)
    if expected == "ERR":
        with pytest.raises(ValueError, match=r"not active|one priority"):
            box.acquire(request)
    else:
        answer = box.acquire(request)
        assert type(answer) is {"GRANT": Granted, "WAIT": Blocked, "REVOKED": Revoked}[expected], line
    if expected != "GRANT":
        assert box.locks == before, "a request that is not granted changes nothing"


DAY = span("01-01", "01-02")


def exclusive(task: str, interval: Interval = DAY) -> LockRequest:
    return LockRequest(task, "d", interval)


def box_of(*tasks: LockTask) -> MemoryLocks:
    box = MemoryLocks.empty()
    for task in tasks:
        box.add(task)
    return box


def synced(box: MemoryLocks, *tasks: LockTask) -> tuple[MemoryLocks, set[str]]:
    """Another box, from what this one has stored."""
    other = MemoryLocks()
    failed = other.sync(box.locks.values(), tasks, box.granted)
    return other, failed


def test_l9() -> None:
    box = box_of(LockTask("t1", "g", 7))
    answer = box.acquire(LockRequest("t1", "d", DAY, partitions=Partitions.of(3), version=1))
    assert answer == Granted(
        TableLock(1, LockType.EXCLUSIVE, "g", "d", DAY, 1, Partitions.of(3), 7, holders=frozenset({"t1"}))
    )


def test_l19() -> None:
    table = MemoryTable("d")
    table.add(LockTask("t1", "g"))
    where = span("01-01", "01-05")
    table.box.acquire(LockRequest("t1", "d", where, partitions=Partitions.of(0), version=1))
    table.allocated[where, 1] = 1
    names = [SegmentId(where, 1, 0)]
    for _ in range(4):
        made = table.allocate_outputs("t1", where, 1, 1)
        assert isinstance(made, list)
        names += made
    assert [name.partition for name in names] == [0, 1, 2, 3, 4]
    assert [str(lock.partitions) for lock in table.box.held("t1")] == ["0", "1", "2", "3", "4"]


def test_l35() -> None:
    """A publish is one step, so a request of a higher priority comes before it or after it, never in it."""
    for publishes_first in (True, False):
        table = MemoryTable("d")
        table.add(LockTask("low", "low", 1))
        table.add(LockTask("high", "high", 2))
        granted = table.box.acquire(exclusive("low"))
        assert isinstance(granted, Granted)
        made = Segment.root("d", DAY, granted.lock.version, 0)
        if publishes_first:
            table.publish("low", [made])
            assert isinstance(table.box.acquire(exclusive("high")), Granted)
        else:
            assert isinstance(table.box.acquire(exclusive("high")), Granted)
            table.publish("low", [made])
        assert len(table.timeline) == publishes_first


def test_l36() -> None:
    tasks = [LockTask(f"t{day}", f"t{day}") for day in range(1, 6)]
    box = box_of(*tasks)
    for day, task in enumerate(tasks, 1):
        box.acquire(exclusive(task.id, span(f"01-0{day}", f"01-0{day + 1}")))
    other, failed = synced(box, *tasks)
    assert failed == set()
    assert (other.locks, other.active(), other.granted) == (box.locks, box.active(), 5)


def test_l37() -> None:
    task = LockTask("t1", "g", 8)
    box = box_of(task)
    box.acquire(exclusive("t1"))
    stored = replace(box.locks[1], priority=None)
    other = MemoryLocks()
    assert other.sync([stored], [task]) == set()
    assert other.locks == box.locks
    assert stored.priority is None


def test_l38() -> None:
    box = box_of(LockTask("t1", "g", 10))
    box.acquire(exclusive("t1"))
    other, failed = synced(box, LockTask("t1", "g", 5))
    assert failed == {"t1"}
    assert other.locks == {}


def test_l39() -> None:
    tasks = LockTask("low", "low", 1), LockTask("high", "high", 2)
    box = box_of(*tasks)
    box.acquire(exclusive("low"))
    box.acquire(exclusive("high"))
    other, failed = synced(box, *tasks)
    assert failed == set()
    assert other.locks == box.locks
    assert [lock.group for lock in other.locks.values() if lock.revoked] == ["low"]


def test_l40() -> None:
    tasks = LockTask("f1", "F"), LockTask("f2", "F"), LockTask("s1", "S")
    box = box_of(*tasks)
    for number, task in enumerate(tasks, 1):
        box.acquire(exclusive(task.id, span(f"01-0{number}", f"01-0{number + 1}")))
    other, failed = synced(box, tasks[0], replace(tasks[1], priority=3), tasks[2])
    assert failed == {"f1", "f2"}
    assert [lock.group for lock in other.active()] == ["S"]
    with pytest.raises(ValueError, match="not active"):
        other.acquire(exclusive("f1"))


def test_l41() -> None:
    box = box_of(LockTask("t1", "g"), LockTask("odd", "odd"))
    box.acquire(exclusive("t1"))
    box.acquire(exclusive("odd", span("01-02", "01-03")))
    other, failed = synced(box, LockTask("t1", "g"))
    assert failed == set()
    assert [lock.group for lock in other.active()] == ["g"]
    assert other.granted == 2, "a number is not used again"


@pytest.mark.parametrize("removed", ["replace", "append"])
def test_l52(removed: str) -> None:
    """What a task leaves: nothing of its own, and nothing of others is lost."""
    table = MemoryTable("d")
    table.add(LockTask("replace", "replace"))
    table.add(LockTask("append", "append"))
    table.box.acquire(LockRequest("replace", "d", DAY, LockType.REPLACE))
    name = table.allocate("append", "s", DAY.start, Granularity.DAY, type=LockType.APPEND)
    assert isinstance(name, SegmentId)
    table.remove(removed)
    assert all(removed not in lock.holders for lock in table.box.locks.values())
    assert bool(table.pending) == (removed == "replace")
    assert len(table.box.locks) == 1


def test_l53() -> None:
    box = box_of(
        *(LockTask(name, name, priority) for name, priority in [("a", 1), ("b", 5), ("c", 9), ("d", 9), ("e", 9)])
    )
    for day, name in enumerate("abcd", 1):
        box.acquire(exclusive(name, span(f"01-0{day}", f"01-0{day + 1}")))
    box.acquire(LockRequest("e", "d", span("01-09", "01-10"), LockType.APPEND))
    box.revoke(4)
    assert box.locked_intervals("d", 5) == [span("01-02", "01-03"), span("01-03", "01-04"), span("01-09", "01-10")]
    assert box.locked_intervals("d", 5, concurrent=True) == [span("01-02", "01-03"), span("01-03", "01-04")]


def test_l54() -> None:
    with pytest.raises(ValueError, match="have not been read"):
        MemoryLocks().add(LockTask("t1", "g"))


def test_l58() -> None:
    """A decision changes nothing before it is applied; one whose write failed is never applied."""
    box = box_of(LockTask("low", "low", 1), LockTask("high", "high", 2))
    box.acquire(exclusive("low"))
    before = dict(box.locks), box.granted
    decision = box.decide(exclusive("high"))
    assert isinstance(decision.answer, Granted)
    assert (dict(box.locks), box.granted) == before


def test_the_end_of_a_life_ends_its_locks() -> None:
    first, second = LockOwner("p1", "life 1"), LockOwner("p1", "life 2")
    box = box_of(LockTask("t1", "g", owner=first), LockTask("t2", "h", owner=second))
    box.acquire(exclusive("t1"))
    box.acquire(exclusive("t2", span("01-02", "01-03")))
    assert [lock.group for lock in box.end(first)] == ["g"]
    assert [lock.group for lock in box.active()] == ["h"]
    assert isinstance(box.acquire(exclusive("t2")), Granted)


def test_bad_requests() -> None:
    with pytest.raises(ValueError, match="is empty"):
        LockRequest("t", "d", Interval(5, 5))
    with pytest.raises(ValueError, match="needs a version"):
        LockRequest("t", "d", DAY, partitions=Partitions.of(1))
