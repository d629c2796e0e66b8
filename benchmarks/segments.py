"""The timeline of a large table: how long it takes to build, to change and to ask, and how large it is.

A million segments in 10,000 intervals, in memory alone. The same for groups of 1, 10, 100 and 1,000 segments: adding
or removing one of a group must not depend on how large the group is.

A table of 100,000 segments on Azurite: how long it takes to open it.
"""

import gc
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from common import Claim, main, middle, say

from samza_azure import tables
from samza_azure.commands.azurite.emulator import Azurite
from samza_azure.config import Config
from samza_azure.segments import (
    ETERNITY,
    File,
    Granted,
    Granularity,
    Interval,
    LockOwner,
    LockRequest,
    LockTask,
    LockType,
    Partitions,
    Publish,
    Segment,
    Timeline,
)
from samza_azure.storage.connection import Account
from samza_azure.storage.transactions import Act, Write
from samza_azure.tables.store.rows import lock_key, next_key, segment_key, segment_values
from samza_azure.tables.store.segments import SegmentStore

DAY_US = 86_400_000_000
GROUPS = (1, 10, 100, 1_000)
# The bars of the issue.
BUILD_S, CHANGE_US, LOOKUP_US = 10.0, 20.0, 50.0
COLD_S, AGAIN_S = 2.0, 0.05
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("number", pa.int64())])


def measure(quick: bool) -> list[Claim]:
    """Roots alone, then a compaction of each interval into groups of different sizes."""
    intervals = 100 if quick else 10_000
    claims = []
    roots = [Segment.root("table", interval, 1, partition) for interval in days(intervals) for partition in range(100)]
    before = resident()
    begun = time.perf_counter()
    timeline = Timeline(roots)
    took = time.perf_counter() - begun
    what = f"timeline of {len(roots):,} segments in {intervals:,} intervals: built"
    claims.append(Claim(what, f"{took:.2f} s", "<= 10 s", took <= BUILD_S))
    if (grown := resident() - before) > 0:
        claims.append(Claim("the same: memory of the timeline per segment", f"{grown / len(roots):.0f} bytes"))
    claims += changes(timeline, random.Random(1).sample(roots, 2_000), "roots alone")
    spans = [segment.interval for segment in random.Random(2).sample(roots, 2_000)]
    claims.append(within("lookup of a day with 100 segments", asked(timeline, spans), LOOKUP_US))
    del timeline, roots
    gc.collect()
    for size in GROUPS:
        made = list(compacted(max(1, intervals * 10 // max(size, 100)), size))
        timeline = Timeline(made)
        sample = random.Random(3).sample([one for one in made if not one.is_root], 1_000 if quick else 2_000)
        claims += changes(timeline, sample, f"groups of {size:,}")
    claims += opening(2_000 if quick else 100_000)
    for claim in claims:
        say(f"{claim}")
    return claims


def opening(count: int) -> list[Claim]:
    """A table of `count` visible segments on Azurite: from cold by its rows, from cold by its checkpoint, and again."""
    with Azurite().start() as azurite, tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.toml"
        job.write_text('[app]\nname = "a"\nmain = "m:app"\n[azure.storage]\nconnect = "${CONNECT}"\n')
        config = Config.load(job, environment={"CONNECT": azurite.connection_string})
        account = Account.from_config(config.storage)
        account.ensure_created()
        store = tables.store_of(account, "large")
        tables.create(store, SCHEMA, time="at", granularity=Granularity.DAY)
        filled(store, count)
        say(f"{count:,} segments are there")
        begun = time.perf_counter()
        assert len(tables.snapshot_of(tables.store_of(account, "large")).snapshot.timeline) == count
        by_rows = time.perf_counter() - begun
        say(f"read row by row in {by_rows:.1f} s")
        store.checkpoint()
        colds, agains = [], []
        for number in range(5):
            reader = tables.store_of(account, "large")
            begun = time.perf_counter()
            assert len(tables.snapshot_of(reader).snapshot.timeline) == count + 2 * number
            colds.append(time.perf_counter() - begun)
            for _ in range(2):
                rows = pa.table([[datetime(2024, 1, 1, tzinfo=UTC)], [number]], schema=SCHEMA)
                appender = tables.Appender(store, LockTask("a", "a", 0, LockOwner("a")))
                appender.append(rows)
                appender.close()
                begun = time.perf_counter()
                tables.snapshot_of(reader)
                agains.append(time.perf_counter() - begun)
        account.close()
    what = f"a table of {count:,} visible segments, opened"
    return [
        Claim(f"{what} by its rows, without a checkpoint", f"{by_rows:.2f} s"),
        Claim(f"{what} from cold", f"{middle(colds):.2f} s", "<= 2 s", middle(colds) <= COLD_S),
        Claim(
            f"{what} where it was open before, after a publish",
            f"{middle(agains) * 1e3:.1f} ms",
            "<= 50 ms",
            middle(agains) <= AGAIN_S,
        ),
    ]


def filled(store: SegmentStore, count: int) -> None:
    """So many segments, 100 a day, as appends under one lock would have left them."""
    granted = store.acquire(LockTask("a", "a", 0, LockOwner("a")), LockRequest("a", "large", ETERNITY, LockType.APPEND))
    assert isinstance(granted, Granted)
    published = (Publish(granted.lock.id, 1),)
    statistics = {"at": {"nulls": 0, "least": "2024-01-01T00:00:00", "most": "2024-01-01T01:00:00"}}
    for day in days(count // 100):
        writes = []
        for partition in range(100):
            file = File(f"tables/large/{day.start}-{partition}", 1_000, 20_000, statistics)
            one = Segment.root("large", day, 0, partition, file=file, published=published)
            writes.append(Write(Act.INSERT, segment_key(one.id), segment_values(one)))
        store.rows.transact(writes)
        store.rows.transact([Write(Act.INSERT, next_key(day, 0), {"next": 100})])
    store.rows.transact([Write(Act.MERGE, lock_key(granted.lock.id), {"count": 1})])
    store.release("a", granted.lock.id)


def days(count: int) -> Iterator[Interval]:
    """So many days, one after the other."""
    return (Interval(number * DAY_US, (number + 1) * DAY_US) for number in range(count))


def compacted(intervals: int, size: int) -> Iterator[Segment]:
    """Days of 10 roots each, and groups of a size that cover them: at least 100 segments a day."""
    roots = 10
    covers = Partitions.between(0, roots)
    for interval in days(intervals):
        for partition in range(roots):
            yield Segment.root("table", interval, 1, partition)
        for generation in range(1, 1 + max(1, 100 // size)):
            first = roots + generation * size
            group = Partitions.between(first, first + size)
            for partition in group:
                yield Segment("table", interval, 1, partition, covers, generation, group)


def changes(timeline: Timeline, segments: list[Segment], what: str) -> list[Claim]:
    """Each is removed and added again."""
    removals, additions = [], []
    for segment in segments:
        begun = time.perf_counter()
        timeline.remove(segment)
        between = time.perf_counter()
        timeline.add(segment)
        removals.append(between - begun)
        additions.append(time.perf_counter() - between)
    return [
        within(f"{what}: one segment removed, median", middle(removals), CHANGE_US),
        within(f"{what}: one segment added, median", middle(additions), CHANGE_US),
    ]


def within(what: str, seconds: float, goal_us: float) -> Claim:
    """A figure beside its bar."""
    return Claim(what, f"{seconds * 1e6:.1f} µs", f"<= {goal_us:g} µs", seconds * 1e6 <= goal_us)


def asked(timeline: Timeline, spans: list[Interval]) -> float:
    """The median of lookups that also take the list of segments."""
    took = []
    for span in spans:
        begun = time.perf_counter()
        assert timeline.lookup(span)[0].segments
        took.append(time.perf_counter() - begun)
    return middle(took)


def resident() -> int:
    """The greatest memory of this process until now, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(measure, __doc__)
