"""Spark sessions with the settings of the container."""

import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaMember
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, util
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from samza_azure.errors import SamzaAzureError
from samza_azure.spark.jvm import references
from samza_azure.spark.jvm.context import Context, note_nothing
from samza_azure.spark.jvm.janino import class_of, compiled_in
from samza_azure.spark.jvm.java import Jvm, launch
from samza_azure.spark.jvm.ml_functions import session_of
from samza_azure.spark.jvm.settings import settings_of

#: pyspark writes an error in a plan to stderr, as JSON with Java's stack trace, before it raises it. We say it better.
#: So it does with the traceback of what it cannot pickle.
TWICE = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")


class EndedAtStart(SamzaAzureError):
    """Spark has ended its application before there was a session."""


def start_session(name: str, settings: Mapping[str, str], directory: Path) -> SparkSession:
    """A session with the container's settings, and a JVM of its own. Call it from the main thread."""
    chosen = settings_of(settings, directory)
    return connect_session(name, chosen, launch(chosen, os.environ, directory))


def connect_session(
    name: str, settings: Mapping[str, str], jvm: Jvm, context: type[SparkContext] = Context
) -> SparkSession:
    """Wait for a JVM that was started before, and create a session in it with these settings only.

    Raise EndedAtStart if no cluster takes the application.
    """
    for logger in TWICE:
        PySparkLogger.getLogger(logger).setLevel(logging.CRITICAL)
    util.print_exec = lambda stream: None
    try:
        spark = _connected({"spark.app.name": name, **settings}, jvm, context)
    except Py4JError as error:
        made = SparkContext._active_spark_context
        if made is None or not made._jsc.sc().isStopped():
            raise
        raise EndedAtStart("Spark has ended its application before there was a session.") from error
    gateway_of(spark).proc = jvm.process  # as if pyspark had started it
    if context is Context:
        note_nothing(spark)
    return spark


def is_stopped(spark: SparkSession) -> bool:
    """Whether somebody has called `stop`."""
    return spark.sparkContext._jsc is None


def make_active(spark: SparkSession) -> None:
    """Let `SparkSession.getActiveSession` return it in this thread, as in a script's only one."""
    java_class(spark, "org.apache.spark.sql.classic.SparkSession").setActiveSession(spark._jsparkSession)


def is_of(frame: DataFrame, spark: SparkSession) -> bool:
    """Whether a DataFrame belongs to this session."""
    return bool(frame.sparkSession._jsparkSession.equals(spark._jsparkSession))


def set_unchecked(spark: SparkSession, key: str, value: str) -> None:
    """Set a setting of the session, also one of Spark's core, which `spark.conf.set` leaves alone."""
    spark._jsparkSession.sessionState().conf().setConfString(key, value)


def jvm_of(spark: SparkSession) -> Any:
    """The Java side of a session. It always exists here, which pyspark's types do not say."""
    return spark.sparkContext._jvm


def java_class(spark: SparkSession, name: str) -> Any:
    """A Java class or a Scala object, by its full name: see `janino.class_of`."""
    return class_of(jvm_of(spark), name)


def java_object(spark: SparkSession, name: str, field: str) -> Any:
    """What a Java class has as a static field, or a Scala object as a value."""
    return _object(jvm_of(spark), name, field)


@cache
def _object(jvm: Any, name: str, field: str) -> Any:
    found = getattr(class_of(jvm, name), field)
    return found() if isinstance(found, JavaMember) else found


def private_field(spark: SparkSession, owner: str, name: str) -> Any:
    """A private field of a Java class, which can be read and set."""
    return _field(jvm_of(spark), owner, name)


@cache
def _field(jvm: Any, owner: str, name: str) -> Any:
    found = class_of(jvm, "java.lang.Class").forName(owner).getDeclaredField(name)
    found.setAccessible(True)
    return found


def compiled(spark: SparkSession, name: str, source: str) -> Any:
    """An object of a Java class without arguments, compiled from its source: see `janino.py`."""
    return compiled_in(jvm_of(spark), name, source)


def released_at_end(spark: SparkSession) -> AbstractContextManager[None]:
    """See `references.released_together`."""
    return references.released_together(gateway_of(spark)._gateway_client)


def gateway_of(spark: SparkSession) -> Any:
    """py4j's connections between this process and its JVM."""
    return spark.sparkContext._gateway


def _connected(settings: Mapping[str, str], jvm: Jvm, context: type[SparkContext]) -> SparkSession:
    """pyspark connects to a running JVM through these variables. The secret does not stay in the environment."""
    references.install()
    gateway = jvm.gateway()
    os.environ["PYSPARK_GATEWAY_PORT"] = str(gateway.port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = gateway.secret
    os.environ["PYSPARK_PYTHON"] = jvm.python
    try:
        made = context(conf=SparkConf().setAll([*settings.items()]))
        return session_of(made) if context is Context else SparkSession(made)
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
