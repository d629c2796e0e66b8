"""A thousand processors and ten thousand tasks, simulated: the production loop over the storage in memory.

The profile is the default one. Time is virtual, so what takes time here is the processors' own work; of the leader it
is measured, in processor time. All join within half a minute, then 30 of 100 die at once, then the leader dies. Counted
at the storage is what Azure bounds: rows of each partition, calls on the control blob. A control blob is decoded once
for all its readers, since a thousand copies do not fit into memory.
"""

import asyncio
import gc
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

from common import Claim, main, middle, say

from samza_azure.group import control as control_blob
from samza_azure.group.control import Control
from samza_azure.group.decide import Decision
from samza_azure.group.timing import PROFILES
from samza_azure.group.view import Settings, View
from samza_azure.host import processor as host
from samza_azure.host.processor import Processor
from samza_azure.host.runs import RunLogs
from samza_azure.library.shared_tasks import plan_of
from samza_azure.messages import Command, Phase, Ready, ReleaseTask, StartTask, TaskReport
from samza_azure.outcomes import Missing, NotModified, Refused
from samza_azure.storage.interface import Content, Row, Value
from samza_azure.storage.memory import Link, MemoryAccount, MemoryStorage
from simulator.loop import VirtualLoop

T = TypeVar("T")
TIMING = PROFILES["default"]
TASKS_EACH = 10
JOIN_WITHIN_S, HEAL_WITHIN_S, LOOK_S = 30.0, 120.0, 0.5
DYING = 0.3
LATENCY_S = 0.02
#: Azure documents this many rows of 1 KiB per second of a partition, and this many calls on a blob. Rows are read a
#: page at a time, so they are counted over ten seconds.
PARTITION_MAX, BLOB_MAX, WINDOW_S = 2_000, 500, 10
TURN_MAX_S = 0.05
BLOB_LIMIT = Settings("p").blob_limit


class Slow(Link):
    """Every call takes its time there and back."""

    async def carry(self, operation: str, effect: Callable[[], T], timeout: float) -> T:
        await asyncio.sleep(LATENCY_S * random.random())
        answer = effect()
        await asyncio.sleep(LATENCY_S * random.random())
        return answer


class Counting(MemoryStorage):
    """Counts, for each second, the rows touched in each partition, and the calls on the control blob."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self._now = clock
        self.touched: Counter[tuple[str, int]] = Counter()
        self.largest = 0

    def _count(self, what: str, number: int = 1) -> None:
        self.touched[what, int(self._now())] += number

    def most(self, what: str, seconds: int = 1) -> float:
        """Calls per second, in the busiest window of `seconds`."""
        counts = {second: count for (of, second), count in self.touched.items() if of == what}
        windows = (sum(counts.get(begin + more, 0) for more in range(seconds)) for begin in counts)
        return max(windows, default=0) / seconds

    def insert(self, partition: str, key: str, values: Mapping[str, Value]) -> str | Refused:
        self._count(partition)
        return super().insert(partition, key, values)

    def update(self, partition: str, key: str, values: Mapping[str, Value], etag: str, *, merge: bool) -> str | Refused:
        self._count(partition)
        return super().update(partition, key, values, etag, merge=merge)

    def get(self, partition: str, key: str) -> Row | None:
        self._count(partition)
        return super().get(partition, key)

    def query(self, partition: str) -> Sequence[Row]:
        rows = super().query(partition)
        self._count(partition, max(len(rows), 1))
        return rows

    def control_read(self, unless_etag: str | None, lease_id: str | None) -> Content | NotModified | Missing | Refused:
        self._count("control blob")
        return super().control_read(unless_etag, lease_id)

    def control_write(self, data: bytes, etag: str, lease_id: str) -> str | Refused:
        self._count("control blob")
        self.largest = max(self.largest, len(data))
        return super().control_write(data, etag, lease_id)


class NoLogs(RunLogs):
    """There are none, and none are made."""

    async def refuse_if_any(self) -> None:
        return

    async def clean(self, run_id: str) -> None:
        return


class SimulatedFleet:
    """All processors, and the owners of the tasks."""

    def __init__(self, count: int) -> None:
        self.loop, self.dice = VirtualLoop(), random.Random(count)
        self.count, self.plan = count, plan_of("part", count * TASKS_EACH)
        self.storage = Counting(self.loop.time)
        self.living: dict[str, Member] = {}
        self.runs: dict[str, tuple[str, int]] = {}
        self.versions: set[int] = set()
        self.turns: defaultdict[str, list[float]] = defaultdict(list)

    def decided(self, view: View, now: float) -> Decision:
        """`decide`, with a look at the clock of this processor when a leader or a follower does it.

        It changes nothing, so one that took long is asked again: a page fault in a heap of a thousand processors is not
        the leader's.
        """
        begun = time.thread_time()
        decision = DECIDE(view, now)
        took = time.thread_time() - begun
        if took > TURN_MAX_S / 2:
            begun = time.thread_time()
            DECIDE(view, now)
            took = min(took, time.thread_time() - begun)
        self.turns["leader" if view.leads else "follower"].append(took)
        return decision

    @property
    def control(self) -> Control | None:
        """The control blob now."""
        content = MemoryStorage.control_read(self.storage, None, None)
        return control_blob.decode(content.data) if isinstance(content, Content) else None

    @property
    def converged(self) -> bool:
        """One live leader; every task runs at its owner, which is alive; the shares are even."""
        control = self.control
        if control is None or control.leader is None or control.leader.processor not in self.living:
            return False
        self.versions.add(control.version)
        shares: Counter[str] = Counter()
        for task, assignment in control.tasks.items():
            owner = assignment.owner
            if owner is None or owner.processor not in self.living:
                return False
            if self.runs.get(task) != (owner.incarnation, owner.generation):
                return False
            shares[owner.processor] += 1
        return set(shares) == set(self.living) and max(shares.values()) - min(shares.values()) <= 1

    async def join(self, name: str, delay_s: float) -> None:
        """One more."""
        await asyncio.sleep(delay_s)
        self.living[name] = Member(self, name)

    def kill(self, name: str) -> None:
        """Without a word."""
        self.living.pop(name).life.cancel()

    async def heal(self, what: str) -> float:
        """How long until all is well."""
        begun, self.versions = self.loop.time(), set()
        while not self.converged:
            await asyncio.sleep(LOOK_S)
            if self.loop.time() > begun + HEAL_WITHIN_S:
                raise SystemExit(f"{what}: not well after {HEAL_WITHIN_S:.0f} s.")
        took = self.loop.time() - begun
        say(f"{self.count} processors, {what}: {took:.1f} s, {len(self.versions)} versions")
        return took


class Member:
    """A processor whose tasks start and stop at once."""

    def __init__(self, fleet: SimulatedFleet, name: str) -> None:
        self.fleet, self.dice = fleet, random.Random(name)
        account = MemoryAccount(fleet.storage, link=Slow())
        self.processor = Processor(
            Settings(name, TIMING),
            account.control_blob(),
            account.rows(),
            NoLogs(account.blobs()),
            self,
            tell=self.tell,
        )
        self.processor.hear(Ready(fleet.plan))
        self.life = fleet.loop.create_task(self.processor.run())

    def now(self) -> float:
        return self.fleet.loop.time()

    def wall_ms(self) -> int:
        return int(self.now() * 1000)

    def random(self) -> float:
        return self.dice.random()

    def fresh_id(self) -> str:
        return f"{self.dice.getrandbits(128):032x}"

    def tell(self, command: Command) -> None:
        view, loop = self.processor.view, self.fleet.loop
        match command:
            case StartTask(task=task, generation=generation, attempt=attempt):
                self.fleet.runs[task] = (view.incarnation, generation)
                loop.call_soon(self.processor.hear, TaskReport(task, generation, attempt, Phase.RUNNING))
            case ReleaseTask(task=task):
                local = view.work.tasks[task]
                self.fleet.runs.pop(task, None)
                gone = TaskReport(task, local.generation, local.attempt, Phase.RELEASED)
                loop.call_soon(self.processor.hear, gone)


DECIDE = host.decide


def live(count: int) -> tuple[SimulatedFleet, dict[str, float]]:
    """From the first join to the last failover."""
    fleet = SimulatedFleet(count)
    host.decide = fleet.decided
    try:
        return fleet, fleet.loop.run_until_complete(_live(fleet))
    finally:
        fleet.loop.close()
        host.decide = DECIDE


async def _live(fleet: SimulatedFleet) -> dict[str, float]:
    names = [f"p{number:04}" for number in range(fleet.count)]
    await asyncio.gather(*(fleet.join(name, fleet.dice.uniform(0, JOIN_WITHIN_S)) for name in names))
    healed = {"all have joined": await fleet.heal("all have joined")}
    await asyncio.sleep(10)
    control = fleet.control
    assert control is not None and control.leader is not None
    others = sorted(set(fleet.living) - {control.leader.processor})
    for name in fleet.dice.sample(others, int(DYING * fleet.count)):
        fleet.kill(name)
    healed["30 of 100 die"] = await fleet.heal("30 of 100 die")
    await asyncio.sleep(10)
    control = fleet.control
    assert control is not None and control.leader is not None
    fleet.kill(control.leader.processor)
    healed["the leader dies"] = await fleet.heal("the leader dies")
    for name in list(fleet.living):
        fleet.kill(name)
    await asyncio.sleep(1)  # so that all calls under way see the end
    return healed


def measure(quick: bool) -> list[Claim]:
    """Ever larger groups; the last one is the claim."""
    control_blob.decode = lru_cache(4)(control_blob.decode)
    counts, slowest = ([25, 50, 100] if quick else [125, 250, 500, 1000]), {}
    gc.disable()  # the copies of a thousand processors are the simulation's, not a leader's
    for count in counts:
        begun = time.monotonic()
        fleet, healed = live(count)
        slowest[count] = max(fleet.turns["leader"])
        say(f"{count} processors took {time.monotonic() - begun:.0f} s of this machine")
        for who, turns in fleet.turns.items():
            say(
                f"  {who}: {len(turns)} turns, median {1000 * middle(turns):.2f} ms, slowest {1000 * max(turns):.1f} ms"
            )
        gc.collect()
    return [*claims(fleet, healed), growth(slowest)]


def claims(fleet: SimulatedFleet, healed: dict[str, float]) -> list[Claim]:
    """What the largest group has shown."""
    who = f"{fleet.count:,} processors, {fleet.count * TASKS_EACH:,} tasks"
    turns, storage = fleet.turns["leader"], fleet.storage
    shown = [Claim(f"{who}: {what}, until all run evenly", f"{seconds:.1f} s") for what, seconds in healed.items()]
    shown += [
        Claim(
            f"{who}: slowest turn of a leader",
            f"{1000 * max(turns):.1f} ms (median {1000 * middle(turns):.2f} ms)",
            f"{1000 * TURN_MAX_S:.0f} ms",
            max(turns) <= TURN_MAX_S,
        ),
        Claim("  largest control blob", f"{storage.largest:,} bytes", f"{BLOB_LIMIT:,}", storage.largest <= BLOB_LIMIT),
    ]
    for what in ("members", "leader", "requests"):
        rows = storage.most(what, WINDOW_S)
        title = f"  partition {what}: rows per second in the busiest {WINDOW_S} s"
        shown.append(Claim(title, f"{rows:,.0f}", f"{PARTITION_MAX:,}", rows <= PARTITION_MAX))
    calls = storage.most("control blob")
    title = "  control blob: calls in the busiest second"
    return [*shown, Claim(title, f"{calls:,.0f}", f"{BLOB_MAX}", calls <= BLOB_MAX)]


def growth(slowest: Mapping[int, float]) -> Claim:
    """How the leader's slowest turn grows when everything doubles."""
    counts = sorted(slowest)
    ratios = [slowest[after] / slowest[before] for before, after in pairwise(counts)]
    told = ", ".join(f"{ratio:.1f}" for ratio in ratios)
    return Claim("slowest turn, growth per doubling of everything", told, "about 2", middle(ratios) <= 2.5)


if __name__ == "__main__":
    main(measure, __doc__)
