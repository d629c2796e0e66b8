"""How long a restore takes, by the length of the task's log.

A stateful task makes its log grow, batch by batch, in one of two warm containers. At each length the log is read as a
restore reads it and laid out as a checkpoint, several times, and then the task moves to the other container: from
the command to start until it runs, which is the restore and the start of Spark's query.
"""

import time
from pathlib import Path

from common import GROUP_ID, RUN_ID, BenchJob, Claim, bench_job, main, middle, say, scratch
from small_batch import JOB, rows

from samza_azure.logs.record import Writer
from samza_azure.machine.clock import boot_time as now
from samza_azure.messages import Phase
from samza_azure.stream_io.log import Restored, take_over
from samza_azure.tasks.checkpoint import lay_out

TASK = "windows-0"
READS = 5
FLUSH_S = 0.05


def measure(quick: bool) -> list[Claim]:
    """One log, at growing lengths."""
    claims = []
    lengths = (10, 30) if quick else (10, 100, 1_000)
    with bench_job(JOB, Path(__file__).with_name("watched.py").read_text()) as around:
        here, there = around.container("here"), around.container("there")
        for container in (here, there):
            container.ready()
            container.permit()
        here.start(TASK)
        generation, flushes = 1, 0
        source = around.source("rows")
        for length in lengths:
            while (report := here.reports.get(TASK)) is None or report.batch + 1 < length:
                source.write(rows(flushes).slice(0, 50))
                source.flush()
                flushes += 1
                due = now() + FLUSH_S
                here.until("the next flush", lambda: now() >= due)  # noqa: B023 - used at once
            here.release(TASK)
            here.until("released", lambda: here.phase(TASK, generation) is Phase.RELEASED)  # noqa: B023
            read_s, restored = read(around, generation + 1)
            generation += 2 + READS
            begun = now()
            there.start(TASK, generation, first=False)
            there.until("running", lambda: there.phase(TASK, generation) is Phase.RUNNING)  # noqa: B023
            running_s = now() - begun
            here, there = there, here
            what = f"{restored.records:,} records, {restored.bytes / 1024:,.0f} KiB"
            claims.append(Claim(f"restore from {what}: read and laid out", f"{read_s * 1000:.0f} ms"))
            claims.append(Claim(f"restore from {what}: start to running", f"{running_s:.2f} s"))
            say(f"{what}: read {read_s * 1000:.0f} ms, running after {running_s:.2f} s")
    return claims


def read(around: BenchJob, generation: int) -> tuple[float, Restored]:
    """Take the log over as an owner does, and lay the checkpoint out: the median of some times, and what was read."""
    times = []
    for number in range(READS):
        begun = time.monotonic()
        _, restored = take_over(
            around.account.blobs(),
            f"runs/{RUN_ID}/{TASK}",
            group_id=bytes.fromhex(GROUP_ID),
            task=TASK,
            writer=Writer(generation + number, 1),
            first=False,
            may_append=lambda: True,
            meta={},
        )
        with scratch() as directory:
            lay_out(directory / "checkpoint", restored.files, restored.last_batch, restored.watermark_us)
        times.append(time.monotonic() - begun)
    return middle(times), restored


if __name__ == "__main__":
    main(measure, __doc__)
