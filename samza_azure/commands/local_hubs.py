"""The hubs that `dev` runs on this machine for a job that reads some and is told of none."""

import os
from collections import defaultdict
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from samza_azure.config.jobfile import MissingVariable, parse, read
from samza_azure.errors import ConfigError
from samza_azure.eventhubs.emulator import EventHubs

CONNECT = ".options.connect"


def start_hubs(job: Path, ends: ExitStack, *, keeps_data: bool) -> dict[str, str]:
    """Start the hubs whose connection strings the job file takes from environment variables that are not set, and set
    these. Return them.
    """
    hubs: defaultdict[str, dict[str, int]] = defaultdict(dict)
    groups = []
    values = _values(job)
    for key, value in values.items():
        stream = key.removesuffix(CONNECT)
        if not (key.endswith(CONNECT) and isinstance(value, MissingVariable)):
            continue
        if values.get(f"{stream}.system") == "eventhubs" and isinstance(
            name := values.get(f"{stream}.options.name"), str
        ):
            partitions = values.get(f"{stream}.partitions", 1)
            hubs[value.name][name] = partitions if isinstance(partitions, int) else 1
            groups.append((value.name, name, str(values.get(f"{stream}.options.consumer_group", "$Default"))))
    if hubs and keeps_data:
        raise ConfigError(
            f"{min(hubs)} is not set, so dev would run an Event Hubs here, whose events are gone with it, and --data "
            f"keeps the positions in it. Leave out --data, or set {min(hubs)} to a namespace that stays."
        )
    running = {variable: ends.enter_context(EventHubs(each)) for variable, each in hubs.items()}
    for variable, name, group in groups:
        running[variable].add_group(name, group)
    found = {variable: each.connection_string for variable, each in running.items()}
    os.environ.update(found)
    return found


def _values(job: Path) -> dict[str, Any]:
    with suppress(ConfigError):  # what it says is said by the check
        return parse(read(job), job, os.environ, {}).values
    return {}
