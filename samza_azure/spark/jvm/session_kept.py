"""Call a stage's function without a trace: what it sets and names on the session lasts for the call only.

All stages of a container share one session, and their functions are called again and again: twice when a stage is
analysed, and once for each task that starts, in any order. A name that outlived a call would have another meaning for
the next one, or none.
Promised: after a call, settings, temporary views, functions and SQL variables are what they were. A stage that changes
those that were there before it is refused, since others may use them.
Not promised: the same for permanent views and functions, the current database, and variables of the user's modules;
and for what other threads of the user's, as those of low-level tasks, create in the session meanwhile.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from samza_azure.errors import PipelineRefused
from samza_azure.spark.jvm.session import private_field

CATALYST = "org.apache.spark.sql.catalyst"
VIEWS = f"{CATALYST}.catalog.GlobalTempViewManager", "viewDefinitions"
VARIABLES = f"{CATALYST}.catalog.TempVariableManager", "variables"


@contextmanager
def session_kept(spark: SparkSession, stage: str) -> Iterator[None]:
    """Restore the session after the body, which calls the stage's function. Refuse a change of what was there."""
    settings, names = settings_of(spark), {kind: (each, each.clone()) for kind, each in _names(spark).items()}
    try:
        yield
    finally:
        changed = _restored(spark, settings)
        replaced = [f"{kind} {name}" for kind, both in names.items() for name in _names_restored(*both)]
    if changed:
        raise PipelineRefused(
            f"Stage {stage} changes {', '.join(changed)}, which all stages share. Set it in the job file instead."
        )
    if replaced:
        raise PipelineRefused(
            f"Stage {stage} replaces or drops the {', '.join(replaced)}, which all stages share. Choose another name, "
            "or create it at the top of the module only."
        )


def settings_of(spark: SparkSession) -> Any:
    """The session's settings as a Java map, which no later change reaches. To read it takes hundreds of calls."""
    return spark.conf._jconf.getAllAsJava()


def _restored(spark: SparkSession, settings: Any) -> list[str]:
    """Restore the session's settings. Return the names of those that had changed."""
    now = settings_of(spark)
    if now.equals(settings):
        return []
    before, after = dict(settings), dict(now)
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    for key in changed:
        if key in before:
            spark.conf.set(key, before[key])
        else:
            spark.conf.unset(key)
    return changed


def _names(spark: SparkSession) -> Mapping[str, Any]:
    """Spark's own maps of what has a name, by kind: maps of Scala's, in which the session looks names up."""
    state = spark._jsparkSession.sessionState()
    catalog = state.catalog()
    return {
        "function": state.functionRegistry().functionBuilders(),
        "table function": state.tableFunctionRegistry().functionBuilders(),
        "temporary view": catalog.tempViews(),
        "global temporary view": private_field(spark, *VIEWS).get(catalog.globalTempViewManager()),
        "variable": private_field(spark, *VARIABLES).get(state.catalogManager().tempVariableManager()),
    }


def _names_restored(now: Any, before: Any) -> list[str]:
    """Restore one of Spark's maps. Return the names that were in it and had another meaning, or none."""
    if now.equals(before):
        return []
    changed = before.toSet().diff(now.toSet()).toList()
    added = now.keySet().diff(before.keySet()).toList()
    for index in range(added.size()):  # not `clear`: another thread may look a name up at any moment
        now.remove(added.apply(index))
    now.addAll(before)
    return sorted(_name(changed.apply(index)._1()) for index in range(changed.size()))


def _name(key: Any) -> str:
    """As the user wrote it, but for upper case: functions have an identifier, all others a text."""
    return key if isinstance(key, str) else str(key.funcName())
