"""`samza-azure check`: the mistakes of a job file and its pipeline, before anything runs."""

import platform
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated

import typer

from samza_azure.commands.job import Job, factory_of, load, load_seen, refuse_hiding
from samza_azure.commands.terminal import say, tell
from samza_azure.config import LOG, NO_ACCOUNT, Config, JobFileRefused
from samza_azure.config.jobfile import names_account, place_of_mistake
from samza_azure.errors import ConfigError, SamzaAzureError, Verdict, in_full
from samza_azure.messages import Plan
from samza_azure.pipeline.names import NamesRefused
from samza_azure.pipeline.quick_check import Found
from samza_azure.planning import plan_of, quick_check, started
from samza_azure.spark.jvm.ahead import Ahead

#: What speaks with the systems outside, where it is installed.
CLIENTS = ("samza-azure", "azure-eventhub", "confluent-kafka", "azure-identity")


def command(
    job: Job,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what needs Spark: plans and schemas.")] = False,
    compares: Annotated[
        bool,
        typer.Option("--against-run", help="Read the account: what would a start do with the present run?"),
    ] = False,
    connects: Annotated[
        bool, typer.Option("--connect", help="Reach for the systems outside: name, rights, network.")
    ] = False,
) -> None:
    """Find the mistakes of a job before it runs. Reads no storage; with --quick, starts no Spark either.

    With --against-run it reads the account, too, and says whether this code goes on with the present run, needs a drain
    first, or would be refused, and why; then it exits with 2.

    With --connect it tries whether the systems outside can be read or written from here, and says of each stream what
    it has found. Nothing is sent.

    Example: samza-azure check job.toml --quick
    """
    if quick and compares:
        raise ConfigError("--against-run compares plans, which --quick leaves out. Leave one of them out.")
    mistakes: list[ConfigError] = []
    config = _load(job, mistakes, compares=compares)
    found, plan = Found("the job file"), None
    with ExitStack() as ends:
        ahead = None if config is None or quick else _started(config, ends)  # Java starts meanwhile
        if config is not None:
            try:
                refuse_hiding(config)
                if not config.coordinator.is_ours:
                    factory_of(config)
                found = quick_check(config)
            except NamesRefused as error:
                if quick or isinstance(ahead, ConfigError):  # else the analysis reports them, too
                    mistakes.append(error)
            except ConfigError as error:
                mistakes.append(error)
                config = None
        if config is not None and not quick:
            try:
                if isinstance(ahead, ConfigError) and found.has_query:
                    raise ahead
                plan = plan_of(config, ahead if isinstance(ahead, Ahead) else None)
            except ConfigError as error:
                mistakes.append(error)
    if connects and config is not None:
        mistakes += _tried(config, plan, found.written)
    if mistakes:
        raise ConfigError("\n".join(map(in_full, mistakes)))
    for warning in found.warnings if plan is None else plan.warnings:
        say(f"warning: {warning}")
    if plan is None:
        if found.needs_session:
            say(f"{found.needs_session} Without --quick it is checked with Spark.")
        print(f"{job}: no mistake found in {found.stages} without Spark, which alone knows the columns.")
        return
    assert config is not None  # it has a plan
    print("\n".join(_lines(plan, config.task.commit_ms / 1000)))
    print(f"{job}: no mistake found.")
    if compares:
        raise typer.Exit(against_run(config, plan))


def _started(config: Config, ends: ExitStack) -> Ahead | ConfigError | None:
    """A JVM, or why there is none. None also if the pipeline may do without."""
    try:
        return ends.enter_context(started(config))
    except ConfigError as error:
        return error


def _load(job: Path, mistakes: list[ConfigError], *, compares: bool) -> Config | None:
    """The configuration, or what of it has no mistake."""
    config: Config | None
    try:
        config = load_seen(job) if compares else load(job, reaches_storage=False)
    except JobFileRefused as error:
        mistakes.append(error)
        if (config := error.rest) is None:
            return None
    if not compares and config.coordinator.is_ours and not names_account(config.path):
        mistakes.append(ConfigError(f"{place_of_mistake(config.path, NO_ACCOUNT)}: {NO_ACCOUNT}"))
    return config


def _tried(config: Config, plan: Plan | None, written: Collection[str]) -> Iterator[ConfigError]:
    """Reach for each system outside, print what was found, and yield what is wrong."""
    from samza_azure.pipeline.outside import outside, sent_in  # with Arrow: not for `check --quick`
    from samza_azure.systems.registry import factory_of as system_of

    outside_ones = {name: declared for name, declared in config.streams.items() if declared.system != LOG}
    if outside_ones:
        print(_machine())
    for name, declared in outside_ones.items():
        if plan is None and name in written:
            print(f"streams.{name}: not tried, since what is sent there is not known without Spark, or with mistakes.")
            continue
        try:
            stream = (sent_in(plan, name, config) if plan else None) or outside(name, declared, config)
            look = getattr(system_of(declared.system, name).get_admin(stream), "look", None)
            found = f"nothing was tried, for {declared.system} offers nothing" if look is None else look()
        except SamzaAzureError as error:
            yield ConfigError(f"streams.{name}: {error}")
        else:
            print(f"streams.{name}: {found}.")


def _machine() -> str:
    """What a report of a defect has to say of this machine, in a line to paste."""
    installed = {each.name.lower(): each.version for each in distributions() if each.name}
    clients = [f"{name} {installed[name]}" for name in CLIENTS if name in installed]
    return f"{', '.join(clients)}, Python {platform.python_version()}, {platform.system()} {platform.machine()}."


def against_run(config: Config, plan: Plan) -> Verdict:
    """Say what a start of this code would do, and return the code of a refusal."""
    from samza_azure.commands.connect import connect_if_there, control_of, with_rows
    from samza_azure.group.ending import of_start
    from samza_azure.library.factory import settings

    account = connect_if_there(config)
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
