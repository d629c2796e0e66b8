"""A drain in which a process is killed (SIGKILL) at a named point, once for each point. The output is exact each time.

python tests/prove/drain_kills.py [--only WORDS …] [--list]

The points are those of tests/end_to_end/killing/sitecustomize.py, for the leader and a follower, and of each for the
supervisor and the container. Each case is a run of its own, drained in mid-stream. After it: a process died there,
`drain --wait` exited with 0 and so did all processors that were left, the output of all runs so far is that of one
batch over each, and once the next run has begun nothing is left of the intermediate logs, of the run's hints and of its
requests. A supervisor that was killed before DRAINED is started again at once.

The leader alone cleans up, and the others have left by then unless they wait for an upgrade: so they do in the cases in
which one of them has to die during the clean-up. In the cases in which it has to die between two batches of the flush
there are two processors: each has two tasks then, and each of these a last batch.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "examples" / "flights"), str(ROOT)]

from flights import write  # noqa: E402  (needs the path above)

from samza_azure.group.rows import REQUESTS  # noqa: E402
from samza_azure.storage.connection import Account  # noqa: E402
from samza_azure.storage.limits import HINTS, hint_name  # noqa: E402
from tests.end_to_end.real_processes import PATIENCE_S, JobOnAzurite, daily, daily_rows  # noqa: E402

CHUNK = 12_000
RATE = 1_500.0
NAMES = ("p0", "p1", "p2")
PHASES = ("REQUESTED", "SOURCES_STOPPED", "FLUSHING", "COMMITTED")
WRITES = ("before FREEZE", "after FREEZE", "before FLUSH", "after FLUSH", "before DRAINED", "after DRAINED")
APPENDS = (
    "before batch 1 of the flush",
    "after batch 1 of the flush",
    "before batch 2 of the flush",
    "after batch 2 of the flush",
    "before the end of STAGE",
    "after the end of STAGE",
)
CLEAN_UP = "mid-clean-up"


@dataclass(frozen=True, slots=True)
class Case:
    """Which process dies at which point."""

    role: str  # leader or follower
    kind: str  # supervisor or container
    point: str

    def __str__(self) -> str:
        return f"{self.role} {self.kind} {self.point}"

    @property
    def names(self) -> tuple[str, ...]:
        """The processors that it takes."""
        return NAMES[:2] if "of the flush" in self.point else NAMES

    @property
    def waits(self) -> bool:
        """Whether they wait for an upgrade, since one of them would be gone else."""
        return self.point == CLEAN_UP and self.role == "follower"


CASES = [
    *(Case("leader", "supervisor", point) for point in WRITES),
    *(
        Case(role, kind, point)
        for role in ("leader", "follower")
        for kind in ("supervisor", "container")
        for point in (*PHASES, *(APPENDS if kind == "container" else ()), "DRAINED", CLEAN_UP)
    ),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORDS", help="cases with one of these in the name")
    parser.add_argument("--list", action="store_true")
    chosen = parser.parse_args()
    cases = [case for case in CASES if any(words in str(case) for words in chosen.only)]
    if chosen.list:
        print("\n".join(map(str, cases)))
        return 0
    directory = Path(tempfile.mkdtemp(prefix="samza-azure-prove-"))
    write(directory / "flights.parquet")
    world = JobOnAzurite(directory, pq.read_table(directory / "flights.parquet"))
    expected: Counter[tuple[Any, ...]] = Counter()
    positions: dict[str, list[int]] = {}
    try:
        for number, case in enumerate(cases):
            begun = time.monotonic()
            run_id = begin(world, case)
            play(world, case)
            read = world.rows_up_to_positions(positions)
            positions = world.fleet.status()["positions"]
            expected += daily(read)
            assert daily_rows(world.stream("daily-delays")) == expected, f"{case}: the output is another"
            leftovers[run_id] = case
            if number + 1 == len(cases):
                begin(world, cases[0])  # whose leader deletes what the last drain has left
            took = time.monotonic() - begun
            print(
                f"{number + 1:2} {case}: drained, {read.num_rows} rows exact, {took:.0f} s with the start", flush=True
            )
        print(f"{len(cases)} kills at named points, {sum(expected.values())} windows, all exact")
        return 0
    finally:
        world.close()


#: Drained runs, and the case that each was: their clean-up is looked at when the next run runs.
leftovers: dict[str, Case] = {}


def begin(world: JobOnAzurite, case: Case) -> str:
    """A fleet that begins a run; its id. What the drained ones have left is gone."""
    world.fleet.processes.clear()
    options = [*(["--new-run"] if leftovers else []), *(["--wait-for-upgrade"] if case.waits else [])]
    for name in case.names:
        world.fleet.start(name, *options)
    shown = world.settled(lambda shown: shown["run_id"] not in leftovers)
    deadline = time.monotonic() + PATIENCE_S
    while left := [name for name in [*intermediate(world), *rows_of_runs(world)] if name.split("/")[1] in leftovers]:
        assert time.monotonic() < deadline, f"{leftovers[left[0].split('/')[1]]}: {left} are left"
        time.sleep(0.2)  # the pace of asking
    run_id: str = shown["run_id"]
    return run_id


def intermediate(world: JobOnAzurite) -> list[str]:
    """The blobs of all logs of the intermediate stream."""
    account = Account.from_config(world.fleet.config.storage)
    try:
        return [name for name, _ in account.blobs().list("runs/") if name.split("/")[2].startswith("clean-")]
    finally:
        account.close()


def rows_of_runs(world: JobOnAzurite) -> list[str]:
    """The hints of runs, and the requests to drain one, by the name that a hint of the run has."""
    hints = [hint_name(row.key) for row in world.rows(HINTS)]
    requests = [f"requests/{row.values['runId']}" for row in world.rows(REQUESTS) if row.values.get("runId")]
    return [name for name in hints if name.startswith("runs/")] + requests


def play(world: JobOnAzurite, case: Case) -> None:
    """One drain with its kill."""
    shown, task = chosen_task(world, case)
    victim = task["owner"]
    before = incarnation(shown, victim)
    arm(world, case, shown["leader"], task)
    producer = world.producing(CHUNK, RATE)
    world.fleet.wait_until("rows are read", lambda now: now["read"] != shown["read"], PATIENCE_S)
    draining = world.drain_begins()
    if case.kind == "supervisor":
        assert world.fleet.processes[victim].wait(2 * PATIENCE_S) == -signal.SIGKILL, case
        del world.fleet.processes[victim]
        if "DRAINED" not in case.point and case.point != CLEAN_UP:
            world.fleet.start(victim)
    _, said = draining.communicate(timeout=2 * PATIENCE_S)
    assert draining.returncode == 0, f"{case}: {said}"
    assert world.kills_to_come() == [], f"{case}: nobody came there"
    if case.kind == "supervisor" and victim in world.fleet.processes:  # before it has come up, a SIGTERM only kills it
        world.fleet.wait_until(
            f"{victim} is back",
            lambda shown: victim not in world.fleet.alive() or incarnation(shown, victim) != before,
            PATIENCE_S,
        )
    waiting = world.fleet.processes if case.waits else {victim} if case.kind == "supervisor" else ()
    for name in set(waiting) & set(world.fleet.alive()):
        world.fleet.send(
            name, signal.SIGTERM
        )  # a processor that comes back only after DRAINED waits for an upgrade, too
    codes = world.fleet.exit_codes(PATIENCE_S)
    assert set(codes.values()) == {0}, f"{case}: {codes}"
    assert producer.wait() == 0


def incarnation(shown: dict[str, Any], processor: str) -> str:
    """The incarnation of a processor, as its row says."""
    return next(str(each["incarnation"]) for each in shown["processors"] if each["id"] == processor)


def chosen_task(world: JobOnAzurite, case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """The status, and the task whose owner dies: of the last stage if possible, or one that comes to the point at all.

    Only the first stage reads a source. If nobody in the role has a task of it, the next leader's group is looked at.
    """
    reads_source = case.point == "SOURCES_STOPPED"
    while True:
        shown = world.settled(lambda shown: len({task["owner"] for task in shown["tasks"]}) == len(case.names))
        leader = shown["leader"]
        theirs = [task for task in shown["tasks"] if (task["owner"] == leader) == (case.role == "leader")]
        found = max(theirs, key=lambda task: (task["stage"] == "clean") == reads_source)
        if not reads_source or found["stage"] == "clean":
            return shown, found
        world.fleet.send(leader, signal.SIGTERM)
        assert world.fleet.processes.pop(leader).wait(PATIENCE_S) == 0
        world.fleet.start(leader)


def arm(world: JobOnAzurite, case: Case, leader: str, task: dict[str, Any]) -> None:
    """Prepare the kill. During the clean-up it is the leader's supervisor that comes to the point."""
    if case.point != CLEAN_UP:
        world.kill_at(task["owner"], case.kind, case.point.replace("STAGE", task["stage"]))
        return
    processes = world.fleet.processes
    whom = processes[task["owner"]].pid if case.kind == "supervisor" else world.container(task["owner"]).pid
    world.kill_at(leader, "supervisor", CLEAN_UP, whom=whom)


if __name__ == "__main__":
    sys.exit(main())
