"""The conformance cases of the lock box (L), each by its name.

A script's lines are those of the reference: `t1(g,5) C:EXCL[01-01,01-02) GRANT` asks for an interval lock for the task
t1 of group g and priority 5, `t1 S[01-01,01-02),v1,3 WAIT` for a segment lock. A task is added when it is first named.
"""

import re

import pytest

from samza_azure.segments import (
    Blocked,
    Granted,
    Interval,
    LockOwner,
    LockRequest,
    LockTask,
    LockType,
    LostRace,
    Partitions,
    Revoked,
    Segment,
    TableLock,
)
from samza_azure.segments.publishing import locks_for
from tests.segments.lock_box import Box

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
    box = Box()
    for line in filter(None, map(str.strip, (CASES | MORE)[name].splitlines())):
        step(box, line)


def step(box: Box, line: str) -> None:
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
            box.unlock(task, _span(where), int(partition[0]) if partition else None)
        case ["valid" | "invalid" as word, task, where]:
            assert isinstance(locks_over(box, task, where), list) is (word == "valid"), line
        case ["unlocked", task, where]:
            with pytest.raises(ValueError, match="not covered"):
                locks_over(box, task, where)
        case ["never", *_]:
            ask(box, line.removeprefix("never "), add=False)
        case _:
            ask(box, line)


def locks_over(box: Box, task: str, where: str) -> list[TableLock] | LostRace:
    """Under which locks a task may publish rows of an interval."""
    return locks_for(box.held(task), [Segment.root("d", _span(where), 0, 0)], name=task)


def _span(text: str) -> Interval:
    return span(*text.strip("[)").split(","))


def ask(box: Box, line: str, *, add: bool = True) -> None:
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


def box_of(*tasks: LockTask) -> Box:
    box = Box()
    for task in tasks:
        box.add(task)
    return box


def test_l9() -> None:
    box = box_of(LockTask("t1", "g", 7))
    answer = box.acquire(LockRequest("t1", "d", DAY, partitions=Partitions.of(3), version=1))
    assert answer == Granted(
        TableLock(1, LockType.EXCLUSIVE, "g", "d", DAY, 1, Partitions.of(3), 7, holders=frozenset({"t1"}))
    )


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
    box.end(first)
    assert [lock.group for lock in box.active()] == ["h"]
    assert isinstance(box.acquire(exclusive("t2")), Granted)


def test_bad_requests() -> None:
    with pytest.raises(ValueError, match="is empty"):
        LockRequest("t", "d", Interval(5, 5))
    with pytest.raises(ValueError, match="needs a version"):
        LockRequest("t", "d", DAY, partitions=Partitions.of(1))
