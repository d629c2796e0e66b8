"""`samza-azure simulate`: a fleet under faults, in memory."""

from typing import Annotated

import typer

from samza_azure.sim.simulate import simulate as play


def command(
    seed: Annotated[int | None, typer.Option(help="Replays one history; a fresh seed without it.")] = None,
    processors: Annotated[int | None, typer.Option(min=1, max=1000, help="How many; without it the seed says.")] = None,
    hours: Annotated[
        float | None, typer.Option(min=0.001, max=1000, help="Of the fleet's time with faults; without it minutes.")
    ] = None,
) -> None:
    """Run a fleet under faults, in memory, from one seed, and print what happened.

    Example: samza-azure simulate --seed 57 --processors 5
    """
    if not play(print, seed=seed, processors=processors, hours=hours):
        raise typer.Exit(1)
