"""A stateful task moves to a container that never ran it: one that has warmed up, and one that has not.

Measured from the command to release it to the first append of its next owner, while rows come in. Each owner is a fresh
container. One that gets the task as soon as it is ready has not begun to warm up; it is the figure without. Both take
turns, in both orders. A leader would need a heartbeat or two in between: `explain` states its bounds.
"""

from dataclasses import dataclass

from common import EXAMPLE, BenchJob, Claim, Container, bench_job, cpu_s, flights, main, middle, say
from hand_over import TASK, rows_coming

from samza_azure.machine.clock import boot_time as now
from samza_azure.messages import Phase

GOAL_S = 1.5
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Move:
    """One take-over."""

    took_s: float
    cpu_s: float


def measure(quick: bool) -> list[Claim]:
    """One of each kind in each round."""
    job = (EXAMPLE / "job.toml").read_text().replace("partitions = 4", "partitions = 1")
    moves: dict[bool, list[Move]] = {True: [], False: []}
    with bench_job(job, (EXAMPLE / "pipeline.py").read_text()) as around:
        writer = ready(around, "writer")
        writer.start("clean-0")
        owner = ready(around, "owner")
        owner.start(TASK)
        with rows_coming(around, flights(20)):
            owner.first_append(TASK)
            for number in range(1 if quick else ROUNDS):
                for warm in (True, False) if number % 2 == 0 else (False, True):
                    generation = 2 + sum(map(len, moves.values()))
                    there = ready(around, f"owner-{generation}")
                    if warm:
                        warm_up(there)
                    moves[warm].append(move(owner, there, generation, "warmed up" if warm else "cold"))
                    owner.kill()
                    owner = there
    warmed, cold = ([each.took_s for each in moves[warm]] for warm in (True, False))
    cpu = {warm: middle([each.cpu_s for each in found]) for warm, found in moves.items()}
    return [
        Claim(
            "first take-over, release to first append, warmed up",
            f"{middle(warmed):.2f} s (median of {len(warmed)}, {min(warmed):.2f} to {max(warmed):.2f} s)",
            f"{GOAL_S} s",
            middle(warmed) <= GOAL_S,
        ),
        Claim(
            "the same, not warmed up",
            f"{middle(cold):.2f} s (median of {len(cold)}, {min(cold):.2f} to {max(cold):.2f} s)",
        ),
        Claim("processor time of the new owner until then, warmed up", f"{cpu[True]:.2f} s"),
        Claim("the same, not warmed up", f"{cpu[False]:.2f} s"),
    ]


def ready(around: BenchJob, name: str) -> Container:
    """A fresh container, with a permit."""
    container = around.container(name)
    container.ready()
    container.permit()
    return container


def warm_up(container: Container) -> None:
    """Wait until it has warmed up."""
    before = cpu_s(container.pid)
    container.until("warmed up", lambda: "Warm-up complete" in container.log_file.read_text())
    say(f"warmed up with {cpu_s(container.pid) - before:.2f} s of processor time")


def move(here: Container, there: Container, generation: int, kind: str) -> Move:
    """Release it here, start it there, and wait for its first append."""
    begun, before = now(), cpu_s(there.pid)
    here.release(TASK)
    here.until("released", lambda: here.phase(TASK, generation - 1) is Phase.RELEASED)
    released = now()
    there.start(TASK, generation, first=False)
    there.until("running", lambda: there.phase(TASK, generation) is Phase.RUNNING)
    running = now()
    appended = there.first_append(TASK, generation)
    used = cpu_s(there.pid) - before
    say(
        f"{kind}: released after {released - begun:.2f} s, its log taken over and its query started after "
        f"{running - begun:.2f} s, appended after {appended - begun:.2f} s; processor time {used:.2f} s"
    )
    there.until("Spark counts a batch", lambda: there.reports[TASK].last_batch is not None)
    if (batch := there.reports[TASK].last_batch) is not None:
        say(
            f"  a first batch of it, {batch.rows} rows: "
            + ", ".join(f"{part} {ms} ms" for part, ms in batch.ms.items())
        )
    return Move(appended - begun, used)


if __name__ == "__main__":
    main(measure, __doc__)
