"""The hubs and brokers that `dev` runs on this machine for a job that reads from some and is told of none."""

import os
from collections import defaultdict
from collections.abc import Collection
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from samza_azure.config.jobfile import MissingVariable, parse, read
from samza_azure.errors import ConfigError
from samza_azure.eventhubs.emulator import EventHubs

CONNECT, BROKERS = ".options.connect", ".options.brokers"


def start_hubs(job: Path, ends: ExitStack, *, keeps_data: bool) -> dict[str, str]:
    """Start the hubs whose connection strings the job file takes from environment variables that are not set, and set
    these. Return them.
    """
    wanted = _wanted(job, "eventhubs", CONNECT, "name")
    _refuse_half(wanted, "an Event Hubs", "events", "a namespace that stays", keeps_data=keeps_data)
    running = {}
    for variable, streams in wanted.items():
        running[variable] = ends.enter_context(EventHubs({name: partitions for name, partitions, _ in streams}))
        for name, _, options in streams:
            running[variable].add_group(name, str(options.get("consumer_group", "$Default")))
    return _set({variable: each.connection_string for variable, each in running.items()})


def start_brokers(job: Path, ends: ExitStack, *, keeps_data: bool) -> dict[str, str]:
    """Start a broker for each environment variable that is not set and by which the job file names brokers of Kafka,
    with the topics, and set these variables. Return them. Raise ConfigError if there is no such program.
    """
    wanted = _wanted(job, "kafka", BROKERS, "topic")
    if not wanted:
        return {}
    _refuse_half(wanted, "a broker", "messages", "brokers that stay", keeps_data=keeps_data)
    try:
        from samza_azure.kafka.local_broker import LocalBroker
    except ModuleNotFoundError:
        return {}  # what the check says
    topics = {variable: {name: partitions for name, partitions, _ in streams} for variable, streams in wanted.items()}
    return _set({variable: ends.enter_context(LocalBroker(each)).brokers for variable, each in topics.items()})


def _wanted(job: Path, system: str, way: str, named: str) -> dict[str, list[tuple[str, int, dict[str, Any]]]]:
    """What streams of a system read or write, if a variable says the way there and is not set, by variable: its name,
    its partitions, and the options of the stream.
    """
    values, found = _values(job), defaultdict[str, list[tuple[str, int, dict[str, Any]]]](list)
    for key, value in values.items():
        if not (key.endswith(way) and isinstance(value, MissingVariable)):
            continue
        stream = key.removesuffix(way)
        options = {
            name.removeprefix(f"{stream}.options."): each
            for name, each in values.items()
            if name.startswith(f"{stream}.options.")
        }
        if values.get(f"{stream}.system") == system and isinstance(name := options.get(named), str):
            partitions = values.get(f"{stream}.partitions", 1)
            found[value.name].append((name, partitions if isinstance(partitions, int) else 1, options))
    # One that is written and read may have its partitions said once: the most count, since the last one does.
    return {variable: sorted(streams, key=lambda each: each[1]) for variable, streams in found.items()}


def _refuse_half(wanted: Collection[str], runs: str, holds: str, instead: str, *, keeps_data: bool) -> None:
    if wanted and keeps_data:
        raise ConfigError(
            f"{min(wanted)} is not set, so dev would run {runs} here, whose {holds} are gone with it, and --data "
            f"keeps the positions in it. Leave out --data, or set {min(wanted)} to {instead}."
        )


def _set(found: dict[str, str]) -> dict[str, str]:
    os.environ.update(found)
    return found


def _values(job: Path) -> dict[str, Any]:
    with suppress(ConfigError):  # what it says is said by the check
        return parse(read(job), job, os.environ, {}).values
    return {}
