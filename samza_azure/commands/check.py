"""`samza-azure check`: the mistakes of a job file and its pipeline, before anything runs."""

from typing import Annotated

import typer

from samza_azure.commands.job import Job, factory_of, load, load_seen
from samza_azure.commands.terminal import say, tell
from samza_azure.config import Config
from samza_azure.errors import ConfigError, Verdict
from samza_azure.messages import Plan
from samza_azure.spark.pipeline.early import check_early


def command(
    job: Job,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what needs Spark: plans and schemas.")] = False,
    compares: Annotated[
        bool,
        typer.Option("--against-run", help="Read the account: what would a start do with the present run?"),
    ] = False,
) -> None:
    """Find the mistakes of a job before it runs. Reads no storage; with --quick, starts no Spark either.

    With --against-run it reads the account, too, and says whether this code goes on with the present run, needs a drain
    first, or would be refused, and why; then it exits with 2.

    Example: samza-azure check job.toml --quick
    """
    if quick and compares:
        raise ConfigError("--against-run compares plans, which --quick leaves out. Leave one of them out.")
    config = load_seen(job) if compares else load(job, reaches_storage=False)
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
    if compares:
        raise typer.Exit(against_run(config, plan))


def against_run(config: Config, plan: Plan) -> Verdict:
    """Say what a start of this code would do, and return the code of a refusal."""
    from samza_azure.commands.reach import control_of, reach_if_there, with_rows
    from samza_azure.group.ending import of_start
    from samza_azure.library.factory import settings

    account = reach_if_there(config)
    control = None if account is None else with_rows(account, lambda blob, table: control_of(account))
    found = of_start(control, plan, settings("check", config))
    tell(found.message)
    return found.code


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
