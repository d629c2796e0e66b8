"""`samza-azure explain`: the stages, and what the timings cost and promise."""

from typing import Annotated

import typer

from samza_azure import explain as arithmetic
from samza_azure.commands.job import Job, load
from samza_azure.commands.terminal import say
from samza_azure.host.processor import call_timeout_s
from samza_azure.spark.pipeline.plan import plan_of


def command(
    job: Job,
    processors: Annotated[int, typer.Option(min=1, help="Processors to calculate for.")] = 3,
) -> None:
    """Show the stages with their streams, keys and state, and what the timings cost and promise. Starts Spark, but
    reads no storage.

    Example: samza-azure explain job.toml --processors 5
    """
    config = load(job, reaches_storage=False)
    say("Analysing the pipeline with Spark; this takes some seconds.")
    plan = plan_of(config)
    for warning in plan.warnings:
        say(f"warning: {warning}")
    timing = config.coordinator.timing
    commit_s = config.task.commit_ms / 1000
    flows = arithmetic.flows_of(plan)
    shown = [*arithmetic.pipeline_lines(plan, commit_s), *arithmetic.flush_lines(plan, config.task.state), ""]
    print("\n".join(shown + arithmetic.lines(timing, flows, processors, commit_s, call_timeout_s(timing))))
