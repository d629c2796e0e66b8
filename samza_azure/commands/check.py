"""`samza-azure check`: the mistakes of a job file and its pipeline, before anything runs."""

from typing import Annotated

import typer

from samza_azure.commands.job import Job, factory_of, load
from samza_azure.commands.terminal import say
from samza_azure.messages import Plan
from samza_azure.spark.pipeline.early import check_early


def command(
    job: Job,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what needs Spark: plans and schemas.")] = False,
) -> None:
    """Find the mistakes of a job before it runs. Reads no storage; with --quick, starts no Spark either.

    Example: samza-azure check job.toml --quick
    """
    config = load(job, reaches_storage=False)
    if not config.coordinator.is_ours:
        factory_of(config)
    found = check_early(config)
    if quick:
        for warning in found.warnings:
            say(f"warning: {warning}")
        if found.needs_session:
            say(f"{found.needs_session} Without --quick it is checked with Spark.")
        print(f"{job}: no mistake found in {found.stages} without Spark.")
        return
    from samza_azure.spark.pipeline.plan import plan_of  # takes long; --quick is quick without it

    plan = plan_of(config)
    for warning in plan.warnings:
        say(f"warning: {warning}")
    print("\n".join(_lines(plan, config.task.commit_ms / 1000)))
    print(f"{job}: no mistake found.")


def _lines(plan: Plan, commit_s: float) -> list[str]:
    """The plan, and the columns of each stream."""
    from samza_azure import explain

    found = [*explain.pipeline_lines(plan, commit_s), ""]
    for name, facts in plan.described.items():
        kind, _, stream = name.partition(" ")
        if kind == "stream":
            columns = [f"{fact.removeprefix('column ')} {value}" for fact, value in facts.items() if "column " in fact]
            time = f"; event time {facts['event_time']}" if "event_time" in facts else ""
            found.append(f"{stream}: {', '.join(columns)}{time}")
    return [*found, ""]
