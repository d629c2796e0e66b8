"""`samza-azure explain`: the stages, and what the timings cost and promise."""

from typing import Annotated

import typer

from samza_azure import explain as arithmetic
from samza_azure.commands.job import Job, is_seen, load, processors_of, refuse_hiding
from samza_azure.commands.terminal import say
from samza_azure.host.processor import call_timeout_s
from samza_azure.planning import plan_of, started

PROCESSORS = 3
ALONE = "It is a group of one: nobody takes over but the next start, or a processor of AzureJobCoordinatorFactory."


def command(
    job: Job,
    processors: Annotated[
        int | None, typer.Option(min=1, help="Processors to calculate for. [default: 3, or 1 in a group of one]")
    ] = None,
) -> None:
    """Show the stages with their streams, keys and state, and what the timings cost and promise. Starts Spark, but
    reads no storage.

    Example: samza-azure explain job.toml --processors 5
    """
    config = load(job, reaches_storage=False)
    refuse_hiding(config)
    number, seen = processors_of(config, processors, PROCESSORS), is_seen(config)
    say("Analysing the pipeline; with Spark this takes some seconds.")
    with started(config) as ahead:
        plan = plan_of(config, ahead)
    for warning in plan.warnings:
        say(f"warning: {warning}")
    timing = config.coordinator.timing
    commit_s = config.task.commit_ms / 1000
    flows = arithmetic.flows_of(plan)
    shown = [*arithmetic.pipeline_lines(plan, commit_s), *arithmetic.flush_lines(plan, config.task.state)]
    shown += arithmetic.replica_lines(plan, config.standby_replicas, commit_s)
    shown += [*arithmetic.hub_lines(plan), *arithmetic.topic_lines(plan)]
    shown += [*arithmetic.task_lines(plan, number, commit_s), ""]
    if seen:
        shown += arithmetic.lines(timing, flows, number, commit_s, call_timeout_s(timing))
    else:
        shown += [arithmetic.cheaper(flows, number, commit_s), *arithmetic.storage_lines(), ""]
        shown += [f"What {config.coordinator.factory} costs and promises is not known here."]
    if config.coordinator.is_alone:
        shown += [ALONE]
    print("\n".join(shown))
