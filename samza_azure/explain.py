"""What the configuration costs, and how long things take at worst: `samza-azure explain`.

Pure arithmetic on the configuration and the analysed pipeline; nothing is measured and no storage is read. It counts
the operations of a run in which nothing fails. The prices are the sample prices of Azure's documentation, for a
general-purpose v2 account, hot tier, locally redundant, in US dollars, without tax and network. The
documentation names no region.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from samza_azure.group.age import LEAST_READS
from samza_azure.group.election import SUCCESSORS
from samza_azure.group.timing import (
    LEASE_MARGIN_S,
    LEASE_S,
    LISTEN_S,
    RENEW_EVERY_S,
    SELF_STOP,
    SIGHT_S,
    Timing,
    draining_look_s,
    draining_scan_s,
)
from samza_azure.messages import Plan, StagePlan, TaskKind
from samza_azure.streams.pace import HINTS_BUSY_S, HINTS_IDLE_S, WORTH_BYTES_PER_S, unasked_s

# Dollars for ten thousand operations.
WRITE_PRICE = 0.055  # Put Blob, Append Block
READ_PRICE = 0.0044
OTHER_PRICE = 0.0044  # lease operations
TABLE_PRICE = 0.00036
# Dollars per GiB and month.
STORED_PRICE = 0.0208
# Dollars per GB that leaves the region: to another one of the continent, and to the Internet past `FREE_GB` a month.
REGION_PRICE, INTERNET_PRICE, FREE_GB = 0.02, 0.087, 100
# Event Hubs, Standard: dollars for an hour of a throughput unit and for a million events in; the most connections.
HUB_UNIT_PRICE, HUB_EVENTS_PRICE, HUB_CONNECTIONS = 0.03, 0.028, 5_000
PRICES_OF = (
    "US dollars without tax, hot tier, locally redundant. Blob operations and stored bytes as in the sample prices of "
    "Azure's documentation of July 2024, which names no region; network in Europe and North America, as published by "
    "others in 2026; tables are assumed"
)
#: Commit intervals to compare, in seconds.
LADDER_S = (1.0, 5.0, 10.0, 30.0, 60.0)

HOURS_PER_MONTH = 730
#: Rows in one page of a query's answer.
ROWS_PER_QUERY = 1_000
#: The pace of a lock of the library with the shortest lease, in seconds. `library/lease_lock.py` has the same numbers,
#: but is in a layer above this one; a test compares them.
LOCK_RENEW_S, LOCK_ASK_S = 5.0, 4.0
#: The files that a compaction merges into one, and the least number of housekeeping queries of a table per hour.
MERGED, HOUSE_TABLE = 16, 6
#: What a batch of 1,000 rows in windows takes in a warm container, in seconds of processor time: 0.23 to 0.31 s on two
#: cores, of which little depends on the rows. A stage with more tasks than this for each processor has many.
BATCH_CPU_S, MANY = 0.3, 2
#: How long a call to a log waits for its answer, in every profile; `storage/clients.py` has the same number.
ANSWER_S = 10.0
#: How often the leader writes the record of the last day; `host/last_day.py` has the same number.
RECORD_S = 60.0
#: The seconds between two reads of a replica's log while it grows, at least, and while it does not; `tasks/replicas.py`
#: has the same numbers, in a layer above this one; a test compares them.
REPLICA_READ_S, REPLICA_UNASKED_S = 1.0, 30.0
#: The error of the rate of a machine's clock, as a fraction.
CLOCK_RATE = 0.1


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations per hour, by price class."""

    table: float = 0.0
    read: float = 0.0
    write: float = 0.0
    other: float = 0.0

    def __add__(self, more: "Operations") -> "Operations":
        return Operations(
            self.table + more.table, self.read + more.read, self.write + more.write, self.other + more.other
        )

    def __mul__(self, times: float) -> "Operations":
        return Operations(self.table * times, self.read * times, self.write * times, self.other * times)

    @property
    def dollars_per_month(self) -> float:
        """The price of a month of them."""
        per_hour = (
            self.table * TABLE_PRICE + self.read * READ_PRICE + self.write * WRITE_PRICE + self.other * OTHER_PRICE
        )
        return per_hour / 10_000 * HOURS_PER_MONTH


@dataclass(frozen=True, slots=True)
class Flow:
    """A stage: its tasks, and the logs that each of them reads."""

    stage: str
    tasks: int
    producers: int  # logs that each of its tasks reads, all inputs together
    kind: TaskKind = TaskKind.QUERY
    flush_s: float = 0.0  # how often a sink writes its rows, in seconds

    @property
    def is_sink(self) -> bool:
        """Whether its tasks write rows to a table, a folder or a system outside."""
        return self.kind.facts.is_sink

    @property
    def links(self) -> int:
        """Pairs of a task and a log that it reads."""
        return self.tasks * self.producers


@dataclass(frozen=True, slots=True)
class WorstCases:
    """Worst cases in seconds. A moved task runs one look, one heartbeat and its own start later."""

    follower_lost: float
    leader_lost: float  # a named successor takes over
    leaderless: float  # until the successor leads
    leader_and_successors_lost: float
    container_lost: float  # or hangs, beside a processor that has one
    two_leaders: float  # both believe that they lead; the storage accepts the writes of one
    two_owners: float  # both may start batches; only one's appends are accepted
    pause_after: float  # a processor that is cut off pauses itself


def per_hour(every_s: float) -> float:
    """The number of times per hour of something that happens every `every_s` seconds."""
    return 3600 / every_s


def follower(timing: Timing, processors: int) -> Operations:
    """A heartbeat, and a read of the leader row at the same rate unless the group is very large.

    Now and then it also reads the control blob, to check that it can.
    """
    table = per_hour(timing.heartbeat_s) + per_hour(timing.look_every_s(processors))
    return Operations(table=table, read=per_hour(SIGHT_S))


def successor(timing: Timing, processors: int) -> Operations:
    """A follower that reads all members at the leader's rate, so that it knows their ages when it takes over.

    It also reads the leader row, with every heartbeat while nothing happens.
    """
    table = 2 * per_hour(timing.heartbeat_s) + _scans(timing, processors)
    return Operations(table=table, read=per_hour(SIGHT_S))


def leader(timing: Timing, processors: int) -> Operations:
    """Its own row and the leader row per heartbeat, all members per scan, the requests, and the lease."""
    requests = per_hour(timing.scan_s)
    return Operations(
        table=2 * per_hour(timing.heartbeat_s) + requests + _scans(timing, processors), other=per_hour(RENEW_EVERY_S)
    )


def record() -> Operations:
    """The record of the last day, as the leader writes it, or as a page reads it while it is open."""
    return Operations(table=per_hour(RECORD_S))


def page(timing: Timing, processors: int) -> Operations:
    """The status page while at least one browser shows it: all members and the control blob per heartbeat."""
    return Operations(table=per_hour(timing.heartbeat_s) * _pages(processors), read=per_hour(timing.heartbeat_s))


def coordination(timing: Timing, processors: int) -> Operations:
    """The operations of the whole group while nothing happens, without the record of the last day."""
    successors = min(SUCCESSORS, processors - 1)
    followers = processors - 1 - successors
    return (
        leader(timing, processors)
        + successor(timing, processors) * successors
        + follower(timing, processors) * followers
    )


def draining(timing: Timing, processors: int) -> Operations:
    """The whole group while a run drains: each step waits for the leader's scans and the others' looks."""
    own = per_hour(timing.heartbeat_s) * (processors + 1) + per_hour(timing.scan_s)
    scans = per_hour(min(draining_scan_s(processors), timing.scan_every_s(processors))) * _pages(processors)
    looks = per_hour(min(draining_look_s(processors), timing.look_every_s(processors)))
    watched = min(SUCCESSORS, processors - 1) * _scans(timing, processors)
    return Operations(table=own + scans + watched + (processors - 1) * looks)


def busy(flows: Sequence[Flow], processors: int, commit_s: float) -> Operations:
    """The data path while every task has rows for every batch, and one call reads a whole record."""
    appends = per_hour(commit_s)
    tasks, links = sum(flow.tasks for flow in flows), sum(flow.links for flow in flows)
    queries = sum(flow.tasks for flow in flows if not flow.is_sink)
    hints = queries * appends + _polls(tasks, processors) * per_hour(HINTS_BUSY_S)
    sinks = sum((publishing(flow) for flow in flows if flow.is_sink), Operations())
    return Operations(table=hints, read=links * appends, write=queries * appends) + sinks


def publishing(flow: Flow) -> Operations:
    """The operations of a sink's tasks while each flush has rows.

    Into a folder: a file and the records before and after it. To a system outside: the record before. Into a table:
    rows of one interval, and each file is merged once.

    A flush writes a file and a record, reads the position, and publishes in one transaction. A merge reads `MERGED`
    files and writes one, under two locks, each acquired and released. Once an hour the garbage collection lists the
    files, and deletes in batches.
    """
    flushes = flow.tasks * per_hour(flow.flush_s)
    written = Operations(write=flow.kind.facts.writes_per_flush * flushes)
    if not flow.kind.facts.is_merged:
        return written
    merges = flushes / MERGED
    once = Operations(table=HOUSE_TABLE, write=2)
    return written + Operations(table=2 * flushes + 12 * merges, read=flushes, write=merges) + once


def published(plan: Plan) -> list[str]:
    """A line for each table, folder and system outside: whose rows it gets, and its price."""
    found = []
    for stage, flow in zip(plan.stages, flows_of(plan), strict=True):
        if not flow.is_sink:
            continue
        kind, often = stage.kind.facts, f"every {stage.flush_s:g} s"
        how, but, idle = f"a file per task {often}", "", "nothing"
        if kind.is_merged:
            how, idle = f"a file per task and interval {often}", "almost nothing"
            but = " if all rows of a flush are in one interval"
        elif kind.sends_outside:
            how, but = f"at most {often} and task", ", without the price of that system"
        found.append(
            f"the rows of {stage.inputs[0]} go to the {_place(stage)}, {how}: up to "
            f"${publishing(flow).dollars_per_month:,.2f} per month{but}; {idle} while there are no rows"
        )
    return found


def _place(stage: StagePlan) -> str:
    return stage.kind.facts.put_into.format(stage.target)


def replica_lines(plan: Plan, count: int, commit_s: float) -> list[str]:
    """What `count` replicas of each task with state cost: calls, disk and memory."""
    tasks = sum(stage.tasks for stage in plan.stages if stage.keeps_state)
    if not count or not tasks:
        return []
    logs = tasks * count
    full = Operations(read=logs * per_hour(max(commit_s, REPLICA_READ_S))).dollars_per_month
    empty = Operations(read=logs * per_hour(REPLICA_UNASKED_S)).dollars_per_month
    return [
        (
            f"Note: {_counted(logs, 'replica')} of tasks with state: up to ${full:,.2f} per month for reads of their "
            f"logs, ${empty:,.2f} without rows. Each takes as much disk as the state of its task, up to twice that "
            "while Spark writes a new snapshot, and the memory of what its log has below 64 KiB a file; each byte of a "
            "log and of its snapshots is read once more, each larger file by a read of its own."
        ),
    ]


def idle(flows: Sequence[Flow], processors: int) -> Operations:
    """The data path while there are no rows."""
    tasks = sum(flow.tasks for flow in flows)
    reads = sum(flow.links * per_hour(unasked_s(flow.producers)) for flow in flows)
    return Operations(table=_polls(tasks, processors) * per_hour(HINTS_IDLE_S), read=reads)


def _noticed(timeout_s: float, every_s: float) -> float:
    """Seconds until a row that is read every `every_s` and never changes has certainly been silent for a timeout."""
    return every_s + max(timeout_s + every_s, LEAST_READS * every_s)


def bounds(timing: Timing, processors: int, call_s: float) -> WorstCases:
    """The worst case until the new assignment is published, if no call takes longer than `call_s`."""
    scan, look = timing.scan_every_s(processors), timing.look_every_s(processors)
    farthest = max(min(SUCCESSORS, processors - 1) - 1, 0)
    fastest_death = timing.heartbeat_timeout_s * (1 - CLOCK_RATE)
    slowest_pause = SELF_STOP * timing.heartbeat_timeout_s * (1 + CLOCK_RATE)
    member_lost = _noticed(timing.heartbeat_timeout_s, scan)
    leader_missed = _noticed(timing.leader_timeout_s, timing.scan_s) + farthest * timing.scan_s
    return WorstCases(
        follower_lost=member_lost,
        leader_lost=max(member_lost + farthest * timing.scan_s, leader_missed),
        leaderless=leader_missed,
        leader_and_successors_lost=_noticed(timing.leader_timeout_s + 6 * timing.heartbeat_s, look) + member_lost,
        container_lost=timing.hangs_after_s + LISTEN_S + scan + timing.debounce_s,
        two_leaders=max(timing.heartbeat_s + call_s, LEASE_S - LEASE_MARGIN_S - timing.leader_timeout_s),
        two_owners=max(slowest_pause - fastest_death, 0.0),
        pause_after=SELF_STOP * timing.heartbeat_timeout_s,
    )


def flows_of(plan: Plan) -> list[Flow]:
    """The shape of a pipeline."""
    return [
        Flow(
            stage.name,
            stage.tasks,
            sum(_producers(plan, stage, stream) for stream in stage.inputs),
            stage.kind,
            stage.flush_s,
        )
        for stage in plan.stages
    ]


def _producers(plan: Plan, stage: StagePlan, stream: str) -> int:
    """The logs of one stream that each task of a stage reads."""
    writer = next((each for each in plan.stages if each.output == stream), None)
    if writer is not None and (writer.partition_by or writer.routed_for):
        return writer.tasks  # every task may write to every partition
    return -(-(plan.sources[stream] if writer is None else writer.partitions) // stage.tasks)


def routing(plan: Plan, router: StagePlan, commit_s: float) -> Operations:
    """The operations of passing rows through one more stream, while every task has rows for every batch."""
    (behind,) = (stage for stage in plan.stages if stage.name == router.routed_for)
    links = router.tasks * _producers(plan, router, router.inputs[0]) + behind.tasks * router.tasks
    appends = per_hour(commit_s)
    return Operations(table=router.tasks * appends, read=links * appends, write=router.tasks * appends)


def routed(plan: Plan, commit_s: float) -> list[str]:
    """A line for each stream that was added: whose rows it carries, by which key, and its price."""
    return [
        f"the rows of {stage.inputs[0]} go to stage {stage.routed_for} through the stream {stage.output}, "
        f"{stage.partitions} partitions by {', '.join(stage.routed_by)}: up to "
        f"${routing(plan, stage, commit_s).dollars_per_month:,.2f} per month"
        for stage in plan.stages
        if stage.routed_for
    ]


def pipeline_lines(plan: Plan, commit_s: float) -> list[str]:
    """The stages in the order in which rows pass through them, with tasks, streams, keys and state."""
    found = []
    for stage in plan.stages:
        found.append(f"{stage.name}: {_counted(stage.tasks, 'task')}" + (", added" if stage.routed_for else ""))
        for stream in dict.fromkeys(stage.inputs):
            writer = next((each for each in plan.stages if each.output == stream), None)
            partitions = plan.sources[stream] if writer is None else writer.partitions
            found.append(f"  reads   {stream}: {_counted(partitions, 'partition')}, {_keyed(plan, stream)}")
        if stage.batch_partitions > 1:
            and_state = ", and its state," if stage.stateful else ""
            found.append(f"  spreads a batch of a task{and_state} over {stage.batch_partitions} partitions in Spark")
        found += [f"  keeps   {state}, in each task" for state in stage.state]
        if stage.kind.facts.calls_handler:
            flight = "one message" if stage.at_once == 1 else f"up to {stage.at_once} messages"
            found.append(f"  calls   a handler, {flight} in flight in each task")
        if stage.kind.facts.is_sink:
            found.append(f"  writes  the {_place(stage)}, every {stage.flush_s:g} s")
            continue
        by = stage.routed_by or stage.partition_by
        how = f" by {', '.join(by)}" if by else ", one per task"
        found.append(f"  writes  {stage.output}: {_counted(stage.partitions, 'partition')}{how}")
    return found + [f"Note: {line}." for line in (*routed(plan, commit_s), *published(plan))]


def hub_lines(plan: Plan) -> list[str]:
    """What the streams that are hubs take of a namespace of Event Hubs."""
    into, out_of = _outside(plan, "eventhubs")
    read, sent = {each.inputs[0]: each.partitions for each in into}, {each.inputs[0]: each.tasks for each in out_of}
    if not read and not sent:
        return []
    links = [f"{_counted(number, 'connection')} for {stream}, one per partition" for stream, number in read.items()]
    links += [
        f"up to {_counted(number, 'connection')} per partition of the hub for {stream}, one per task"
        for stream, number in sent.items()
    ]
    also = (
        ", and one more for a question to each partition that is silent, every 5 s to a minute, and to the hub, every "
        "minute; these are not charged"
        if read
        else ""
    )
    month = f"${HUB_UNIT_PRICE * HOURS_PER_MONTH:,.2f} per month"
    line = (
        f"Note: Event Hubs: {'; '.join(links)}{also}. A namespace of Standard takes {HUB_CONNECTIONS:,}. A throughput "
        f"unit, {month}, takes in 1 MB and 1,000 events a second, and gives out 2 MB and 4,096 events a second to all "
        f"readers together; a million events in, ${HUB_EVENTS_PRICE:g}. These prices are not in the sums below, and "
        "are assumed: see the price list of your region."
    )
    return [line]


def topic_lines(plan: Plan) -> list[str]:
    """What the streams that are topics take of a cluster of Kafka."""
    read, sent = _outside(plan, "kafka")
    if not read and not sent:
        return []
    clients = ", ".join(f"{_counted(2 * each.tasks, 'client')} for {each.inputs[0]}" for each in (*read, *sent))
    also = "; those that read ask for the ends of their partitions every 5 s" if read else ""
    line = (
        f"Note: Kafka: {clients}, two per task. Each connects to all brokers that lead its partitions{also}. What the "
        "cluster costs is not known here."
    )
    return [line]


def _outside(plan: Plan, system: str) -> tuple[list[StagePlan], list[StagePlan]]:
    """The stages that read streams of a system outside, and those that send rows there."""
    there = [each for each in plan.stages if each.target == system]
    read = [each for each in there if each.kind.facts.reads_outside]
    return read, [each for each in there if each.kind.facts.sends_outside]


def flush_lines(plan: Plan, state: str) -> list[str]:
    """The memory that a drain needs where a stage keeps state. `state` is `task.state`."""
    if not any(stage.stateful for stage in plan.stages):
        return []
    where = {
        "rocksdb": "The state is in RocksDB, on the local disk, so the number of open windows is not bounded by memory",
        "memory": "Java's heap must hold the state of all tasks of a processor twice, as in every batch",
    }
    where["auto"] = f"{where['memory']}; that of transformWithState is in RocksDB, on the local disk"
    return [f"Note: a drain fires all that a task keeps in one batch. {where[state]}."]


def task_lines(plan: Plan, processors: int, commit_s: float) -> list[str]:
    """What the number of tasks costs, and a warning of stages with many more tasks than there are processors."""
    count = _queries(plan)
    if not count:
        return []
    found = []
    if commit_s:
        cores = count * BATCH_CPU_S / commit_s
        found.append(
            f"Note: a small batch of a query takes about {BATCH_CPU_S:g} s of processor time, so "
            f"{_counted(count, 'task')} with a batch each {commit_s:g} s take up to {cores:.1f} cores of the fleet. "
            "Tasks near the number of processors cost least, if a core keeps up with each task's rows."
        )
    queries = [stage for stage in plan.stages if stage.kind.facts.has_query]
    if many := [f"{stage.name} ({stage.tasks})" for stage in queries if stage.tasks > MANY * processors]:
        fewer = replace(plan, stages=tuple(_with_tasks(stage, processors) for stage in plan.stages))
        prices = [busy(flows_of(each), processors, commit_s or 1.0).dollars_per_month for each in (plan, fewer)]
        whole, part = (_queries(each) for each in (plan, fewer))
        found.append(
            f"warning: {', '.join(many)}: many tasks for {_counted(processors, 'processor')}. With task.count = "
            f"{processors}, from the next run on, queries take {part / whole:.0%} of that processor time, and busy "
            f"tasks ${prices[1]:,.2f} a month instead of ${prices[0]:,.2f}. A task that moves then takes a larger part "
            "of its stage along, and a fleet that grows needs more tasks to share."
        )
    return found


def _queries(plan: Plan) -> int:
    """The tasks that run a query."""
    return sum(stage.tasks for stage in plan.stages if stage.kind.facts.has_query)


def _with_tasks(stage: StagePlan, most: int) -> StagePlan:
    """The stage with at most so many tasks. A sink has those of the stage before it."""
    return stage if stage.kind.facts.is_sink else replace(stage, tasks=min(stage.tasks, most))


def _keyed(plan: Plan, stream: str) -> str:
    key = plan.keys.get(stream) or next((each.routed_by for each in plan.stages if each.output == stream), ())
    return f"key {', '.join(key)}" if key else "no key"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


_MORE_OFTEN = (
    f"A task with {WORTH_BYTES_PER_S >> 20} MiB of input for each second of that, or half of task.batch.bytes, appends "
    "at once, so more often."
)


def cheaper(flows: Sequence[Flow], processors: int, commit_s: float) -> str:
    """The prices of appending less often: most of the price depends on task.commit.ms."""
    steps = [commit_s, *(each for each in LADDER_S if each > commit_s)]
    prices = [f"every {each:g} s ${busy(flows, processors, each).dollars_per_month:,.2f}" for each in steps]
    if len(prices) == 1:
        return f"A longer task.commit.ms than {commit_s:g} s would save little: {prices[0]} per month. {_MORE_OFTEN}"
    listed = ", ".join(prices)
    return (
        f"Append less often (task.commit.ms): {listed} per month. Each stage delays its rows by as much. {_MORE_OFTEN}"
    )


def storage_lines() -> list[str]:
    """The costs that are not operations."""
    return [
        (
            f"Stored: ${STORED_PRICE:g} per GiB and month, for all rows in sources and outputs that "
            "streams.<id>.retention does not delete; streams between stages are deleted."
        ),
        (
            f"Network: free while account and processors are in one region; otherwise ${REGION_PRICE:g} per GB that is "
            f"read from another region of the continent, and ${INTERNET_PRICE:g} per GB that is read over the "
            f"Internet, after the first {FREE_GB} GB of a month. Each stage reads every row of its streams once."
        ),
        f"Prices: {PRICES_OF}. See the price list of your region.",
    ]


def lines(timing: Timing, flows: Sequence[Flow], processors: int, commit_s: float, call_s: float) -> list[str]:
    """What the command prints."""
    tasks = sum(flow.tasks for flow in flows)
    group, full, empty = coordination(timing, processors), busy(flows, processors, commit_s), idle(flows, processors)
    shown = [
        ("one follower", follower(timing, processors)),
        ("one named successor", successor(timing, processors)),
        ("the leader", leader(timing, processors)),
        (f"the group of {processors}", group + record()),
        ("the status page while it is open", page(timing, processors) + record()),
        ("one holder of a library's lock", Operations(other=per_hour(LOCK_RENEW_S))),
        ("one that waits for it", Operations(other=per_hour(LOCK_ASK_S))),
        (f"{tasks} tasks without rows", empty),
        (f"{tasks} tasks, a batch each {commit_s:g} s", full),
    ]
    worst, drain = bounds(timing, processors, call_s), draining(timing, processors)
    return [
        f"Heartbeat {timing.heartbeat_s:g} s, dead after {timing.heartbeat_timeout_s:g} s, leader dead after "
        f"{timing.leader_timeout_s:g} s, scan {timing.scan_every_s(processors):g} s; {processors} processors, "
        f"{tasks} tasks: " + ", ".join(f"{flow.stage} {flow.tasks}" for flow in flows),
        "",
        f"{'operations per hour':34}{'table':>12}{'read':>12}{'append':>12}{'lease':>8}{'$ per month':>14}",
        *(
            f"{who:34}{of.table:12,.0f}{of.read:12,.0f}{of.write:12,.0f}{of.other:8,.0f}{of.dollars_per_month:14,.2f}"
            for who, of in shown
        ),
        "",
        *([cheaper(flows, processors, commit_s)] if any(not flow.is_sink for flow in flows) else []),
        (
            f"While a run drains, each step waits for looks, which come every {draining_look_s(processors):g} s: the "
            f"group makes {drain.table / 3600:,.0f} table operations a second instead of {group.table / 3600:,.0f}, "
            f"for ${drain.dollars_per_month / HOURS_PER_MONTH / 60:.5f} a minute."
        ),
        *storage_lines(),
        "",
        (
            "At worst, from the loss until a new assignment gives its tasks to others, not counting about five calls "
            f"to the storage. Until they run: {timing.heartbeat_s + timing.look_every_s(processors):g} s more, and the "
            f"task's start. Each of its calls that gets no answer takes up to {ANSWER_S:g} s more, in any profile"
        ),
        f"  a follower is lost                     {worst.follower_lost:6.2f} s",
        f"  the leader is lost with its tasks      {worst.leader_lost:6.2f} s",
        f"  a container ends, or hangs             {worst.container_lost:6.2f} s",
        f"  until another one leads                {worst.leaderless:6.2f} s",
        f"  and all its named successors with it   {worst.leader_and_successors_lost:6.2f} s",
        "At worst, in their own view only; the storage accepts the writes of one",
        f"  two leaders                            {worst.two_leaders:6.2f} s",
        (
            f"  two owners of a task                   {worst.two_owners:6.2f} s, since a processor that is cut off "
            f"pauses after {worst.pause_after:g} s"
        ),
    ]


def _scans(timing: Timing, processors: int) -> float:
    """Queries per hour for the rows of all members."""
    return per_hour(timing.scan_every_s(processors)) * _pages(processors)


def _pages(rows: int) -> int:
    return -(-rows // ROWS_PER_QUERY)


def _polls(tasks: int, processors: int) -> int:
    """Queries each time that all containers read all hints."""
    return _containers(tasks, processors) * _pages(tasks)


def _containers(tasks: int, processors: int) -> int:
    """The containers that read hints: those with a task."""
    return min(tasks, processors)
