"""What the chosen numbers cost, and how long things take at worst: `samza-azure explain`.

Pure arithmetic on the configuration and the analysed pipeline; nothing is measured and no storage is asked. Counted is
what is sent when nothing fails. Prices are those that Azure's documentation calculates with, for a general-purpose v2
account, hot tier, locally redundant, in US dollars without tax; network is not in them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from samza_azure.group.age import LEAST_READS
from samza_azure.group.election import SUCCESSORS
from samza_azure.group.timing import LEASE_MARGIN_S, LEASE_S, RENEW_EVERY_S, SELF_STOP, Timing
from samza_azure.messages import Plan, StagePlan

# Dollars for ten thousand operations.
WRITE_PRICE = 0.055  # Put Blob, Append Block
READ_PRICE = 0.0044
OTHER_PRICE = 0.0044  # of a lease
TABLE_PRICE = 0.00036
# For a gibibyte and month.
STORED_PRICE = 0.02
PRICES_OF = "blob operations as in the sample prices of Azure's documentation; tables and stored bytes are assumed"
#: How often a task could append instead.
LADDER_S = (1.0, 5.0, 10.0, 30.0, 60.0)

HOURS_PER_MONTH = 730
#: A query answers with so many rows at a time.
ROWS_PER_QUERY = 1_000
#: The pace of the data path; `spark` has the same numbers, and a test compares them.
HINTS_BUSY_S, HINTS_IDLE_S = 0.2, 1.0
UNASKED_S, UNASKED_EACH_S, UNASKED_MOST_S = 5.0, 0.5, 60.0
#: The pace of a lock of the library with the shortest lease; `host.lock` has the same numbers, a test compares them.
LOCK_RENEW_S, LOCK_ASK_S = 5.0, 4.0
#: A compaction makes one file of so many, and housekeeping asks a table so often in an hour at least.
MERGED, HOUSE_TABLE = 16, 6
#: How far two machines' clocks may run apart in rate, of what they measure.
CLOCK_RATE = 0.1


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations per hour, by what they cost."""

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
        """The price of going on like that."""
        per_hour = (
            self.table * TABLE_PRICE + self.read * READ_PRICE + self.write * WRITE_PRICE + self.other * OTHER_PRICE
        )
        return per_hour / 10_000 * HOURS_PER_MONTH


@dataclass(frozen=True, slots=True)
class Flow:
    """A stage: its tasks, and the logs that they read, counted per task and producer."""

    stage: str
    tasks: int
    producers: int  # that each of its tasks reads, all inputs together
    flush_s: float = 0.0  # a sink: how often it puts rows out; 0: a query
    is_table: bool = True  # that sink

    @property
    def links(self) -> int:
        """Pairs of a task and a log that it reads."""
        return self.tasks * self.producers


@dataclass(frozen=True, slots=True)
class Bounds:
    """The worst cases, in seconds. To *running*: a look and a heartbeat more, and the start of the task."""

    follower_lost: float
    leader_lost: float  # a named successor takes over
    leaderless: float  # until it leads
    leader_and_successors_lost: float
    two_leaders: float  # both believe to lead; only one's writes are accepted. One may be cut off, with a lease
    two_owners: float  # both may start batches; only one's appends are accepted
    pause_after: float  # a processor that is cut off pauses itself


def per_hour(every_s: float) -> float:
    """How often something happens that happens every so many seconds."""
    return 3600 / every_s


def follower(timing: Timing, processors: int) -> Operations:
    """A beat per heartbeat, and a look at the leader row at the same rate unless the group is very large.

    Now and then it reads the control blob, to see that it could.
    """
    table = per_hour(timing.heartbeat_s) + per_hour(timing.look_every_s(processors))
    return Operations(table=table, read=per_hour(timing.sight_every_s(processors)))


def successor(timing: Timing, processors: int) -> Operations:
    """A follower that reads all members at the leader's rate, so that ages carry over.

    It looks at the leader row at that rate too, but only once that did not change: in an idle hour it always does.
    """
    table = 2 * per_hour(timing.heartbeat_s) + _scans(timing, processors)
    return Operations(table=table, read=per_hour(timing.sight_every_s(processors)))


def leader(timing: Timing, processors: int) -> Operations:
    """Its own beat and the leader row per heartbeat, all members per scan, the requests more often; the lease."""
    requests = per_hour(timing.requests_every_s)
    return Operations(
        table=2 * per_hour(timing.heartbeat_s) + requests + _scans(timing, processors), other=per_hour(RENEW_EVERY_S)
    )


def page(timing: Timing, processors: int) -> Operations:
    """The status page while somebody looks, however many do: all members and the control blob per heartbeat."""
    return Operations(table=per_hour(timing.heartbeat_s) * _pages(processors), read=per_hour(timing.heartbeat_s))


def coordination(timing: Timing, processors: int) -> Operations:
    """The whole group's, while nothing happens."""
    successors = min(SUCCESSORS, processors - 1)
    followers = processors - 1 - successors
    return (
        leader(timing, processors)
        + successor(timing, processors) * successors
        + follower(timing, processors) * followers
    )


def busy(flows: Sequence[Flow], processors: int, commit_s: float) -> Operations:
    """The data path while every task has rows for every batch, and a record is read in one go."""
    appends = per_hour(commit_s)
    tasks, links = sum(flow.tasks for flow in flows), sum(flow.links for flow in flows)
    queries = sum(flow.tasks for flow in flows if not flow.flush_s)
    hints = queries * appends + _polls(tasks, processors) * per_hour(HINTS_BUSY_S)
    sinks = sum((publishing(flow) for flow in flows if flow.flush_s), Operations())
    return Operations(table=hints, read=links * appends, write=queries * appends) + sinks


def publishing(flow: Flow) -> Operations:
    """What the tasks of a sink send while each flush has rows.

    Into a folder: a file and the records before and after it. Into a table, for rows of one interval; the files are
    merged once.

    A flush writes a file and a record, reads the position and publishes in one transaction. A merge reads each file
    once, and writes one for `MERGED` of them under two locks, each taken and given back. Collecting the garbage lists
    the files, and deletes them in batches, once an hour.
    """
    flushes = flow.tasks * per_hour(flow.flush_s)
    if not flow.is_table:
        return Operations(write=3 * flushes)
    merges = flushes / MERGED
    once = Operations(table=HOUSE_TABLE, write=2)
    return Operations(table=2 * flushes + 12 * merges, read=flushes, write=2 * flushes + merges) + once


def published(plan: Plan) -> list[str]:
    """A line for each table and folder: whose rows it has, and for how much."""
    found = []
    for stage, flow in zip(plan.stages, flows_of(plan), strict=True):
        price = f"up to ${publishing(flow).dollars_per_month:,.2f} per month" if flow.flush_s else ""
        if stage.table:
            found.append(
                f"the rows of {stage.inputs[0]} go to the table {stage.table}, a file per interval every "
                f"{stage.flush_s:g} s and task: {price} for rows of one interval at a time; nothing while no row "
                "comes, but a query an hour"
            )
        if stage.files:
            found.append(
                f"the rows of {stage.inputs[0]} go to the folder files/{stage.files}, a file every {stage.flush_s:g} s "
                f"and task: {price}; nothing while no row comes"
            )
    return found


def idle(flows: Sequence[Flow], processors: int) -> Operations:
    """The data path while no row comes."""
    tasks = sum(flow.tasks for flow in flows)
    reads = sum(flow.links * per_hour(unasked_s(flow.producers)) for flow in flows)
    return Operations(table=_polls(tasks, processors) * per_hour(HINTS_IDLE_S), read=reads)


def unasked_s(producers: int) -> float:
    """How often a task looks at each producer's log although no hint speaks of it."""
    return min(max(UNASKED_S, UNASKED_EACH_S * producers), UNASKED_MOST_S)


def _noticed(timeout_s: float, every_s: float) -> float:
    """When a row that is read every so often, and changes no more, has certainly been silent for a timeout."""
    return every_s + max(timeout_s + every_s, LEAST_READS * every_s)


def bounds(timing: Timing, processors: int, call_s: float) -> Bounds:
    """How long it takes at worst until the new assignment is published; `call_s` bounds one call."""
    scan, look = timing.scan_every_s(processors), timing.look_every_s(processors)
    farthest = max(min(SUCCESSORS, processors - 1) - 1, 0)
    fastest_death = timing.heartbeat_timeout_s * (1 - CLOCK_RATE)
    slowest_pause = SELF_STOP * timing.heartbeat_timeout_s * (1 + CLOCK_RATE)
    member_lost = _noticed(timing.heartbeat_timeout_s, scan)
    leader_missed = _noticed(timing.leader_timeout_s, timing.scan_s) + farthest * timing.scan_s
    return Bounds(
        follower_lost=member_lost,
        leader_lost=max(member_lost + farthest * timing.scan_s, leader_missed),
        leaderless=leader_missed,
        leader_and_successors_lost=_noticed(timing.leader_timeout_s + 6 * timing.heartbeat_s, look) + member_lost,
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
            stage.flush_s if stage.table or stage.files else 0.0,
            is_table=not stage.files,
        )
        for stage in plan.stages
    ]


def _producers(plan: Plan, stage: StagePlan, stream: str) -> int:
    """The logs of one stream that each task of a stage reads."""
    writer = next((each for each in plan.stages if each.output == stream), None)
    if writer is not None and (writer.partition_by or writer.routed_for):
        return writer.tasks  # everyone may write to every partition
    return -(-(plan.sources[stream] if writer is None else writer.partitions) // stage.tasks)


def routing(plan: Plan, router: StagePlan, commit_s: float) -> Operations:
    """What it costs that rows go through one stream more, while every task has rows for every batch."""
    (behind,) = (stage for stage in plan.stages if stage.name == router.routed_for)
    links = router.tasks * _producers(plan, router, router.inputs[0]) + behind.tasks * router.tasks
    appends = per_hour(commit_s)
    return Operations(table=router.tasks * appends, read=links * appends, write=router.tasks * appends)


def routed(plan: Plan, commit_s: float) -> list[str]:
    """A line for each stream that nobody wrote: whose rows it carries, by what, and for how much."""
    return [
        f"the rows of {stage.inputs[0]} go to stage {stage.routed_for} through the stream {stage.output}, "
        f"{stage.partitions} partitions by {', '.join(stage.routed_by)}: up to "
        f"${routing(plan, stage, commit_s).dollars_per_month:,.2f} per month"
        for stage in plan.stages
        if stage.routed_for
    ]


def pipeline_lines(plan: Plan, commit_s: float) -> list[str]:
    """The stages in the order in which rows pass through them: tasks, streams with their keys, state."""
    found = []
    for stage in plan.stages:
        found.append(f"{stage.name}: {_counted(stage.tasks, 'task')}" + (", added" if stage.routed_for else ""))
        for stream in dict.fromkeys(stage.inputs):
            writer = next((each for each in plan.stages if each.output == stream), None)
            partitions = plan.sources[stream] if writer is None else writer.partitions
            found.append(f"  reads   {stream}: {_counted(partitions, 'partition')}, {_keyed(plan, stream)}")
        found += [f"  keeps   {state}, in each task" for state in stage.state]
        if stage.at_once:
            flight = "one message" if stage.at_once == 1 else f"up to {stage.at_once} messages"
            found.append(f"  calls   a handler, {flight} in flight in each task")
        if stage.table or stage.files:
            where = f"the table {stage.table}" if stage.table else f"the folder files/{stage.files}"
            found.append(f"  writes  {where}, every {stage.flush_s:g} s")
            continue
        by = stage.routed_by or stage.partition_by
        said = f" by {', '.join(by)}" if by else ", one per task"
        found.append(f"  writes  {stage.output}: {_counted(stage.partitions, 'partition')}{said}")
    return found + [f"Note: {line}." for line in (*routed(plan, commit_s), *published(plan))]


def _keyed(plan: Plan, stream: str) -> str:
    key = plan.keys.get(stream, ())
    return f"key {', '.join(key)}" if key else "no key"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def cheaper(flows: Sequence[Flow], processors: int, commit_s: float) -> str:
    """What it would cost to append less often: task.commit.ms is what most of the price hangs on."""
    steps = [commit_s, *(each for each in LADDER_S if each > commit_s)]
    prices = [f"every {each:g} s ${busy(flows, processors, each).dollars_per_month:,.2f}" for each in steps]
    if len(prices) == 1:
        return f"A batch each {commit_s:g} s is as seldom as it is worth its while: {prices[0]} per month."
    return (
        f"Append less often (task.commit.ms): {', '.join(prices)} per month. Each stage shows its rows that much later."
    )


def storage_lines() -> list[str]:
    """What is not in the operations."""
    return [
        (
            f"Stored: ${STORED_PRICE:.2f} per GiB and month, of all rows in sources and outputs unless "
            "streams.<id>.retention ends that; what lies between stages is deleted."
        ),
        (
            "Network: nothing while account and processors are in one region; out of it Azure asks for each GB that is "
            "read, and every row is read once by each stage that reads its stream."
        ),
        f"Prices: {PRICES_OF}. Hot tier, locally redundant, without tax. Ask the price list of your region.",
    ]


def lines(timing: Timing, flows: Sequence[Flow], processors: int, commit_s: float, call_s: float) -> list[str]:
    """What the command prints."""
    tasks = sum(flow.tasks for flow in flows)
    group, full, empty = coordination(timing, processors), busy(flows, processors, commit_s), idle(flows, processors)
    shown = [
        ("one follower", follower(timing, processors)),
        ("one named successor", successor(timing, processors)),
        ("the leader", leader(timing, processors)),
        (f"the group of {processors}", group),
        ("the status page while it is open", page(timing, processors)),
        ("one holder of a library's lock", Operations(other=per_hour(LOCK_RENEW_S))),
        ("one that waits for it", Operations(other=per_hour(LOCK_ASK_S))),
        (f"{tasks} tasks without rows", empty),
        (f"{tasks} tasks, a batch each {commit_s:g} s", full),
    ]
    worst = bounds(timing, processors, call_s)
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
        *([cheaper(flows, processors, commit_s)] if any(not flow.flush_s for flow in flows) else []),
        *storage_lines(),
        "",
        (
            "At worst, from the loss until others have its tasks in the new assignment. Until they run: "
            f"{timing.heartbeat_s + timing.look_every_s(processors):g} s more, and the task's start. Beside that some "
            "five calls to the storage"
        ),
        f"  a follower is lost                     {worst.follower_lost:6.2f} s",
        f"  the leader is lost with its tasks      {worst.leader_lost:6.2f} s",
        f"  until another one leads                {worst.leaderless:6.2f} s",
        f"  and all its named successors with it   {worst.leader_and_successors_lost:6.2f} s",
        "At worst, in belief only; the storage accepts the writes of one",
        f"  two leaders                            {worst.two_leaders:6.2f} s",
        (
            f"  two owners of a task                   {worst.two_owners:6.2f} s, since who is cut off pauses after "
            f"{worst.pause_after:g} s"
        ),
    ]


def _scans(timing: Timing, processors: int) -> float:
    """Queries for all rows."""
    return per_hour(timing.scan_every_s(processors)) * _pages(processors)


def _pages(rows: int) -> int:
    return -(-rows // ROWS_PER_QUERY)


def _polls(tasks: int, processors: int) -> int:
    """Queries each time that all containers look at all hints."""
    return _containers(tasks, processors) * _pages(tasks)


def _containers(tasks: int, processors: int) -> int:
    """Processors without a task do not listen to hints."""
    return min(tasks, processors)
