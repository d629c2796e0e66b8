"""The container: the supervisor's child that runs the assigned tasks, and holds the Spark session if one needs it.

    python -m samza_azure.container JOB_FILE --channel FD --directory DIRECTORY

It executes the supervisor's commands from the channel and reports the state of each task; it decides nothing.
Promised: when the supervisor ends, the container and its JVM end at once. A failing task never ends the container.
The directory is scratch space and is emptied at the start.
A pipeline without a query starts no JVM and imports no pyspark. One with a mistake that shows without Spark starts no
JVM either, unless its module takes long to import. Everything else that is imported overlaps with the start of the JVM.
"""

import argparse
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from samza_azure.config import Config
from samza_azure.config.spark import on_cluster
from samza_azure.errors import ConfigError, PipelineRefused, in_full
from samza_azure.log_rate_limit import RepeatFilter
from samza_azure.machine.folders import private_folder
from samza_azure.messages import Rejected
from samza_azure.pipeline.loading import load
from samza_azure.pipeline.quick_check import CheckBeside, has_spark, mentions_spark
from samza_azure.pipeline.without_spark import analyse_without_spark
from samza_azure.planning import first_check
from samza_azure.tasks.account import to_environment
from samza_azure.tasks.channel import Channel
from samza_azure.tasks.secrets import Secrets

log = logging.getLogger(__name__)

_BEGAN = time.monotonic()
#: How long the JVM waits at least for the check of the pipeline's names; as long as our own imports have taken, if that
#: is longer. A module that takes longer is checked beside the JVM.
HEAD_START_S = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until the supervisor says exit. Return 2 if the pipeline was rejected; the supervisor has the reason."""
    parser = argparse.ArgumentParser(prog="python -m samza_azure.container", description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("--channel", type=int, required=True, help="descriptor of the socket to the supervisor")
    parser.add_argument("--directory", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger().handlers[0].addFilter(RepeatFilter())
    for name in ("py4j", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("azure").setLevel(logging.ERROR)  # what it warns of is in our own messages
    channel = Channel(chosen.channel)
    clean: Callable[[str], str] = str
    try:
        config = Config.load(chosen.job)
        clean = Secrets(config).removed_from  # a message may quote a line of the pipeline
        return _run(config, chosen.directory.absolute(), channel, clean)
    except ConfigError as error:
        channel.tell(Rejected(clean(in_full(error))))
        return ConfigError.exit_code


def _run(config: Config, directory: Path, channel: Channel, clean: Callable[[str], str]) -> int:
    _emptied(directory)
    _prepare_environment(config)
    needs_spark = mentions_spark(config)  # as far as is known
    if needs_spark and has_spark():
        import samza_azure.spark.pipeline.no_session  # noqa: F401  # once, for the child and for us
    check = CheckBeside(config, first_check)  # before there are threads
    # A module that does not mention Spark may do without it, and is worth waiting for.
    if not check.ended(max(HEAD_START_S, time.monotonic() - _BEGAN) if needs_spark else None):
        log.info("The JVM is started while the pipeline's module is imported, which takes long.")
    if check.refused:
        raise PipelineRefused(check.refused)
    if check.has_query and has_spark():
        return _run_with_spark(config, directory, channel, clean, check)
    from samza_azure.tasks.serve import serve

    channel.listen()
    serve(config, directory, channel, lambda: analyse_without_spark(load(config), config))
    return 0


def _run_with_spark(
    config: Config, directory: Path, channel: Channel, clean: Callable[[str], str], check: CheckBeside
) -> int:
    from samza_azure.spark.jvm import java, zygote
    from samza_azure.spark.jvm.settings import settings_of

    settings = settings_of(config.spark, directory)
    python, environment = zygote.executable(directory), dict(os.environ)
    if on_cluster(settings):  # executors find their own by the same name
        python = zygote.on_path(python, environment, directory)
    jvm = java.launch(settings, environment, directory, python=python)

    from samza_azure.spark.query.with_spark import serve  # Azure's SDK and Arrow, while the JVM starts

    zygote.start(directory, config.app.packages)  # before there are threads, too
    channel.listen()
    check.then(lambda refused: _refuse(channel, clean(refused)))
    serve(config, directory, settings, jvm, channel)
    return 0


def _refuse(channel: Channel, message: str) -> None:
    """Send the message and exit, although the JVM is still starting."""
    channel.tell(Rejected(message))
    os._exit(ConfigError.exit_code)


def _prepare_environment(config: Config) -> None:
    """Let Spark's workers import the pipeline and reach the storage account, all in one time zone."""
    beside = str(config.path.absolute().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (beside, os.environ.get("PYTHONPATH"))))
    os.environ.update(to_environment(config.storage))
    # Python reads a time without a zone in that of its machine: rows would depend on which processor makes them.
    os.environ["TZ"] = "UTC"
    time.tzset()


def _emptied(directory: Path) -> None:
    """Create the directory, or delete what an earlier container left in it."""
    private_folder(directory)
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    code = 1
    try:
        code = main()
    except Exception:
        log.exception("The container failed")
    finally:
        os._exit(code)  # without waiting for Spark's threads: the JVM dies with this process
