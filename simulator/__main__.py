"""`python -m simulator`: a fleet under faults, in memory."""

from pathlib import Path
from random import Random
from typing import Annotated

import typer

from samza_azure.cli import command_line, main
from samza_azure.commands.job import load, processors_of, refuse_unseen
from samza_azure.errors import ConfigError, Verdict
from simulator.simulate import simulate, simulate_job

#: The default numbers of histories and processors for a job.
SEEDS, PROCESSORS = 10, 3

app = command_line()


@app.command()
def command(
    job: Annotated[
        Path | None, typer.Argument(help="A job file; its profile and timings are used.", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Replay one history; without it a fresh seed.")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Histories of a job, from --seed on.  [default: 10]")
    ] = None,
    processors: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Processors. [default: by the seed; of a job 3, or 1 in a group of one]"),
    ] = None,
    hours: Annotated[
        float | None, typer.Option(min=0.001, max=1000, help="Virtual hours with faults; without it some minutes.")
    ] = None,
) -> None:
    """Run a fleet under faults, in memory, from one seed, and print what happened.

    With a job it plays several histories, and ends with the worst fail-over, the kills, and the rows that were checked.

    Example: python -m simulator job.toml --processors 5
    """
    if job is None:
        if seeds is not None:
            raise ConfigError("--seeds is for a job: python -m simulator job.toml --seeds 20.")
        well = simulate(print, seed=seed, processors=processors, hours=hours)
    else:
        config = load(job, reaches_storage=False)
        refuse_unseen(config)  # it has a protocol of its own
        coordinator = config.coordinator
        first = Random().randrange(1 << 32) if seed is None else seed
        well = simulate_job(
            print,
            str(job),
            coordinator.profile,
            coordinator.timing,
            processors=processors_of(config, processors, PROCESSORS),
            seeds=range(first, first + (seeds or SEEDS)),
            hours=hours,
        )
    if not well:
        raise typer.Exit(Verdict.FAILED)


if __name__ == "__main__":
    main(app)
