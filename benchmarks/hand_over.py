"""A stateful task moves from one warm container to another and back, while rows come in.

Measured from the command to release it to the first append of its next owner, which is started as soon as the release
is reported. A leader would need a heartbeat or two in between; that is coordination: `explain` states its bounds. The
first move is left out: that container has never run this query before, and `take_over.py` measures that.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pyarrow as pa
from common import EXAMPLE, BenchJob, Claim, Container, bench_job, flights, main, meanwhile, middle, say

from samza_azure.machine.clock import boot_time as now
from samza_azure.messages import Phase

GOAL_S = 1.5
TASK = "daily_delays-0"
ROWS_A_FLUSH = 300
FLUSH_EVERY_S = 0.1


def measure(quick: bool) -> list[Claim]:
    """To and fro, several times."""
    job = (EXAMPLE / "job.toml").read_text().replace("partitions = 4", "partitions = 1")
    with bench_job(job, (EXAMPLE / "pipeline.py").read_text()) as around:
        here, there = around.container("here"), around.container("there")
        for container in (here, there):
            container.ready()
            container.permit()
        here.start("clean-0")
        here.start(TASK)
        with rows_coming(around, flights(1)):
            here.first_append(TASK)
            moves = []
            for generation in range(2, 4 if quick else 12):
                moves.append(move(here, there, generation))
                here, there = there, here
    later = middle(moves[1:])
    return [
        Claim(
            "hand-over, release to first append",
            f"{later:.2f} s (median of {len(moves) - 1})",
            "1.5 s",
            later <= GOAL_S,
        ),
    ]


def move(here: Container, there: Container, generation: int) -> float:
    """Release it here, start it there; seconds until it has appended."""
    begun = now()
    here.release(TASK)
    here.until("released", lambda: here.phase(TASK, generation - 1) is Phase.RELEASED)
    released = now()
    there.start(TASK, generation, first=False)
    there.until("running", lambda: there.phase(TASK, generation) is Phase.RUNNING)
    running = now()
    appended = there.first_append(TASK, generation)
    say(f"released {released - begun:.2f} s, running {running - released:.2f} s, appended {appended - running:.2f} s")
    return appended - begun


@contextmanager
def rows_coming(around: BenchJob, rows: pa.Table) -> Iterator[None]:
    """Flights come in at an even pace, meanwhile."""
    source, starts = around.source("flights"), count(0, ROWS_A_FLUSH)

    def flush() -> None:
        source.write(rows.slice(next(starts), ROWS_A_FLUSH), "dest")
        source.flush()

    with meanwhile(flush, FLUSH_EVERY_S):
        yield


if __name__ == "__main__":
    main(measure, __doc__)
