"""`samza-azure positions`: where another job has stopped reading a hub or topic, as a line of the job file."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from samza_azure.commands.job import Job, load
from samza_azure.commands.terminal import say, tell
from samza_azure.config import LOG, Config
from samza_azure.errors import ConfigError
from samza_azure.foreign import exactly, parsed


def command(
    job: Job,
    stream: Annotated[str, typer.Argument(help="A stream of the job file that is read from a hub or topic.")],
    spark: Annotated[
        Path | None, typer.Option("--spark", help="The checkpointLocation of a query of Spark, on this machine.")
    ] = None,
    checkpoints: Annotated[
        str, typer.Option("--checkpoints", help="The URL of a container with checkpoints of Azure's SDKs or Functions.")
    ] = "",
    group: Annotated[
        str,
        typer.Option("--group", help="A consumer group that has committed offsets in Kafka; or that of --checkpoints."),
    ] = "",
    otherwise: Annotated[
        str, typer.Option("--otherwise", help="oldest or newest: where partitions begin that it never read.")
    ] = "",
) -> None:
    """Print where another job has stopped reading a hub or topic, as a line of the job file.

    It changes nothing anywhere. Stop that job first. Paste the line before the first run of this one: it counts for
    partitions that were never read.

    Example: samza-azure positions job.toml orders --spark /tmp/checkpoint
    """
    config = load(job, reaches_storage=False)
    if sum(map(bool, (spark, checkpoints or group))) != 1:
        raise ConfigError("Say where the other job keeps its positions: --spark FOLDER, --checkpoints URL or --group.")
    if otherwise not in ("", "oldest", "newest"):
        raise ConfigError(f"--otherwise is {otherwise!r}. Write oldest or newest.")
    if stream not in config.streams or config.streams[stream].system == LOG:
        raise ConfigError(f"{stream!r} is no stream from outside. Name one of the job file that has a system.")
    if spark is not None:
        options = config.streams[stream].options
        found = of_spark(spark, options.get("topic", options.get("name", "")))
    elif checkpoints:
        found = _of_connector(config, stream, "checkpoints", "eventhubs")(checkpoints, group)
    else:
        found = _of_connector(config, stream, "committed", "kafka")(group)
    tell(f'options.start = "{start(found, config.streams[stream].partitions, otherwise)}"')


def start(found: Mapping[int, int], partitions: int, otherwise: str) -> str:
    """The value of `options.start` of a stream with so many partitions. Raise ConfigError if it has others."""
    if strange := sorted(found.keys() - {*range(partitions)}):
        raise ConfigError(
            f"The other job has read partition {strange[0]}, and the job file says partitions = {partitions}. Write as "
            "many as the hub or topic has."
        )
    lacks = ", ".join(str(each) for each in range(partitions) if each not in found)
    if lacks and not otherwise:
        raise ConfigError(
            f"The other job has no position for partition {lacks}: it never read anything there. Say where it would "
            "begin: --otherwise oldest, or --otherwise newest."
        )
    return ",".join(f"{each}:{found.get(each, otherwise)}" for each in range(partitions))


def of_spark(folder: Path, name: str) -> dict[int, int]:
    """The numbers with which a query's next batch would begin, by the last batch that it has finished.

    Spark's source for Kafka and the connector for Event Hubs write them alike into the file of a batch: for each
    source a line of JSON with the topic or hub, the partitions, and the number behind the last row of the batch.
    """
    batches = sorted(int(each.name) for each in (folder / "commits").glob("*") if each.name.isdecimal())
    if not batches:
        raise ConfigError(
            f"{folder} has no finished batch. Name the folder that is the query's checkpointLocation, with its folders "
            "commits and offsets; download it first if it is in an account."
        )
    path = folder / "offsets" / str(batches[-1])
    try:
        version, _, *sources = path.read_text().splitlines()
        read = [parsed(each) for each in sources if each.startswith("{")]
        found = [each[name] for each in read if name in each]
        numbers = [{int(number): _number(at) for number, at in each.items()} for each in found]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read as the offsets of a batch of Spark: {error}.") from error
    if version != "v1":
        raise ConfigError(f"{path} is in the format {version}, and only v1 is known here.")
    if len(numbers) != 1:
        topics = ", ".join(sorted({topic for each in read for topic in each}))
        how = "no source" if not numbers else "several sources"
        raise ConfigError(f"{path} has {how} that read {name!r}. What they read: {topics or 'nothing'}.")
    if (folder / "offsets" / str(batches[-1] + 1)).exists():
        say(
            f"Batch {batches[-1] + 1} of the query has begun and not ended: what it has written already comes again "
            "from this job. Let it end first if the query still runs."
        )
    return numbers[0]


def _number(said: Any) -> int:
    number = int(said) if isinstance(said, str) else exactly(int, said)
    if number < 0:
        raise ValueError(f"it has {number}")
    return number


def _of_connector(
    config: Config, stream: str, method: Literal["checkpoints", "committed"], system: str
) -> Callable[..., dict[int, int]]:
    """What asks the system outside."""
    from samza_azure.pipeline.outside import outside  # with Arrow
    from samza_azure.systems.registry import factory_of

    declared = config.streams[stream]
    ask = getattr(factory_of(declared.system, stream).get_admin(outside(stream, declared, config)), method, None)
    if ask is None:
        which = "--checkpoints is" if system == "eventhubs" else "--group alone is"
        raise ConfigError(f'{which} for streams of system = "{system}", and {stream} has {declared.system!r}.')
    found: Callable[..., dict[int, int]] = ask
    return found
