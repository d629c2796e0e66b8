"""What each fence of the protocol is for: with all of them nothing is violated, without one an invariant breaks.

`make test` checks every claim to the depth that stands here (`test_model.py`); `python tests/prove/model.py` goes on
from there for as long as it is given, and prints the table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from samza_azure.logs.record import Writer
from samza_azure.logs.task_log import LogLimits
from tests.model.checker import ALL, Model, Result
from tests.model.drain import Drain
from tests.model.ending import REJOINED, RUNNING, STOPPED, Ending
from tests.model.hand_over import JOINED, HandOver
from tests.model.lease import Leading
from tests.model.log import LogRace

OLD, AGAIN, NEW = Writer(3, 1), Writer(3, 2), Writer(5, 1)
#: p1 gets a task back, since p3 crashed, and gives it to p3 again; its row reports the release of the first time.
BACK = (
    *JOINED,
    "p1 lets go of clean-2",
    "p1 writes its row: adopted 2, released",
    "p3 crashes",
    "p1 scans the rows",
    "p1 marks p3 dead",
    "p1 publishes version",
    "p1 takes over clean-2",
    "p3 starts again",
    "p3 reads its own row",
    "p3 writes its row",
    "p3 reads the control blob",
    "p3 writes its row",
)


@dataclass(frozen=True, slots=True)
class Claim:
    """`model` to this `depth` violates `violates`, or nothing. A claim to ALL depths is about all states there are."""

    name: str
    why: str
    model: Callable[[], Model[Any]]
    depth: int = ALL
    violates: str = ""

    def holds(self, result: Result) -> bool:
        """Whether the model has said what is claimed."""
        if self.violates:
            return result.violation is not None and result.violation.invariant == self.violates
        return result.violation is None and (result.complete or result.depth >= self.depth)


def _race(*writers: Writer, **more: Any) -> Callable[[], Model[Any]]:
    return lambda: LogRace(writers, [1] * len(writers), **more)


CLAIMS = (
    # The control blob.
    Claim(
        "control blob: If-Match and lease id",
        "one leader's changes follow another's: revisions rise by one, epochs and versions never fall",
        Leading,
        depth=8,
    ),
    Claim(
        "control blob: If-Match alone",
        "is the fence: it holds without the lease, whatever lands late or twice",
        lambda: Leading(lease_id=False),
        depth=7,
    ),
    Claim(
        "control blob: lease id alone, against other leaders",
        "keeps everybody else out: a deposed leader's write finds another lease, or none",
        lambda: Leading(if_match=False, own_order=False),
        depth=7,
    ),
    Claim(
        "control blob: lease id alone, against oneself",
        "is no order: what a leader gave up lands late over what it wrote since; hence If-Match",
        lambda: Leading(if_match=False),
        violates="S1",
    ),
    Claim(
        "control blob: neither",
        "lets a deposed leader write over its successor",
        lambda: Leading(if_match=False, lease_id=False, own_order=False),
        violates="S1",
    ),
    # A task's log.
    Claim(
        "log: position and order of writers",
        "each writer has one run of records, batches neither missing nor double; the highest gets through",
        _race(OLD, NEW),
    ),
    Claim("log: the same for attempts of one owner", "the later one is the higher writer", _race(OLD, AGAIN)),
    Claim(
        "log: the same through ROLLED into the next blob",
        "the fence stands at each blob's beginning, too",
        _race(OLD, NEW, limits=LogLimits(roll_records=1)),
        depth=14,
    ),
    Claim(
        "log: released once nothing is unsettled",
        "after that word no record of the writer lands; the next owner starts on firm ground",
        _race(OLD, NEW, releases=True),
    ),
    Claim(
        "log: released at once",
        "is untrue while an append may still be on its way",
        _race(OLD, NEW, releases=True, settled=False),
        violates="released",
    ),
    Claim(
        "log: position without order of writers",
        "an older owner that wakes up reads to the end and takes the log back",
        _race(OLD, NEW, in_order=False),
        violates="S2",
    ),
    Claim(
        "log: order of writers without position",
        "an append that lands late or twice doubles a batch, or lands behind a higher writer",
        _race(OLD, NEW, at_position=False),
        violates="S2",
    ),
    # Members and hand-over.
    Claim(
        "hand-over: all fences, nothing fails",
        "a joiner gets a task; it ends with every task running and the barrier at END",
        lambda: HandOver(faults=0),
    ),
    Claim(
        "hand-over: all fences, one fault from the start",
        "a crash, a lost container, a leader deposed, a member marked by mistake, an answer lost",
        HandOver,
        depth=12,
    ),
    Claim(
        "hand-over: all fences, one fault while a task moves",
        "the same, from the moment at which the version is published",
        lambda: HandOver(begun=JOINED),
        depth=8,
    ),
    Claim(
        "hand-over: nobody waits for the loser, two run one task",
        "waiting for `released` avoids useless work",
        lambda: HandOver(faults=0, waits=False),
        violates="alone",
    ),
    Claim(
        "hand-over: nobody waits for the loser, the log",
        "needs no waiting: the gainer is the higher writer, and never shut out",
        lambda: HandOver(faults=0, waits=False, alone=False),
    ),
    Claim(
        "hand-over: a release of any generation counts",
        "what a row said of an earlier ownership is mistaken for this one",
        lambda: HandOver(begun=BACK, faults=2, by_generation=False),
        violates="alone",
    ),
    Claim(
        "hand-over: a release of one generation counts for it",
        "the same story with the fence",
        lambda: HandOver(begun=BACK, faults=2),
    ),
    Claim(
        "hand-over: a version's number is used again",
        "and the log of the task shuts its owner out, as a writer that is not above the last one",
        lambda: HandOver(faults=0, rising=False),
        violates="S2",
    ),
    Claim(
        "hand-over: a version stops every task",
        "also those that stay",
        lambda: HandOver(faults=0, only_moved=False),
        violates="S5",
    ),
    Claim(
        "dead mark: without the ETag whose age was measured",
        "marks a member that has shown life since",
        lambda: HandOver(fenced_marks=False),
        violates="S10",
    ),
    Claim(
        "heartbeat: without the ETag of its row",
        "brings a dead incarnation back",
        lambda: HandOver(fenced_beats=False),
        violates="S3",
    ),
    # How processors end.
    Claim(
        "ending: a drained run, nothing goes wrong",
        "nobody waits forever, in whatever order they hear of it",
        lambda: Ending(faults=0),
    ),
    Claim(
        "ending: one life came back while its former task still runs",
        "nor then: its row is in nobody's way",
        lambda: Ending(begun=REJOINED),
    ),
    Claim(
        "ending: a life reports what its former one was given, and is believed",
        "nobody waits yet: its processor ends with the run that it was part of",
        lambda: Ending(begun=REJOINED, own_words=False),
    ),
    Claim(
        "ending: a life forgets the run that its former one was part of",
        "nobody waits yet: it reports nothing of that run",
        lambda: Ending(begun=REJOINED, remembers=False),
    ),
    Claim(
        "ending: a life reports what its former one was given, and forgets the run",
        "the leader waits for that row, and its processor for the clean-up",
        lambda: Ending(begun=REJOINED, own_words=False, remembers=False),
        violates="L1",
    ),
    Claim(
        "ending: a stopped run, nothing goes wrong",
        "nobody waits forever",
        lambda: Ending(run=STOPPED, faults=0),
    ),
    # The drain.
    Claim(
        "drain: all fences",
        "FLUSH excludes cancel, no row comes twice, answers are true, each is given",
        Drain,
        depth=13,
    ),
    Claim(
        "drain: FLUSH without its ETag",
        "lands after a cancellation, with ends that the tasks have read past",
        lambda: Drain(conditional_flush=False, told=False),
        violates="S7",
    ),
    Claim(
        "drain: standing still for whichever drain",
        "where a task stood for a cancelled drain is mistaken for where it stands",
        lambda: Drain(for_this_drain=False),
        violates="S7",
    ),
    Claim(
        "drain: a cancellation is answered without being written down",
        "a deposed leader, or one whose FREEZE is still on its way, says what is not true",
        lambda: Drain(written_down=False),
        violates="S12",
    ),
)


#: Too long for every day; all states there are, however long that takes.
WHOLE = (
    Claim("log: three writers", "as of two", _race(OLD, AGAIN, NEW)),
    Claim("log: two through ROLLED into the next blob", "as above", _race(OLD, NEW, limits=LogLimits(roll_records=1))),
    Claim(
        "ending: any one crash, restart, upgrade or rejoin",
        "whatever goes wrong once, and whenever, nobody waits forever and the upgraded begin the next run",
        Ending,
    ),
    Claim(
        "ending: any one crash, restart, upgrade or rejoin in a stopped run",
        "nobody waits forever, and whoever is started again goes on with it",
        lambda: Ending(run=STOPPED),
    ),
    Claim(
        "ending: a stopped run, to which one life came back while its former task still runs",
        "nobody waits forever",
        lambda: Ending(run=STOPPED, begun=REJOINED),
    ),
    Claim(
        "ending: one processor is asked to leave a run",
        "it ends, and the other one runs the tasks",
        lambda: Ending(run=RUNNING, faults=0, leaves=("p2",)),
    ),
    Claim(
        "ending: the leader is asked to leave a run",
        "it ends, and the other one runs the tasks",
        lambda: Ending(run=RUNNING, faults=0, leaves=("p1",)),
    ),
    Claim(
        "ending: three processors, one of them upgraded",
        "the same while nothing goes wrong, and the upgraded one begins the next run",
        lambda: Ending(processors=3, faults=0),
    ),
)

#: Too large to be tried to the end: all fences, more of everything.
LARGER = (
    Claim("control blob: two faults, more changes", "as above", lambda: Leading(faults=2, revisions=6)),
    Claim("control blob: If-Match alone, two faults", "as above", lambda: Leading(faults=2, lease_id=False)),
    Claim("log: three writers, two faults", "as above", _race(OLD, AGAIN, NEW, faults=2)),
    Claim("log: three writers through ROLLED", "as above", _race(OLD, AGAIN, NEW, limits=LogLimits(roll_records=1))),
    Claim("hand-over: two faults while a task moves", "as above", lambda: HandOver(begun=JOINED, faults=2)),
    Claim("ending: both are asked to leave", "as above", lambda: Ending(run=RUNNING, faults=0, leaves=("p1", "p2"))),
    Claim("ending: two of them", "as above", lambda: Ending(faults=2)),
    Claim("ending: one of them, three processors", "as above", lambda: Ending(processors=3)),
    Claim("drain: two tasks with two rows, three faults", "as above", lambda: Drain(tasks=2, rows=2, faults=3)),
    Claim("drain: three leaders, three tasks", "as above", lambda: Drain(leaders=3, tasks=3)),
)

HEADER = f"{'fence':<62} {'states':>9} {'steps':>10} {'depth':>6} {'time':>8}  {'verdict':<18} what it is for"


def row(claim: Claim, result: Result) -> str:
    """One line of the table."""
    reach = "all" if result.complete else f"to {result.depth}"
    verdict = f"violated: {result.violation.invariant}" if result.violation else "holds"
    size = f"{result.states:>9,} {result.steps:>10,} {reach:>6} {result.seconds:6.1f} s"
    return f"{claim.name:<62} {size}  {verdict:<18} {claim.why}"
