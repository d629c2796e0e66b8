"""Analyse a job's pipeline: with Spark if one of its stages has a query, without it otherwise."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

from samza_azure.config import Config
from samza_azure.errors import PipelineRefused
from samza_azure.messages import Plan
from samza_azure.pipeline.loading import load
from samza_azure.pipeline.names import NamesRefused, queries_of
from samza_azure.pipeline.quick_check import Found, found_in, has_spark, mentions_spark
from samza_azure.spark.jvm.ahead import Ahead, launched
from samza_azure.spark.jvm.guard import no_session


def quick_check(config: Config) -> Found:
    """Import the module and check its names, without a session. Raise the same `PipelineRefused` as the analysis."""
    if not (has_spark() and mentions_spark(config)):
        try:
            with no_session(partial(RuntimeError, "Spark is not up yet.")):
                application = load(config)
            return found_in(application, config)
        except PipelineRefused:
            if "pyspark" not in sys.modules:  # else what it imports from elsewhere may want a session
                raise
    from samza_azure.spark.pipeline.no_session import quick_check as check  # half a second, and 40 MiB

    return check(config)


def first_check(config: Config) -> Found:
    """The same for a container. If names are refused, the message has all mistakes, or says how they are found."""
    try:
        return quick_check(config)
    except NamesRefused as error:
        if has_spark() and queries_of(load(config)):
            error.add_note(f"What only Spark finds is not said here: samza-azure check {config.path}")
        else:
            from samza_azure.pipeline.without_spark import analyse_without_spark

            analyse_without_spark(load(config), config)
        raise


@contextmanager
def started(config: Config) -> Iterator[Ahead | None]:
    """A JVM for `plan_of`, which starts meanwhile. None if the pipeline may do without."""
    if has_spark() and mentions_spark(config):
        with launched(config.spark) as ahead:
            yield ahead
    else:
        yield None


def plan_of(config: Config, ahead: Ahead | None) -> Plan:
    """Analyse the pipeline as a container would, in that JVM if there is one. Raise the same PipelineRefused."""
    try:
        needs_spark = quick_check(config).has_query
    except NamesRefused:
        needs_spark = bool(queries_of(load(config)))
    except PipelineRefused:
        needs_spark = True  # the analysis finds more
    if not (needs_spark and has_spark()):
        from samza_azure.pipeline.without_spark import analyse_without_spark

        return analyse_without_spark(load(config), config).plan
    from samza_azure.spark.pipeline.plan import plan_with_spark

    with nullcontext(ahead) if ahead else launched(config.spark) as jvm:
        return plan_with_spark(config, jvm)
